"""Objects that TensorRT calls back: log, progress monitor, output memory and layer profiler."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from ...core.contract import Advance

if TYPE_CHECKING:
    import tensorrt
    import torch

_LOG = logging.getLogger(__name__)
_MAX_ERRORS = 20  # the first names the cause, the last its effect
# Logged as errors, and the build goes on.
_SIDE_ERROR = re.compile(r"timing cache|skipping tactic", re.IGNORECASE)


class ErrorLog(Protocol):
    """An ILogger that collects errors, and the layers that a builder logs."""

    errors: list[str]
    layers: str

    @property
    def reason(self) -> str:
        """The first errors in one line; errors that end nothing only if there are no others."""
        ...


def make_error_log(trt: ModuleType) -> ErrorLog:
    """Make a logger for TensorRT objects; they must not outlive it."""

    class _ErrorLog(trt.ILogger):  # type: ignore[name-defined,misc]  # may not be installed
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.layers = ""
            severity = trt.ILogger.Severity
            self._grave = (severity.INTERNAL_ERROR, severity.ERROR)
            self._levels = {
                severity.WARNING: logging.WARNING,
                severity.INFO: logging.INFO,
            }

        def log(self, severity: tensorrt.ILogger.Severity, msg: str) -> None:
            if severity in self._grave:
                _LOG.error("%s", msg)
                self.errors = [*self.errors, msg][-_MAX_ERRORS:]
            elif msg.startswith("Layers:"):
                self.layers = layers_in_log(msg)
            else:
                _LOG.log(self._levels.get(severity, logging.DEBUG), "%s", msg)

        @property
        def reason(self) -> str:
            errors = list(dict.fromkeys(" ".join(error.split()) for error in self.errors))
            causes = [error for error in errors if not _SIDE_ERROR.search(error)]
            return "; ".join((causes or errors)[:2]) or "TensorRT gave no reason"

    log: ErrorLog = _ErrorLog()
    return log


# The builder of TensorRT-RTX logs each layer of an engine in one line, with no GPU. Operands are
# final; the kernel is chosen when the engine is loaded, so a line has a placeholder for it.
BUILDER_LOG_SOURCE = "operands in the builder's log; kernels are chosen when the engine is loaded"
_PLACEHOLDER = "__myelin_CASK_STUB"
_LAYER = re.compile(
    r"Name: (?P<name>.*), LayerType: (?P<kind>\w*), Inputs: \[(?P<inputs>.*)\], "
    r"Constants: \[(?P<constants>.*)\], Outputs: \[(?P<outputs>.*)\], "
    r"TacticName: (?P<tactic>.*), StreamId: \d+, Metadata: (?P<metadata>.*)"
)
_TENSOR = re.compile(
    r"\{ Name: (?P<name>.*?), Dimensions: \[(?P<dims>[-\d,]*)\].*?, Datatype: (?P<type>\w+)"
)


def layers_in_log(message: str) -> str:
    """Return the layers in the form of the engine inspector's JSON; empty if there are none.

    A line of another form is kept as a bare name, as of a layer without details.
    """
    rows = [_parse_line(line) for line in message.splitlines() if line.startswith("Name: ")]
    return json.dumps({"Layers": rows}) if rows else ""


def _parse_line(line: str) -> str | dict[str, object]:
    found = _LAYER.fullmatch(line)
    if found is None:
        return line.removeprefix("Name: ").partition(",")[0]
    tactic = found["tactic"]
    return {
        "Name": found["name"],
        "LayerType": found["kind"],
        "Inputs": _parse_tensors(found["inputs"]),
        "Constants": _parse_tensors(found["constants"]),
        "Outputs": _parse_tensors(found["outputs"]),
        "TacticName": "" if tactic == _PLACEHOLDER else tactic,
        "Metadata": found["metadata"],
    }


def _parse_tensors(text: str) -> list[dict[str, object]]:
    return [
        {
            "Name": one["name"],
            "Dimensions": [int(size) for size in one["dims"].split(",") if size],
            "Datatype": one["type"],
        }
        for one in _TENSOR.finditer(text)
    ]


PROGRESS_TOTAL = 1000  # units of progress


@dataclass
class _Phase:
    parent: str | None
    steps: int
    done: int = 0


class BuildPhases:
    """Nested build phases; TensorRT may report them from several threads."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._running: dict[str, _Phase] = {}
        self._reported = 0
        self._lock = Lock()

    def start(self, name: str, parent: str | None, steps: int) -> None:
        """Start a phase of `steps` steps within the current step of `parent`."""
        with self._lock:
            self._running[name] = _Phase(parent=parent, steps=max(steps, 1))

    def step(self, name: str, step: int) -> None:
        """Finish step `step`, counted from 0."""
        with self._lock:
            phase = self._running.get(name)
            if phase is not None:
                phase.done = min(step + 1, phase.steps)
            self._report()

    def finish(self, name: str) -> None:
        """Finish the phase, whether or not all its steps ran."""
        with self._lock:
            phase = self._running.pop(name, None)
            if phase is not None and phase.parent is None:
                self._reported = max(self._reported, PROGRESS_TOTAL - 1)

    def _report(self) -> None:
        """Report the progress of the outermost phase, never backwards."""
        tops = [name for name, phase in self._running.items() if phase.parent is None]
        if not tops:
            return
        done = int(PROGRESS_TOTAL * min(self._share(name) for name in tops))
        if done > self._reported:
            self._reported = done
            self._advance(done, PROGRESS_TOTAL)

    def _share(self, name: str) -> float:
        phase = self._running[name]
        within = [self._share(one) for one, p in self._running.items() if p.parent == name]
        running = sum(within) / len(within) if within else 0.0
        return min(1.0, (phase.done + min(running, 1.0)) / phase.steps)


