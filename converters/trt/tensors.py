"""Memory that torch owns and TensorRT writes to."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import tensorrt
    import torch


def addressable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one block of memory with an address; an empty one has none by itself."""
    block = tensor.contiguous()
    return block if block.numel() else block.new_empty(1)


class OutputMemory:
    """The memory of one output, fixed before the run or grown while it lasts.

    `error` is what went wrong while it grew.
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
        """Take memory for this shape; its address."""
        import torch

        self._shape = tuple(shape)
        self._block = addressable(torch.empty(self._shape, dtype=self._dtype, device=self._device))
        return self._block.data_ptr()

    def grow(self, size: int) -> int:
        """Memory of at least `size` bytes; its address, 0 where there is none."""
        import torch

        try:
            if self._block is None or self._block.nbytes < size:
                self._block = torch.empty(max(size, 1), dtype=torch.uint8, device=self._device)
        except RuntimeError as error:  # out of memory; an exception would be swallowed
            self.error = error
            return 0
        return self._block.data_ptr()

    def notify(self, shape: Sequence[int]) -> None:
        """The shape that the output turned out to have."""
        self._shape = tuple(shape)

    def tensor(self) -> torch.Tensor:
        """What was written, in its shape."""
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
    """Memory for an output, with the allocator that asks for it where its shape is not known."""
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
    """A profiler for one execution context."""

    class _LayerTimes(trt.IProfiler):  # type: ignore[name-defined,misc]  # may not be installed
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.totals: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.totals[layer_name] = self.totals.get(layer_name, 0.0) + ms

    times: LayerTimes = _LayerTimes()
    return times
