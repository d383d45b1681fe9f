"""How often modelc is wrong: python -m modelc.benchmarks.judge --out results.jsonl.

Good conversions that it rejects (false fails) and faults that it lets pass (false passes), beside
what the usual checks say of the very same outputs. Results are streamed to a file of JSON lines;
--resume goes on with it. The models are small, their weights random: see docs/judge_benchmark.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from modelc.benchmarks.judge_cases import branches, faults, good
from modelc.benchmarks.judge_measures import Case
from modelc.benchmarks.judge_table import tables
from modelc.tests.nets.zoo import ENTRIES

PRECISIONS = ("fp32", "fp16", "bf16", "int8")
PARTS = ("good", "faults")
# Those that faults are planted in: each kind of layer at least twice.
PLANTED = (
    "perceptron", "attention", "convolutions", "upsampling", "pointing", "waves", "lstm", "gru",
    "sample-digits", "sample-nested", "sample-encoder", "bert", "gpt2", "t5", "llama", "vit",
    "swin", "convnext", "resnet", "mobilenet", "segformer", "whisper", "wav2vec2", "sample-lstm",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Read the options, run the cases, print the tables; 1 where fp32 has a false one."""
    args = _arguments(argv)
    _quietly()
    results = Results(path=args.out)
    if args.resume or args.table:
        results.read()
    else:
        args.out.unlink(missing_ok=True)
    if not args.table:
        with tempfile.TemporaryDirectory(prefix="modelc-judge-") as folder:
            for case in _cases(args, Path(folder), results.known):
                results.add(case)
                if args.limit and results.fresh >= args.limit:
                    break
    print(tables(results.cases))
    return int(any(_is_wrong(one) for one in results.cases))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("judge.jsonl"), help="results, a line each"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the results in --out")
    parser.add_argument("--table", action="store_true", help="print the tables of --out alone")
    parser.add_argument(
        "--only", choices=PRECISIONS, action="append", help="precisions; repeatable"
    )
    parser.add_argument("--part", choices=PARTS, action="append", help="groups; repeatable")
    parser.add_argument("--models", help="names, with commas between; all of the zoo without")
    parser.add_argument("--limit", type=int, default=0, help="stop after so many new cases")
    parser.add_argument("--seed", type=int, default=0, help="of the first set of weights")
    parser.add_argument("--seeds", type=int, default=2, help="sets of weights of good conversions")
    args = parser.parse_args(argv)
    args.only, args.part = args.only or list(PRECISIONS), args.part or list(PARTS)
    return args


@dataclass(kw_only=True)
class Results:
    """The cases so far, in a file as well."""

    path: Path
    cases: list[Case] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    fresh: int = 0

    def read(self) -> None:
        """Take what the file has; a last line that was cut off is dropped from it."""
        text = self.path.read_text() if self.path.exists() else ""
        whole, cut = text[: text.rfind("\n") + 1], text[text.rfind("\n") + 1 :]
        if cut:
            self.path.write_text(whole)
        for line in whole.splitlines():
            self._take(Case(**json.loads(line)))

    def add(self, case: Case) -> None:
        """Take a new one and write it down."""
        self._take(case)
        self.fresh += 1
        with self.path.open("a") as stream:
            stream.write(json.dumps(case.record()) + "\n")

    def _take(self, case: Case) -> None:
        self.cases.append(case)
        self.known.add(case.key)


def _cases(args: argparse.Namespace, folder: Path, known: set[str]) -> Iterator[Case]:
    """Model by model: the conversions of each seed, then the faults of the first."""
    names = args.models.split(",") if args.models else list(ENTRIES)
    for name in names if "good" in args.part else ():
        for number in range(args.seeds):
            yield from good(name, args.seed + number, args.only, folder=folder, known=known)
            _clear(folder)
    for name in [*PLANTED, *ENTRIES] if "faults" in args.part else ():
        if name not in names:
            continue
        names.remove(name)
        if name in PLANTED:
            yield from faults(name, args.seed, args.only, folder=folder, known=known)
        elif name.startswith("branch") and "fp32" in args.only:
            yield from branches(name, args.seed, folder=folder, known=known)
        _clear(folder)


def _clear(folder: Path) -> None:
    for place in folder.iterdir():
        shutil.rmtree(place)


def _is_wrong(case: Case) -> bool:
    if case.precision != "fp32" or case.state == "not made":
        return False
    return case.has_passed and case.is_visible if case.group != "good" else not case.has_passed


def _quietly() -> None:
    """One thread, and none of the frameworks' own warnings."""
    import torch

    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.simplefilter("ignore")


if __name__ == "__main__":
    sys.exit(main())
