"""How many planted faults the default feeds and limits find, over the attack set's nets.

    python -m modelc.benchmarks.sensitivity --faults 16 --out sensitivity.jsonl

Each net of tests/attacks that is of an ordinary kind is exported as its user would, and faults are
planted in what passed. The last lines count them by format and kind, and name what was missed at
any size. A fault at one size of many is missed where no feed has that size.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import modelc
from modelc.benchmarks.attack_run import NETS, as_job, write_inputs
from modelc.benchmarks.fork_jobs import warm_up

Row = dict[str, Any]
TARGETS = ("torchscript", "onnx", "openvino")


def rows_of(name: str, faults: int) -> list[Row]:
    """Every planted fault of one net, by format; none where modelc rejects the net."""
    job = as_job(name)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_inputs(job, folder)
        options = {k: v for k, v in job.options.items() if k not in ("judging", "lowering")}
        try:
            manifest = modelc.export(
                folder / "weights.pt", model=job.factory, to=TARGETS, inputs=job.inputs,
                samples=folder / "sample.npz" if job.sample else None, out=folder / "out",
                judging=modelc.Judging(sensitivity=faults),
                **options,  # type: ignore[arg-type]  # the table's own
            ).manifest  # fmt: skip
        except modelc.ModelcError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return []
    return list(_rows(name, manifest))


def _rows(name: str, manifest: modelc.Manifest) -> Iterator[Row]:
    for verdict in manifest.verdicts:
        for fault in verdict.sensitivity.faults if verdict.sensitivity else ():
            yield {
                "net": name, "artifact": verdict.artifact, "kind": fault.kind,
                "outcome": fault.outcome, "place": fault.place, "change": fault.change,
                "where": fault.where, "error": fault.error,
            }  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Counts by format and kind: found of those that change an output, and equivalents."""
    counts = Counter((row["artifact"], row["kind"], row["outcome"]) for row in rows)
    yield "| format | fault | planted | found | equivalent |"
    yield "| --- | --- | --: | --: | --: |"
    for artifact, kind in dict.fromkeys((row["artifact"], row["kind"]) for row in rows):
        found, missed, equal = (
            counts[artifact, kind, outcome] for outcome in ("found", "missed", "equivalent")
        )
        yield f"| {artifact} | {kind} | {found + missed} | {found} | {equal} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Read the options, plant, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=16, help="for each artifact")
    parser.add_argument("--out", type=Path, default=Path("sensitivity.jsonl"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", help="this net; repeatable")
    args = parser.parse_args(argv)
    sys.path.insert(0, str(NETS))
    from attack_case import attacks

    warm_up()
    names = args.only or [name for name, case in attacks().items() if case.good and not case.calib]
    rows: list[Row] = []
    with (
        args.out.open("w") as stream,
        ProcessPoolExecutor(
            args.jobs, mp_context=get_context("fork"), max_tasks_per_child=None
        ) as pool,
    ):
        for done in as_completed([pool.submit(rows_of, name, args.faults) for name in names]):
            for row in done.result():
                rows.append(row)
                stream.write(json.dumps(row) + "\n")
            stream.flush()
    print("\n".join(table(rows)))
    for row in rows:
        if row["outcome"] == "missed" and not row["where"]:
            print(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
