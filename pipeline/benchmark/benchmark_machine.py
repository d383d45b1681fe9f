"""The machine of a benchmark: processor, frequencies, versions, and the load of other processes."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ...converters.installed_packages import package_versions
from ...core.process import count_cores
from ..diagnose import cpuinfo_value
from .benchmark_records import BenchmarkMachine

_PACKAGES = (
    "torch", "onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt", "tensorrt-rtx-cu13", "numpy",
)  # fmt: skip
_WINDOW = 1.0  # seconds
_LOADED_SHARE = 0.05  # of the cores, in the median window
_LOADED_WINDOWS = 0.2  # of the cores, in the busiest tenth of windows
_TICK = 100 if os.name != "posix" else os.sysconf("SC_CLK_TCK")


@dataclass(kw_only=True)
class Turn:
    """One turn: the seconds of CPU time that its row used."""

    cpu: float = 0.0


class LoadWatch:
    """Measures the share of the cores that other processes use while rows run.

    The kernel counts in ticks of 10 ms, so turns are added up to windows of a second.
    """

    def __init__(self) -> None:
        self._shares: list[float] = []
        self._other = self._elapsed = 0.0  # of the open window
        self.load_before = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """Watch one turn."""
        one, busy, own = Turn(), busy_seconds(), time.process_time()
        began = time.perf_counter()
        yield one
        after = busy_seconds()
        if busy is None or after is None:
            return
        self._elapsed += time.perf_counter() - began
        self._other += after - busy - one.cpu - (time.process_time() - own)
        if self._elapsed >= _WINDOW:
            self._shares.append(max(self._other, 0.0) / (self._elapsed * count_cores()))
            self._other = self._elapsed = 0.0

    @property
    def other_load(self) -> float:
        """The median share of the cores that others used."""
        return median(self._shares) if self._shares else 0.0

    @property
    def is_loaded(self) -> bool:
        """Whether others used so much that small differences cannot be believed."""
        if not self._shares:
            return False
        busiest = sorted(self._shares)[int(0.9 * (len(self._shares) - 1))]
        return self.other_load > _LOADED_SHARE or busiest > _LOADED_WINDOWS


def choose_cores(threads: int) -> tuple[int, ...]:
    """Return the cores that so many threads stay on: one of each physical core first.

    Empty if they need all cores, or if the system does not say which this process may use.
    """
    if not hasattr(os, "sched_getaffinity"):
        return ()
    mine = sorted(os.sched_getaffinity(0))
    if threads >= len(mine):
        return ()
    seen: dict[str, int] = {}  # hardware threads by physical core
    ranked = []
    for core in mine:
        siblings = str(core)
        with suppress(OSError):
            siblings = Path(
                f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
            ).read_text()
        ranked.append((seen.setdefault(siblings, 0), core))
        seen[siblings] += 1
    return tuple(core for _, core in sorted(ranked)[:threads])


def busy_seconds() -> float | None:
    """Return the seconds that this process's cores have been busy; None if unknown.

    Counts time that a hypervisor gave to other guests as busy, too: it was not ours.
    """
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    except (OSError, AttributeError):
        return None
    total = 0
    for line in lines:
        name, *fields = line.split()
        if name in mine:
            user, nice, system, _idle, _wait, irq, soft, steal = map(int, fields[:8])
            total += user + nice + system + irq + soft + steal
    return total / _TICK


def core_frequency() -> float | None:
    """Return the mean frequency of the cores in MHz; None if unknown."""
    found: list[float] = []
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        found = [float(one) for one in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", text, re.M)]
    return round(sum(found) / len(found), 1) if found else None


def describe_machine(watch: LoadWatch, before: float | None) -> BenchmarkMachine:
    """Return the record of this machine after a benchmark; `before` is the frequency then."""
    frequencies = [one for one in (before, core_frequency()) if one is not None]
    return BenchmarkMachine(
        processor=_processor_name(),
        cores=count_cores(),
        memory=_memory_bytes(),
        system=platform.platform(),
        python=platform.python_version(),
        versions=package_versions(*_PACKAGES),
        frequencies=tuple(frequencies),
        load_before=round(watch.load_before, 2),
        other_load=round(watch.other_load, 4),
        loaded=watch.is_loaded,
    )


def _processor_name() -> str:
    with suppress(OSError):
        if name := cpuinfo_value(Path("/proc/cpuinfo").read_text(), "model name"):
            return name
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0
