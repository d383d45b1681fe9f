"""The attack set, exported and judged apart from modelc: python -m modelc.benchmarks.attack.

Each net of tests/nets/attacks is exported as its user would; each artifact that passed is opened
with its runtime's defaults and run beside eager over the domain that the manifest claims. Exits 1
where a passed artifact is wrong, or a net of an ordinary kind (`good`) does not pass.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from modelc.benchmarks.attack_run import NETS, Job, as_job, run_attack
from modelc.benchmarks.fork_jobs import ForkJob, run_forks, warm_up

Record = dict[str, Any]
BAD = ("WRONG", "RAISES", "crashed", "hung")


def run_jobs(
    jobs: Sequence[Job], out: Path, *, at_once: int = 2, timeout: float = 300.0
) -> Iterator[Record]:
    """Run each job in a fork of this process, `at_once` at a time; records as they come."""
    warm_up()
    forks = []
    for job in jobs:
        folder = out / job.name
        folder.mkdir(parents=True, exist_ok=True)
        folder.with_suffix(".json").unlink(missing_ok=True)
        log = folder.with_suffix(".log")
        work = partial(_write_record, job, folder)
        forks.append(ForkJob(key=job, work=work, log=log, timeout=timeout))
    for job, _, hung in run_forks(forks, at_once=at_once):
        yield _read_record(job, out / job.name, hung=hung)


def _write_record(job: Job, folder: Path) -> None:
    record = run_attack(job, folder)
    draft = folder.with_suffix(".part")
    draft.write_text(json.dumps(record))
    draft.replace(folder.with_suffix(".json"))


def _read_record(job: Job, folder: Path, *, hung: bool) -> Record:
    result, log = folder.with_suffix(".json"), folder.with_suffix(".log")
    if result.exists():
        found: Record = json.loads(result.read_text())
        return found
    reason = log.read_text(errors="replace")[-600:] if log.exists() else ""
    lost = {"state": "hung" if hung else "crashed", "reason": reason}
    return {
        "name": job.name, "seconds": 0.0, "error": {}, "command": "",
        "artifacts": dict.fromkeys(job.targets, lost),
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What is asked of a run: wrong and falsely rejected are to be 0."""

    models: int
    artifacts: int
    states: Mapping[str, int]
    falsely: tuple[str, ...]

    @property
    def wrong(self) -> int:
        """Passed artifacts that are wrong, or reject what they claim to hold for."""
        return sum(self.states.get(state, 0) for state in ("WRONG", "RAISES"))

    def __str__(self) -> str:
        """One line, and the falsely rejected."""
        states = ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()))
        first = f"{self.models} models, {self.artifacts} artifacts: {states}; falsely rejected "
        return "\n".join([f"{first}{len(self.falsely)}", *(f"  {name}" for name in self.falsely)])


def count_states(records: Sequence[Record], table: Mapping[str, Any]) -> Counts:
    """Count the states; falsely rejected are targets of `good` nets that were not passed."""
    states: Counter[str] = Counter()
    falsely = []
    for record in records:
        case = table.get(record["name"])
        for target, one in record["artifacts"].items():
            states[one["state"]] += 1
            ordinary = case is not None and case.good and target not in case.unable
            if ordinary and one["state"] in ("failed", "rejected", "crashed", "hung"):
                falsely.append(f"{record['name']} {target}: {one['reason'][:150]}")
    artifacts = sum(states.values())
    return Counts(
        models=len(records), artifacts=artifacts, states=dict(states), falsely=tuple(falsely)
    )


def line(record: Mapping[str, Any]) -> str:
    """A line per net, and one more for each artifact that is not right."""
    states = " ".join(f"{target}={one['state']}" for target, one in record["artifacts"].items())
    lines = [f"{record['name']:<28}{record['seconds']:>6.1f} s  {states}"]
    domain = next((one["domain"] for one in record["artifacts"].values() if "domain" in one), "")
    lines += [f"    domain {domain}"] if domain else []
    for target, one in record["artifacts"].items():
        if one.get("narrow"):
            lines.append(f"    {target}: narrow: {'; '.join(one['narrow'])}")
        if one["state"] != "right":
            reason = " ".join(one["reason"].split())
            lines.append(f"    {target}: {one['state']}: {reason[-400:]}")
    return "\n".join(lines)


def table_of() -> Mapping[str, Any]:
    """The attack set by name."""
    if str(NETS) not in sys.path:
        sys.path.insert(0, str(NETS))
    from importlib import import_module

    found: Mapping[str, Any] = import_module("attack_case").attacks()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Read the options, run, print, write; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="names, as 'Above*'; with commas between")
    parser.add_argument("--family", default="*", help="as 'size*'")
    parser.add_argument("--good", action="store_true", help="only nets of an ordinary kind")
    parser.add_argument("--format", action="append", help="only this target; repeatable")
    parser.add_argument("--jobs", type=int, default=2, help="nets at once")
    parser.add_argument("--feeds", type=int, default=60, help="the least feeds of an artifact")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one net")
    parser.add_argument("--out", type=Path, default=Path("attack"), help="folder of the results")
    args = parser.parse_args(argv)
    table = table_of()
    names = [
        name for name, case in table.items()
        if any(fnmatch(name, one) for one in args.only.split(","))
        and fnmatch(case.family, args.family) and (case.good or not args.good)
    ]  # fmt: skip
    jobs = [replace(as_job(name), feeds=args.feeds) for name in names]
    if args.format:
        jobs = [replace(job, targets=_of(job.targets, args.format)) for job in jobs]
    args.out.mkdir(parents=True, exist_ok=True)
    return run_and_print(
        [job for job in jobs if job.targets], args.out.resolve(), args.jobs, args.timeout,
        lambda records: count_states(records, table),
    )  # fmt: skip


def run_and_print(
    jobs: Sequence[Job], out: Path, at_once: int, timeout: float,
    count: Callable[[Sequence[Record]], Counts],
) -> int:  # fmt: skip
    """Print each net when it is done, the counts at the end; all of it in results.json."""
    records = []
    for record in run_jobs(jobs, out, at_once=at_once, timeout=timeout):
        records.append(record)
        print(line(record), flush=True)
    counts = count(records)
    print(counts)
    (out / "results.json").write_text(json.dumps(records, indent=1))
    return int(bool(counts.wrong or counts.falsely or counts.states.get("crashed", 0)))


def _of(targets: Sequence[str], formats: Sequence[str]) -> tuple[str, ...]:
    return tuple(one for one in targets if one.partition(":")[0] in formats)


if __name__ == "__main__":
    sys.exit(main())
