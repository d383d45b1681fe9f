"""Many models over many processes that share a cache: python benchmarks/shards.py.

Runs `modelc run --shard I/N` in N processes with a `file://` cache. One of them is killed and
started again, and one is started twice at the same time. Then merges the parts, and checks that
every model passed and that none was built to its end twice. The processes build the models
themselves: a child process for each model would take hours.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from unittest import mock

from modelc.benchmarks.growth import write_project

KILLED, DOUBLED = 1, 2  # parts


def main() -> int:
    """Read the options, run, check, print, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument(
        "--kill-after", type=int, default=5, help="models that the killed one built"
    )
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)  # of a process of this script
    args = parser.parse_args()
    if args.part:
        return _run_part(Path(), args.part[0], args.part[1])
    with tempfile.TemporaryDirectory(prefix="modelc-shards-") as folder:
        return _run_all(Path(folder), args)


def _run_all(root: Path, args: argparse.Namespace) -> int:
    write_project(root, args.models)
    began = time.perf_counter()
    parts = {str(n): _start(root, n, args.parts) for n in range(1, args.parts + 1)}
    parts["double"] = _start(root, DOUBLED, args.parts, name="double")
    killed = parts[str(KILLED)]
    while len(_builds(root, str(KILLED))) < args.kill_after and killed.poll() is None:
        time.sleep(0.1)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    kept = len(_builds(root, str(KILLED)))
    print(f"part {KILLED} was killed after {kept} models, and started again", flush=True)
    parts["again"] = _start(root, KILLED, args.parts, name="again")
    codes = {name: part.wait() for name, part in parts.items()}
    wall = time.perf_counter() - began
    merge = [
        sys.executable,
        "-m",
        "modelc",
        "merge",
        "--remote-cache",
        "file://" + str(root / "far"),
    ]
    began = time.perf_counter()
    merged = subprocess.run(
        [*merge, "--run-id", "r", "-o", "all", "--json"], cwd=root, capture_output=True, check=False
    )
    print(f"{args.models} models, {args.parts} parts: {wall:.1f} s; exit codes {codes}")
    print(f"merge: exit {merged.returncode}, {time.perf_counter() - began:.1f} s")
    return _check(root, merged.stdout, args.models)


def _check(root: Path, merged: bytes, count: int) -> int:
    """Return 1 if a model did not pass, or was built twice."""
    record = json.loads(merged)
    states = Counter(one["state"] for model in record["models"] for one in model["artifacts"])
    built = Counter(name for file in root.glob("builds-*") for name in _lines(file))
    twice = [name for name, times in built.items() if times > 1]
    print(f"states {dict(states)}; {built.total()} built, {len(twice)} of them twice {twice[:5]}")
    return int(states != {"passed": count} or bool(twice) or len(built) != count)


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").split()


def _builds(root: Path, name: str) -> list[str]:
    file = root / f"builds-{name}"
    return _lines(file) if file.exists() else []


def _start(root: Path, index: int, count: int, *, name: str = "") -> subprocess.Popen[bytes]:
    """Start a process for a part; processes of one part have folders of their own."""
    name = name or str(index)
    command = [sys.executable, "-m", "modelc.benchmarks.shards", "--part", f"{index}/{count}", name]
    log = (root / f"log-{name}").open("wb")
    return subprocess.Popen(command, cwd=root, stdout=log, stderr=subprocess.STDOUT)


def _run_part(root: Path, shard: str, name: str) -> int:
    """Run a part in this process, and note the name of each model that was built and stored."""
    from modelc.cli.app import run_cli
    from modelc.core.manifest import Manifest
    from modelc.pipeline.cache.step_cache import StepCache
    from modelc.pipeline.isolation import supervisor
    from modelc.pipeline.order import Order
    from modelc.pipeline.run_order import run

    def direct(order: Order, tell: object, **_: object) -> Manifest:
        return run(order, tell)  # type: ignore[arg-type]  # passed on as it came

    real = StepCache.keep

    def keep(self: StepCache, manifest: Manifest, folder: Path, model: str) -> int:
        stored = real(self, manifest, folder, model)
        if stored:
            with (root / f"builds-{name}").open("a", encoding="utf-8") as file:
                file.write(f"{model}\n")
        return stored

    # the second process of a part has no name of the run: it would publish the same part
    meeting = ["--run-id", "r"] if name != "double" else []
    command = [
        "run",
        "-q",
        "-k",
        "--shard",
        shard,
        "--remote-cache",
        f"file://{root.absolute()}/far",
    ]
    command += ["-o", f"out-{name}", "--cache-dir", f"cache-{name}", *meeting]
    isolated = mock.patch.object(supervisor, "run_isolated", direct)
    with isolated, mock.patch.object(StepCache, "keep", keep):
        return run_cli(command)


if __name__ == "__main__":
    sys.exit(main())
