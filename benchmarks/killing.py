"""Kills runs of a tiny model with SIGKILL, and looks at what is left: `killing.py [--random N]`.

Runs are killed before every change that they make to the output folder, one after the other, and
at random moments. A run is a fork of this process, which has loaded the frameworks. After each:

* a manifest that is there can be read, and what of it passes its digests gives eager's outputs;
* once a command of modelc has looked at the folder (it finishes a commit that was begun), every
  artifact that the manifest names passes its digests, and nothing else has a model's name;
* no lock is held, and the next run finishes, with nothing of the killed one left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout

from modelc.converters.registry import target_named
from modelc.core.kinds import Capture
from modelc.core.manifest import Manifest
from modelc.pipeline.manifest_file import COMMIT_FOLDER, read_manifest
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.output_folder import FOLDER_LOCK
from modelc.pipeline.recorded_run import describe_changed_file, load_manifest
from modelc.pipeline.run_order import run
from modelc.sample_models.digits import build

MODELS = Path(__file__).resolve().parent.parent / "sample_models"
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"}
_WRITES = os.O_WRONLY | os.O_RDWR
_PEAK = 1e-3  # of the largest output; FP16 and other captures are within it


@dataclass
class Counts:
    """What was done and found."""

    kills: Counter[str] = field(default_factory=Counter)
    before: Counter[str] = field(default_factory=Counter)  # which change a kill came before
    found: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class Killing:
    """Runs into one output folder that are killed."""

    def __init__(self, to: tuple[str, ...], folder: Path) -> None:
        self.counts = Counts()
        self.out = folder / "out"
        source = Source(
            checkpoint=MODELS / "digits.safetensors",
            model="modelc.sample_models.digits:build",
            inputs=("x:float32[batch=1..4,1,8,8]",),
        )
        self.order = Order(source=source, wanted=tuple(map(Wanted.parse, to)), out=self.out)
        self.changed = replace(self.order, opset=18, capture=Capture.SCRIPT)
        self._eager = self._reference()

    def _reference(self) -> tuple[np.ndarray, np.ndarray]:
        from safetensors.torch import load_file

        module = build().eval()
        module.load_state_dict(load_file(MODELS / "digits.safetensors"))
        x = torch.rand((2, 1, 8, 8), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            return x.numpy(), module(x).numpy()

    def warm(self, aside: Path) -> None:
        """Load here what every run needs; no runtime with threads of its own is among it."""
        order = replace(self.order, wanted=(Wanted(target="torchscript"),))
        for number, one in enumerate((order, replace(order, capture=Capture.SCRIPT))):
            run(replace(one, out=aside / str(number)))

    def start_run(self, order: Order, prepare: Callable[[], object] = lambda: None) -> int:
        """Start a run; its process id."""
        if child := os.fork():
            return child
        code = 1
        try:
            os.setsid()
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            prepare()
            with warnings.catch_warnings(record=True):
                code = 0 if run(order).passed else 1
        finally:
            os._exit(code)

    def whole(self, order: Order) -> int:
        """A run to its end; its exit status."""
        return os.waitpid(self.start_run(order), 0)[1]

    def kill_before_change(self, number: int, order: Order) -> str:
        """A run that kills itself before its change of that number; which that was, or nothing."""
        read, write = os.pipe()
        status = os.waitpid(self.start_run(order, lambda: self._arm(number, write)), 0)[1]
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as stream:
            text = stream.read()
        return text if os.WIFSIGNALED(status) else ""

    def _arm(self, number: int, channel: int) -> None:
        left = [number]
        here = str(self.out.parent)

        def watch_change(event: str, values: tuple[object, ...]) -> None:
            if not values or not isinstance(values[0], str | os.PathLike):
                return
            writes = event == "open" and isinstance(values[2], int) and values[2] & _WRITES
            if not (writes or event in CHANGES) or not str(values[0]).startswith(here):
                return
            left[0] -= 1
            if left[0] < 0:
                os.write(channel, event.encode())
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch_change)

    def kill_after(self, seconds: float, order: Order) -> bool:
        """A run that is killed at that moment; whether it still ran."""
        child = self.start_run(order)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])

    def look(self, where: str, order: Order) -> None:
        """Hold what a kill left to what the page says, then let the next run finish."""
        self._hold(not self._is_locked(), where, "a lock is held")
        raw = read_manifest(self.out) if self.out.exists() else None
        self._check_right(raw, where)
        if (self.out / COMMIT_FOLDER).is_dir():
            self.counts.found["unfinished commit"] += 1
        if raw is not None or (self.out / COMMIT_FOLDER).is_dir():
            manifest = load_manifest(self.out)
            self._hold(
                self._check_right(manifest, where) == 0, where, "an artifact fails its digest"
            )
            named = {file.name for file in manifest.files}
        else:
            self.counts.found["no manifest yet"] += 1
            named = set()
        stray = {p.name for p in self.out.glob("model*")} - named
        self._hold(not stray, where, f"not in the manifest: {stray}")
        if any(self.out.glob(".work-*")):
            self.counts.found["a work folder, swept by the next run"] += 1
        self._hold(self.whole(order) == 0, where, "the next run did not finish")
        left = {p.name for p in self.out.glob(".*")}
        self._hold(not left, where, f"left by the next run: {left}")
        self._hold(
            self._check_right(read_manifest(self.out), where) == 0, where, "wrong in the end"
        )

    def _hold(self, holds: bool, where: str, fault: str) -> None:
        if not holds:
            self.counts.faults.append(f"{where}: {fault}")

    def _check_right(self, manifest: Manifest | None, where: str) -> int:
        """How many artifacts fail their digests; one that passes and is wrong is a fault."""
        changed = 0
        for artifact in (
            () if manifest is None or manifest.artifacts is None else manifest.artifacts
        ):
            if describe_changed_file(artifact, self.out):
                changed += 1
                self.counts.found["an artifact that its digest rejects, until the commit ends"] += 1
                continue
            verdict = manifest.verdict_of(artifact.name) if manifest else None
            self._hold(verdict is not None and verdict.passed, where, f"{artifact.name} unproven")
            self._hold(self._right(artifact.files[0].name), where, f"{artifact.name} is wrong")
        return changed

    def _right(self, name: str) -> bool:
        x, expected = self._eager
        read, write = os.pipe()
        if not (child := os.fork()):  # runtimes start threads, which a fork does not take along
            target = next(target_named(w.target) for w in self.order.wanted
                          if name.endswith(target_named(w.target).SUFFIX))  # fmt: skip
            manifest = read_manifest(self.out)
            if manifest is None:
                os._exit(1)
            with target.open_runner(self.out / name, "cpu", manifest.signature) as runner:
                found = next(iter(runner.run({"x": x}).values()))
            gap = float(np.abs(found - expected).max())
            os.write(write, b"1" if gap <= _PEAK * float(np.abs(expected).max()) else b"0")
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        with os.fdopen(read, "rb") as stream:
            return stream.read() == b"1"

    def _is_locked(self) -> bool:
        if not (self.out / FOLDER_LOCK).exists():
            return False
        lock = FileLock(self.out / FOLDER_LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            return True
        lock.release()
        self.counts.found["a lock file that nobody holds"] += 1
        return False

    def every_change(self, *, again: bool) -> None:
        """One kill before each change that a run makes; `again` over artifacts that stand there."""
        kind = "rebuild" if again else "first build"
        for number in range(10_000):
            shutil.rmtree(self.out, ignore_errors=True)
            if again and self.whole(self.changed) != 0:
                self.counts.faults.append("the run before did not finish")
            event = self.kill_before_change(number, self.order)
            if not event:
                return
            self.counts.kills[kind] += 1
            self.counts.before[event] += 1
            self.look(f"{kind}, {number} ({event})", self.order)

    def at_random(self, times: int, seed: int = 0) -> None:
        """Kills at random moments of a run, one after the other in the same folder."""
        dice = random.Random(seed)
        began = time.perf_counter()
        self.whole(self.order)
        usual = time.perf_counter() - began
        orders = (self.order, self.changed)
        while self.counts.kills["at random moments"] < times:
            if dice.random() < 0.3:  # noqa: PLR2004 - of them in a fresh folder
                shutil.rmtree(self.out, ignore_errors=True)
            order = orders[dice.randrange(2)]
            moment = dice.uniform(0.05, 1.0) * usual
            if self.kill_after(moment, order):
                self.counts.kills["at random moments"] += 1
                self.look(f"at random after {moment:.3f} s", order)


def main() -> int:
    """Kill as asked; exit with 1 where anything was found that must not be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", action="append", default=[])
    parser.add_argument("--random", type=int, default=100)
    parser.add_argument("--no-changes", action="store_true", help="only at random moments")
    given = parser.parse_args()
    torch.set_num_threads(1)  # a fork has no other threads
    with tempfile.TemporaryDirectory() as folder:
        killing = Killing(tuple(given.to or ["torchscript"]), Path(folder))
        killing.warm(Path(folder) / "warm")
        began = time.perf_counter()
        if not given.no_changes:
            killing.every_change(again=False)
            killing.every_change(again=True)
        killing.at_random(given.random)
        seconds = time.perf_counter() - began
    counts = {name: dict(value) if isinstance(value, Counter) else value
              for name, value in vars(killing.counts).items()}  # fmt: skip
    total = sum(killing.counts.kills.values())
    print(
        json.dumps({"to": given.to, "total": total, "seconds": round(seconds), **counts}, indent=1)
    )
    return 1 if killing.counts.faults else 0


if __name__ == "__main__":
    sys.exit(main())
