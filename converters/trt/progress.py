"""How far a build is, from TensorRT's nested phases; and the way to cancel one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING

from ...core.contract import Advance

if TYPE_CHECKING:
    import tensorrt

PROGRESS_TOTAL = 1000  # what progress is counted in


@dataclass
class _Phase:
    parent: str | None
    steps: int
    done: int = 0


class BuildPhases:
    """Phases that run within steps of others; TensorRT may tell of them from several threads."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._running: dict[str, _Phase] = {}
        self._told = 0
        self._lock = Lock()

    def start(self, name: str, parent: str | None, steps: int) -> None:
        """A phase of so many steps begins, within the running step of `parent`."""
        with self._lock:
            self._running[name] = _Phase(parent=parent, steps=max(steps, 1))

    def step(self, name: str, step: int) -> None:
        """Step number `step`, counted from 0, is done."""
        with self._lock:
            phase = self._running.get(name)
            if phase is not None:
                phase.done = min(step + 1, phase.steps)
            self._tell()

    def finish(self, name: str) -> None:
        """The phase is over, whether it took all its steps or not."""
        with self._lock:
            phase = self._running.pop(name, None)
            if phase is not None and phase.parent is None:
                self._told = max(self._told, PROGRESS_TOTAL - 1)

    def _tell(self) -> None:
        """Tell where the outermost phase is, where that is further than was told."""
        tops = [name for name, phase in self._running.items() if phase.parent is None]
        if not tops:
            return
        done = int(PROGRESS_TOTAL * min(self._share(name) for name in tops))
        if done > self._told:
            self._told = done
            self._advance(done, PROGRESS_TOTAL)

    def _share(self, name: str) -> float:
        phase = self._running[name]
        within = [self._share(one) for one, p in self._running.items() if p.parent == name]
        running = sum(within) / len(within) if within else 0.0
        return min(1.0, (phase.done + min(running, 1.0)) / phase.steps)


def make_progress_monitor(
    trt: ModuleType, advance: Advance, stopped: Callable[[], bool]
) -> tensorrt.IProgressMonitor:
    """A monitor that tells progress and ends the build at its next step once `stopped` says so."""
    phases = BuildPhases(advance)

    class _Monitor(trt.IProgressMonitor):  # type: ignore[name-defined,misc]  # may not be installed
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            phases.start(phase_name, parent_phase or None, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            phases.step(phase_name, step)
            return not stopped()

        def phase_finish(self, phase_name: str) -> None:
            phases.finish(phase_name)

    return _Monitor()
