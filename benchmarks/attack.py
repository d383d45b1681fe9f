"""The attack set, exported and judged apart from modelc: python -m modelc.benchmarks.attack.

Each net of tests/attacks/nets is exported as its user would; each artifact that passed is opened
with its runtime's defaults and run beside eager over the domain that the manifest claims. Exits 1
where a passed artifact is wrong, or a net of an ordinary kind (`good`) is refused.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from modelc.benchmarks.attack_run import NETS, Job, as_job, carry_out
from modelc.benchmarks.coverage_warm import warmed

Record = dict[str, Any]
BAD = ("WRONG", "RAISES", "crashed", "hung")
_PAUSE = 0.1


@dataclass(frozen=True, kw_only=True)
class _Child:
    job: Job
    folder: Path
    until: float


def run_jobs(
    jobs: Sequence[Job], out: Path, *, at_once: int = 2, timeout: float = 300.0
) -> Iterator[Record]:
    """Each job in a fork of this process, `at_once` at a time; records as they come."""
    warmed()
    left = list(reversed(jobs))
    running: dict[int, _Child] = {}
    try:
        while left or running:
            while left and len(running) < at_once:
                job = left.pop()
                folder = out / job.name
                until = time.monotonic() + timeout
                running[_forked(job, folder)] = _Child(job=job, folder=folder, until=until)
            for pid, child in list(running.items()):
                if _ended(pid, child):
                    del running[pid]
                    yield _left_by(child)
            time.sleep(_PAUSE)
    finally:
        for pid in running:
            os.killpg(pid, signal.SIGKILL)


def _forked(job: Job, folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    result = folder.with_suffix(".json")
    result.unlink(missing_ok=True)
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        log = os.open(folder.with_suffix(".log"), os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        record = carry_out(job, folder)
        result.with_suffix(".part").write_text(json.dumps(record))
        result.with_suffix(".part").replace(result)
    finally:
        os._exit(0)


def _ended(pid: int, child: _Child) -> bool:
    done, _ = os.waitpid(pid, os.WNOHANG)
    if done:
        return True
    if time.monotonic() < child.until:
        return False
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def _left_by(child: _Child) -> Record:
    result = child.folder.with_suffix(".json")
    if result.exists():
        found: Record = json.loads(result.read_text())
        return found
    log = child.folder.with_suffix(".log")
    said = log.read_text(errors="replace")[-600:] if log.exists() else ""
    over = time.monotonic() >= child.until
    lost = {"state": "hung" if over else "crashed", "reason": said}
    return {
        "name": child.job.name, "seconds": 0.0, "error": {}, "command": "",
        "artifacts": dict.fromkeys(child.job.targets, lost),
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
        """Passed artifacts that are wrong, or refuse what they claim to hold for."""
        return sum(self.states.get(state, 0) for state in ("WRONG", "RAISES"))

    def __str__(self) -> str:
        """One line, and the falsely rejected."""
        states = ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()))
        first = f"{self.models} models, {self.artifacts} artifacts: {states}; falsely rejected "
        return "\n".join([f"{first}{len(self.falsely)}", *(f"  {name}" for name in self.falsely)])


def counted(records: Sequence[Record], table: Mapping[str, Any]) -> Counts:
    """Count the states; falsely rejected are targets of `good` nets that were not passed."""
    states: Counter[str] = Counter()
    falsely = []
    for record in records:
        case = table.get(record["name"])
        for target, one in record["artifacts"].items():
            states[one["state"]] += 1
            ordinary = case is not None and case.good and target not in case.unable
            if ordinary and one["state"] in ("refused", "rejected", "crashed", "hung"):
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
        lambda records: counted(records, table),
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
