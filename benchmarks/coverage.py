"""How many models modelc takes: python -m modelc.benchmarks.coverage --out DIR --write PAGE.

Each case is exported to four formats as its user would (`modelc export`), and what modelc
passed is opened and compared with eager once more, on fresh feeds, without modelc's judge. With
--against the raw capture paths run on the same cases and feeds. One process a case, with a time
limit; DIR/results.jsonl holds the results, and a run goes on where the last one stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from modelc.benchmarks import coverage_run
from modelc.benchmarks.coverage_run import PARTS, UNSTATED, WRONG, read_results
from modelc.benchmarks.coverage_table import page
from modelc.benchmarks.fork_jobs import ForkJob, fork, redirect, run_forks, warm_up
from modelc.tests.nets.cases import FAMILIES, Case, cases

_ON_PURPOSE = "large"  # the family that runs only when it is named


def main(argv: Sequence[str] | None = None) -> int:
    """Read the options, run what has no result yet, write the page; 1 where modelc is WRONG."""
    args = _arguments(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    results = Results(path=args.out / "results.jsonl")
    parts = [PARTS[0], *(["raw"] if args.against else []), *([UNSTATED] if args.unstated else [])]
    chosen = [case for case in cases() if _is_selected(case, args.only, args.family)]
    known = set() if args.again else set(results.read())
    work = {
        case.name: [part for part in parts if (case.name, part) not in known] for case in chosen
    }
    _carry_out_all([case for case in chosen if work[case.name]], work, args, results)
    found = results.read()
    if args.write is not None:
        args.write.write_text(page(list(cases()), found))
    return int(any(_is_wrong(record) for (_, part), record in found.items() if part != "raw"))


def _carry_out_all(
    chosen: Sequence[Case],
    work: Mapping[str, Sequence[str]],
    args: argparse.Namespace,
    results: Results,
) -> None:
    """Run the cases, `--jobs` at once, and write each down when it is done."""
    if args.warm:
        warm_up()
        for case, records in run_warm(chosen, work, args):
            _record_case(case, records, args.out / case.name, results)
        return
    pool = ThreadPoolExecutor(args.jobs)
    try:
        running = {
            pool.submit(run_case, case, work[case.name], args.out / case.name, args.timeout): case
            for case in chosen
        }
        for done in as_completed(running):
            case = running[done]
            _record_case(case, done.result(), args.out / case.name, results)
    finally:  # when it is interrupted, those that run come to their end and no other begins
        pool.shutdown(cancel_futures=True)


def _record_case(
    case: Case, records: Mapping[str, dict[str, Any]], folder: Path, results: Results
) -> None:
    """Write a case's results down and print them; of its files only what was said is kept."""
    for part, record in records.items():
        results.add(case, part, record)
        _print_case(case.name, part, record)
    for leftover in folder.iterdir():
        if leftover.suffix not in (".json", ".txt"):
            if leftover.is_dir():  # from which a process that was stopped may still remove files
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink()


def _empty_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder.resolve()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="names, as 'qwen*'; with commas between")
    parser.add_argument("--family", choices=FAMILIES, help="'large' runs only when named here")
    parser.add_argument("--jobs", type=int, default=1, help="cases at once")
    parser.add_argument("--warm", action="store_true", help="fork the processes: quicker")
    parser.add_argument("--against", action="store_true", help="the raw capture paths as well")
    parser.add_argument("--unstated", action="store_true", help="modelc without ranges as well")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument("--out", type=Path, default=Path("coverage"), help="folder of the results")
    parser.add_argument("--write", type=Path, help="the page to write")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds, for each part")
    return parser.parse_args(argv)


def _is_selected(case: Case, only: str, family: str | None) -> bool:
    if not any(fnmatch(case.name, pattern) for pattern in only.split(",")):
        return False
    return case.family == family if family else case.family != _ON_PURPOSE


@dataclass(frozen=True, kw_only=True)
class Results:
    """The file of results, a line a case and part; a later line replaces an earlier one."""

    path: Path

    def read(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The records by name and part; a last line that was cut off is dropped from the file."""
        text = self.path.read_text() if self.path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self.path.write_text(whole)
        rows = [json.loads(line) for line in whole.splitlines()]
        return {(row["name"], row["part"]): row["record"] for row in rows}

    def add(self, case: Case, part: str, record: Mapping[str, object]) -> None:
        """Write one down."""
        row = {"name": case.name, "family": case.family, "part": part, "record": record}
        with self.path.open("a") as stream:
            stream.write(json.dumps(row) + "\n")


def run_case(
    case: Case, parts: Sequence[str], folder: Path, timeout: float
) -> dict[str, dict[str, Any]]:
    """Run the parts in a process of their own; what it left without a result crashed or hung."""
    _empty_folder(folder)
    command = [sys.executable, "-m", "modelc.benchmarks.coverage_run", case.name, str(folder)]
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [*command, *parts],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(),
            start_new_session=True,
        )
        try:
            ending = f"the process ended with {process.wait(timeout * len(parts))}"
        except subprocess.TimeoutExpired:
            ending = f"no end after {timeout * len(parts):.0f} s"
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return read_results(folder, parts, ending)


def run_warm(
    chosen: Sequence[Case], work: Mapping[str, Sequence[str]], args: argparse.Namespace
) -> Iterator[tuple[Case, dict[str, dict[str, Any]]]]:
    """Run the cases in forks of this process, `--jobs` at once; results as they come."""
    jobs = []
    for case in chosen:
        parts, folder = work[case.name], _empty_folder(args.out / case.name)
        jobs.append(
            ForkJob(
                key=case,
                work=partial(coverage_run.main, case.name, folder, parts, command=_call_in_fork),
                log=folder / "log.txt",
                timeout=args.timeout * len(parts),
            )
        )
    for case, ending, _ in run_forks(jobs, at_once=args.jobs):
        yield case, read_results((args.out / case.name).resolve(), work[case.name], ending)


def _call_in_fork(argv: Sequence[str], folder: Path) -> coverage_run.Ran:
    """Run the command line of modelc in a fork of its own."""
    from modelc.cli.app import main

    out, err = folder / "stdout.txt", folder / "stderr.txt"

    def run() -> None:
        os.chdir(folder)
        redirect(out, 1)
        redirect(err, 2)
        sys.argv = ["modelc", *argv[3:]]  # without `python -m modelc`
        main()

    _, status = os.waitpid(fork(run), 0)
    code = os.waitstatus_to_exitcode(status)
    return coverage_run.Ran(returncode=code, stdout=out.read_text(), stderr=err.read_text())


def _environment() -> dict[str, str]:
    """One thread, nothing from the net, and none of the frameworks' own chatter."""
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    return {**os.environ, "OMP_NUM_THREADS": "1", **quiet}


def _print_case(name: str, part: str, record: Mapping[str, Any]) -> None:
    results = {key: one["result"] for key, one in record["results"].items()}
    shown = ", ".join(f"{key} {result}" for key, result in results.items())
    print(f"{name:<28}{part:<8}{shown or 'crashed'}", flush=True)


def _is_wrong(record: Mapping[str, Any]) -> bool:
    return any(one["result"] == WRONG for one in record["results"].values())


if __name__ == "__main__":
    sys.exit(main())
