"""Times two commands as whole processes, turn by turn, and holds their ratio to a limit."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One side of a benchmark: what it is called, and the command line that runs it."""

    name: str
    argv: Sequence[str]


def compare(ours: Contender, plain: Contender, *, runs: int) -> float:
    """Run both `runs` times in turn, print the medians in seconds, return ours / plain.

    Turns are taken so that a machine that slows down does so for both.
    Raises SystemExit with the command's own output where a command fails.
    """
    seconds: dict[str, list[float]] = {plain.name: [], ours.name: []}
    for _ in range(runs):
        for side in (plain, ours):
            seconds[side.name].append(_time(side))
    for name, taken in seconds.items():
        spread = f"min {min(taken):.3f}, max {max(taken):.3f}, {runs} runs"
        print(f"{name:<28} median {median(taken):8.3f} s   ({spread})")
    return median(seconds[ours.name]) / median(seconds[plain.name])


def verdict(ratio: float, limit: float) -> int:
    """Print how the ratio stands to the limit; the exit code: 0 within, 1 beyond."""
    within = ratio <= limit
    print(f"ratio {ratio:.2f}, limit {limit:.2f}: {'within' if within else 'BEYOND'}")
    return 0 if within else 1


def _time(side: Contender) -> float:
    start = time.perf_counter()
    done = subprocess.run(side.argv, capture_output=True, text=True, check=False)
    taken = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(f"{side.name} exited {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return taken
