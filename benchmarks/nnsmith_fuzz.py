"""Differential fuzzing with random nets: python -m modelc.benchmarks.nnsmith_fuzz NETS --out DIR.

NETS is a folder that nnsmith_make.py wrote. Each net is exported without ranges to TorchScript,
ONNX and OpenVINO, and what passed is judged by the oracle of attack.py. The last lines count the
nets, what is wrong, exit 70, and what did not pass by its cause. Exits 1 where any is wrong or 70.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from modelc.benchmarks.attack import Counts, Record, line, run_jobs
from modelc.benchmarks.attack_run import Job

if TYPE_CHECKING:
    from torch import nn

TARGETS = ("torchscript", "onnx", "openvino")
FEEDS = 50
_LONG = 90


def job_of(path: Path) -> Job:
    """The net of one file; its folder is importable."""
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)

    def build() -> nn.Module:
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(module.SEED)
            net: nn.Module = module.Net()
        return net.eval()

    return Job(
        name=path.stem, factory=f"{path.stem}:Net", build=build, inputs=module.INPUTS,
        targets=TARGETS, feeds=FEEDS,
    )  # fmt: skip


def cause_of(reason: str) -> str:
    """The reason without what differs from net to net."""
    text = re.sub(r"\(at [^)]*\)", "", reason)
    text = re.sub(r"\[[^\]]*\]|'[^']*'|\"[^\"]*\"", "_", text)
    text = re.sub(r"[-+]?\d[\d.e+-]*", "N", text)
    return " ".join(text.split())[:_LONG]


def causes_of(records: Sequence[Record]) -> Counter[tuple[str, str]]:
    """By target and cause how many artifacts are not there."""
    return Counter(
        (f"{target} {one['state']}", cause_of(one["reason"]))
        for record in records
        for target, one in record["artifacts"].items()
        if one["state"] in ("failed", "rejected", "hung", "crashed")
    )


def counts_of(records: Sequence[Record]) -> Counts:
    """As for the attack set; no random net is of an ordinary kind."""
    states = Counter(one["state"] for record in records for one in record["artifacts"].values())
    return Counts(
        models=len(records), artifacts=sum(states.values()), states=dict(states), falsely=()
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Read the options, go on where the last run stopped, print the counts; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", type=Path)
    parser.add_argument("--out", type=Path, default=Path("fuzz"), help="folder of the results")
    parser.add_argument("--limit", type=int, default=1000, help="at most so many nets")
    parser.add_argument("--only", type=int, action="append", help="this seed; repeatable")
    parser.add_argument("--jobs", type=int, default=2, help="nets at once")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one net")
    args = parser.parse_args(argv)
    paths = sorted(args.nets.resolve().glob("net_*.py"), key=lambda path: int(path.stem[4:]))
    if args.only:
        paths = [path for path in paths if int(path.stem[4:]) in args.only]
    args.out.mkdir(parents=True, exist_ok=True)
    results = args.out / "results.jsonl"
    known = results.read_text().splitlines() if results.exists() and not args.only else []
    records: list[Record] = [json.loads(text) for text in known]
    done = {record["name"] for record in records}
    jobs = [job_of(path) for path in paths[: args.limit] if path.stem not in done]
    with results.open("a") as stream:
        ran = run_jobs(jobs, args.out.resolve(), at_once=args.jobs, timeout=args.timeout)
        for record in ran:
            records.append(record)
            stream.write(json.dumps(record) + "\n")
            stream.flush()
            print(line(record), flush=True)
    counts = counts_of(records)
    print(counts)
    for (what, cause), count in causes_of(records).most_common():
        print(f"{count:>5}  {what:<22} {cause}")
    return int(bool(counts.wrong or counts.states.get("crashed", 0)))


if __name__ == "__main__":
    sys.exit(main())
