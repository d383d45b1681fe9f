"""How the cost of a `modelc run` with nothing to do grows: python benchmarks/growth.py.

Makes a project of N tiny models for each N, builds it once, and times runs of a whole process that
finds every artifact up to date. The models are built in the process of this script: a child
process for each would take hours, and what they leave is the same.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from unittest import mock

from modelc.benchmarks.process_cost import costs_in_turn

HEAD = """\
out = "out"
keep-going = true
[defaults]
to = "torchscript"
model = "nets:build"
input = "x:float32[2,4]"
feeds = 5
"""
FACTORY = "import torch\n\n\ndef build():\n    return torch.nn.Linear(4, 3)\n"


def main() -> int:
    """Read the options, build, time, print, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--runs", type=int, default=5, help="turns of each")
    parser.add_argument("--limit", type=float, help="seconds that the largest may take")
    parser.add_argument("--folder", type=Path, help="keep the projects here, and reuse them")
    args = parser.parse_args()
    with contextlib.ExitStack() as held:
        root = args.folder or Path(held.enter_context(tempfile.TemporaryDirectory()))
        argvs = {str(count): _prepare(root / str(count), count) for count in args.models}
        costs = costs_in_turn(argvs, args.runs)
    best = {name: min(cost.wall for cost in runs) for name, runs in costs.items()}
    for name, runs in costs.items():
        walls, cpus = [cost.wall for cost in runs], [cost.cpu for cost in runs]
        print(
            f"{name:>6} models: wall {median(walls):.2f} s (least {best[name]:.2f}), "
            f"CPU {median(cpus):.2f} s"
        )
    last = str(args.models[-1])
    return int(args.limit is not None and best[last] > args.limit)


def _prepare(folder: Path, count: int) -> list[str]:
    """Build a project, and return the command of a run with nothing to do."""
    write_project(folder, count)
    began = time.perf_counter()
    with in_this_process():
        from modelc.cli.app import run_cli

        command = ["run", "-q", "-f", str(folder / "modelc.toml"), "-o", str(folder / "out")]
        command += ["--cache-dir", str(folder / "cache")]
        stdout = sys.stdout
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            sys.stdout = nowhere
            try:
                code = run_cli(command)
            finally:
                sys.stdout = stdout
    if code != 0:
        raise SystemExit(f"modelc {' '.join(command)} exited {code}")
    print(f"{count} models built in {time.perf_counter() - began:.0f} s", flush=True)
    time.sleep(2.5)  # digests of younger files are not remembered
    argv = [sys.executable, "-m", "modelc", *command]
    costs_in_turn({f"first of {count}": argv}, 1)
    return argv


def write_project(folder: Path, count: int) -> None:
    """Write a project of tiny models, each with weights of its own."""
    import torch
    from safetensors.torch import save_file

    if (folder / "modelc.toml").exists():
        return
    (folder / "weights").mkdir(parents=True)
    (folder / "nets.py").write_text(FACTORY, encoding="utf-8")
    lines = [HEAD]
    for number in range(count):
        torch.manual_seed(number)
        weights = dict(torch.nn.Linear(4, 3).state_dict())
        save_file(weights, folder / "weights" / f"m{number:04}.safetensors")
        lines.append(f'[models.m{number:04}]\ncheckpoint = "weights/m{number:04}.safetensors"\n')
    (folder / "modelc.toml").write_text("".join(lines), encoding="utf-8")


@contextlib.contextmanager
def in_this_process() -> Iterator[None]:
    """Run models without child processes."""
    from modelc.pipeline.isolation import supervisor
    from modelc.pipeline.run_order import run

    def direct(order: object, tell: object, **_: object) -> object:
        return run(order, tell)  # type: ignore[arg-type]  # passed on as they came

    with mock.patch.object(supervisor, "run_isolated", direct):
        yield


if __name__ == "__main__":
    sys.exit(main())
