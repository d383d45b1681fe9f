"""A cold run of many tiny models, from the fork server and not: python benchmarks/cold_run.py.

Makes a project of 40 small nets to ONNX and runs it in turn with MODELC_PRELOAD=1 and =0, each
time from nothing. Prints wall and CPU seconds, and their ratios; exits 1 if a file of a model
differs between the two (the manifest, which holds times, is compared without them), or if the
ratio of the best wall times is above --limit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_NETS = '''"""Small nets of four kinds."""

import torch
from torch import nn


class Skip(nn.Module):
    """Two layers and what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(x)))


def build(kind: int = 0, width: int = 8) -> nn.Module:
    match kind:
        case 0:
            return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))
        case 1:
            return nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.LayerNorm(width))
        case 2:
            return nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, width, 3), nn.Flatten())
    return Skip(width)
'''
_HEAD = 'out = "out"\njobs = {jobs}\n\n[defaults]\nto = ["onnx"]\n'
_MODEL = """
[models.net{number}]
checkpoint = "net{number}.safetensors"
model = "tiny_nets:build"
model-arg = ["kind={kind}", "width={width}"]
input = ["x:float32[batch=1..4,8]"]
"""
_KINDS = 4
# Of a verdict, what does not depend on the time or the digest of what holds a time.
_FIGURES = ("artifact", "state", "passed", "outputs", "sqnr", "reasons")


@dataclass(frozen=True, kw_only=True)
class ColdRun:
    """Wall and CPU seconds of one run, and the digests of what it made."""

    wall: float
    cpu: float
    digests: dict[str, str]


def make_project(folder: Path, models: int, jobs: int) -> None:
    """Write the nets, their weights and modelc.toml."""
    import torch
    from safetensors.torch import save_file

    (folder / "tiny_nets.py").write_text(_NETS, encoding="utf-8")
    sys.path.insert(0, str(folder))
    import tiny_nets  # type: ignore[import-not-found]  # written above

    text = _HEAD.format(jobs=jobs)
    for number in range(models):
        kind, width = number % _KINDS, 8 + number
        torch.manual_seed(number)
        save_file(tiny_nets.build(kind, width).state_dict(), folder / f"net{number}.safetensors")
        text += _MODEL.format(number=number, kind=kind, width=width)
    (folder / "modelc.toml").write_text(text, encoding="utf-8")


def run_cold(folder: Path, *, preloads: bool) -> ColdRun:
    """Run the project from nothing.

    Raises:
        SystemExit: it failed; with its output.
    """
    shutil.rmtree(folder / "out", ignore_errors=True)
    environment = {**os.environ, "MODELC_PRELOAD": str(int(preloads))}
    used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    end = subprocess.run(
        [sys.executable, "-m", "modelc", "run", "--no-cache"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if end.returncode:
        raise SystemExit(f"modelc run exited {end.returncode}:\n{end.stdout}\n{end.stderr}")
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return ColdRun(wall=wall, cpu=cpu, digests=digests_of(folder / "out"))


def digests_of(out: Path) -> dict[str, str]:
    """Return the digest of each file of the models, and of the figures of their verdicts."""
    found = {}
    for path in sorted(out.rglob("*")):
        if not path.is_file() or "logs" in path.parts or path.name == "run.json":
            continue
        content = path.read_bytes()
        if path.name == "manifest.json":
            verdicts = json.loads(content)["verdicts"]
            figures = [{name: one.get(name) for name in _FIGURES} for one in verdicts]
            content = json.dumps(figures).encode()
        found[path.relative_to(out).as_posix()] = hashlib.sha256(content).hexdigest()
    return found


def main() -> int:
    """Read the options, measure, print, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3, help="runs of each")
    parser.add_argument("--limit", type=float, default=0.5, help="largest ratio that passes")
    args = parser.parse_args()
    runs: dict[bool, list[ColdRun]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as name:
        make_project(Path(name), args.models, args.jobs)
        for turn in range(args.turns):
            for preloads in (False, True):
                one = run_cold(Path(name), preloads=preloads)
                runs[preloads].append(one)
                how = "fork server" if preloads else "new processes"
                print(
                    f"{turn + 1}  {how:<14} {one.wall:6.1f} s wall {one.cpu:6.1f} s CPU", flush=True
                )
    wall = [min(one.wall for one in runs[preloads]) for preloads in (True, False)]
    cpu = [min(one.cpu for one in runs[preloads]) for preloads in (True, False)]
    differing = {
        file
        for one in (*runs[True], *runs[False])
        for file in {*one.digests, *runs[False][0].digests}
        if one.digests.get(file) != runs[False][0].digests.get(file)
    }
    print(
        f"{args.models} models, --jobs {args.jobs}: {wall[0]:.1f} s beside {wall[1]:.1f} s, ratio "
        f"{wall[0] / wall[1]:.2f} (CPU {cpu[0] / cpu[1]:.2f}), limit {args.limit:.2f}; "
        f"{len(differing)} of {len(runs[False][0].digests)} files differ"
    )
    for file in sorted(differing)[:10]:
        print(f"  {file}")
    return int(bool(differing) or wall[0] / wall[1] > args.limit)


if __name__ == "__main__":
    sys.exit(main())