def make_progress_monitor(
    trt: ModuleType, advance: Advance, stopped: Callable[[], bool]
) -> tensorrt.IProgressMonitor:
    """Make a monitor that reports progress and stops the build at a step once `stopped()`."""
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


def addressable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor contiguous and with an address, which an empty tensor lacks."""
    block = tensor.contiguous()
    return block if block.numel() else block.new_empty(1)


class OutputMemory:
    """The memory of one output, allocated before the run or during it.

    `error` is the exception of an allocation during the run.
    """

    def __init__(self, name: str, dtype: torch.dtype, device: torch.device) -> None:
        self.name = name
        self.error: Exception | None = None
        self.allocator: tensorrt.IOutputAllocator | None = None
        self._dtype = dtype
        self._device = device
        self._block: torch.Tensor | None = None
        self._shape: tuple[int, ...] = ()

    def allocate(self, shape: Sequence[int]) -> int:
        """Allocate memory for this shape; return its address."""
        import torch

        self._shape = tuple(shape)
        self._block = addressable(torch.empty(self._shape, dtype=self._dtype, device=self._device))
        return self._block.data_ptr()

    def grow(self, size: int) -> int:
        """Allocate at least `size` bytes; return the address, 0 on failure."""
        import torch

        try:
            if self._block is None or self._block.nbytes < size:
                self._block = torch.empty(max(size, 1), dtype=torch.uint8, device=self._device)
        except RuntimeError as error:  # out of memory; an exception would be swallowed
            self.error = error
            return 0
        return self._block.data_ptr()

    def notify(self, shape: Sequence[int]) -> None:
        """Set the actual shape of the output."""
        self._shape = tuple(shape)

    def tensor(self) -> torch.Tensor:
        """Return the output in its shape."""
        import torch

        if self._block is None:  # an output of no elements asks for no memory
            return torch.empty(self._shape, dtype=self._dtype, device=self._device)
        elements = 1
        for size in self._shape:
            elements *= size
        flat = self._block.view(-1).view(torch.uint8)
        return flat[: elements * self._dtype.itemsize].view(self._dtype).reshape(self._shape)


def make_output_memory(
    trt: ModuleType, name: str, dtype: torch.dtype, device: torch.device
) -> OutputMemory:
    """Make the memory of an output, with an allocator for a shape that depends on data."""
    memory = OutputMemory(name, dtype, device)

    class _Allocator(trt.IOutputAllocator):  # type: ignore[name-defined,misc]  # may not be installed
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)

        def reallocate_output(
            self,
            tensor_name: str,  # noqa: ARG002 - one allocator for each output
            memory_: int,  # noqa: ARG002 - the last address: torch keeps it
            size: int,
            alignment: int,  # noqa: ARG002 - torch aligns to more than TensorRT asks for
        ) -> int:
            return memory.grow(size)

        def reallocate_output_async(
            self,
            tensor_name: str,  # noqa: ARG002
            memory_: int,  # noqa: ARG002
            size: int,
            alignment: int,  # noqa: ARG002
            stream: int,  # noqa: ARG002 - torch's current stream is this one
        ) -> int:
            return memory.grow(size)

        def notify_shape(self, tensor_name: str, shape: Sequence[int]) -> None:  # noqa: ARG002
            memory.notify(shape)

    memory.allocator = _Allocator()
    return memory


class LayerTimes(Protocol):
    """An IProfiler that adds up milliseconds by layer name."""

    totals: dict[str, float]


def make_layer_profiler(trt: ModuleType) -> LayerTimes:
    """Make a profiler for one execution context."""

    class _LayerTimes(trt.IProfiler):  # type: ignore[name-defined,misc]  # may not be installed
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.totals: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.totals[layer_name] = self.totals.get(layer_name, 0.0) + ms

    times: LayerTimes = _LayerTimes()
    return times
