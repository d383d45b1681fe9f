"""What a whole process costs: wall time, CPU time and peak memory."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One process: wall seconds, CPU seconds of it and its children, peak resident bytes."""

    wall: float
    cpu: float
    peak: int


def cost_of(argv: Sequence[str]) -> Cost:
    """Run a command to its end.

    Raises:
        SystemExit: the command failed; with its output.
    """
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            output.seek(0)
            raise SystemExit(f"{' '.join(argv)} exited {child.returncode}:\n{output.read()}")
    wall = time.perf_counter() - began
    return Cost(wall=wall, cpu=used.ru_utime + used.ru_stime, peak=used.ru_maxrss * 1024)


def costs_in_turn(argvs: Mapping[str, Sequence[str]], runs: int) -> dict[str, list[Cost]]:
    """Run each command `runs` times, taking turns: a machine that slows down does so for all."""
    costs: dict[str, list[Cost]] = {name: [] for name in argvs}
    for _ in range(runs):
        for name, argv in argvs.items():
            costs[name].append(cost_of(argv))
            print(name, costs[name][-1], flush=True)
    return costs
