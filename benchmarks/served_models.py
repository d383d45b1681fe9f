"""Judge six models of a repository, and planted faults, on a real tritonserver.

python -m modelc.benchmarks.served_models [--packed REPO --work DIR]

Exports two nets in three formats and two precisions, writes a repository, serves it with NVIDIA's
tritonserver, and runs `modelc validate --served` for each model over gRPC and HTTP.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from modelc.benchmarks.served_repository import (
    GOOD,
    ServedCase,
    export_folders,
    plant_faults,
    write_repository,
)
from modelc.benchmarks.triton_server import host_environment, run_triton

MODELC = (sys.executable, "-m", "modelc")


def pack(work: Path, repository: Path) -> Path | None:
    """Pack both folders with `modelc pack`; None if it cannot."""
    command = [*MODELC, "pack", str(work / "digits"), str(work / "twin"), "--to", "triton", "-q"]
    ran = subprocess.run([*command, "-o", str(repository)], capture_output=True, check=False)
    return repository if ran.returncode == 0 else None


def judge(work: Path, url: str, case: ServedCase) -> tuple[dict[str, Any], float]:
    """Run the command for one model; return its JSON document and the seconds."""
    began = time.perf_counter()
    ran = subprocess.run(
        [*MODELC, "validate", str(work / case.folder), "--served", url, "--model", case.model,
         "--artifact", case.artifact, "--json", "-q"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    if ran.returncode not in (0, 1, 6) or not ran.stdout.startswith("{"):
        return {"error": {"code": f"exit {ran.returncode}"}}, seconds
    found: dict[str, Any] = json.loads(ran.stdout)
    return (found["judged"][0] if "judged" in found else found), seconds


def row(case: ServedCase, protocol: str, found: dict[str, Any], seconds: float) -> str:
    """Return a row of the table."""
    verdict = found.get("verdict")
    if verdict is None:
        code = found.get("error", {}).get("code", "")
        return f"| {case.model} | {protocol} | 0 | | not served | {code} | {seconds:.1f} |"
    sqnr = [one["sqnr"] for one in verdict["outputs"] if one.get("sqnr") is not None]
    least = f"{min(sqnr):.1f}" if sqnr else ""
    codes = ", ".join(dict.fromkeys(one["code"] for one in verdict.get("reasons", ())))
    feeds = len(verdict["feeds"])
    state = {"failed": "rejected"}.get(verdict["state"], verdict["state"])
    return f"| {case.model} | {protocol} | {feeds} | {least} | {state} | {codes} | {seconds:.1f} |"


def main() -> int:
    """Read the options, serve, judge, print; 1 if a good model fails or a fault passes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packed", type=Path, help="a repository of `modelc pack` to serve too")
    parser.add_argument("--work", type=Path, help="where the folders are, or will be exported to")
    given = parser.parse_args()
    if host_environment() is None:
        print("tritonserver is not installed: make test-serve makes its environment")
        return 4
    with tempfile.TemporaryDirectory() as folder:
        work = given.work or Path(folder)
        if not (work / "twin/manifest.json").exists():
            export_folders(work)
        repository = Path(folder) / "repository"
        packed = given.packed or pack(work, Path(folder) / "packed")
        if packed is None:
            print("without modelc pack: the repository is written by hand", file=sys.stderr)
            write_repository(work, repository)
        faults = plant_faults(work, repository)
        packed_option = () if packed is None else (f"--model-repository={packed}",)
        with run_triton(repository, Path(folder) / "server", *packed_option, ready=False) as server:
            time.sleep(5)  # a model that does not load keeps the server from being ready
            return report(work, {"grpc": server.grpc, "http": server.http}, faults)


def report(work: Path, urls: dict[str, str], faults: tuple[ServedCase, ...]) -> int:
    """Judge all models, and print a table."""
    print("| model | protocol | feeds | SQNR dB | verdict | reasons | seconds |")
    print("|---|---|---|---|---|---|---|")
    wrong = 0
    for case in GOOD:
        for protocol, url in urls.items():
            found, seconds = judge(work, url, case)
            wrong += found.get("verdict", {}).get("state") != "passed"
            print(row(case, protocol, found, seconds), flush=True)
    for case in faults:
        found, seconds = judge(work, urls["grpc"], case)
        wrong += found.get("verdict", {}).get("state") == "passed"
        print(row(case, "grpc", found, seconds), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
