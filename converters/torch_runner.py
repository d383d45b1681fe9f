"""Runs what torch itself can load: TorchScript archives and exported programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..core.arrays import to_array
from ..core.contract import Array, Feed, Outputs
from ..core.errors import Hint, MissingError, Option
from ..core.tree import name_leaves
from .opened import RunnerBase, order_inputs, runner_error, text_lines

if TYPE_CHECKING:
    import torch


class TorchRunner(RunnerBase):
    """Calls `function` with tensors in the order of `inputs`.

    `outputs` renames the tensors that come back, where there are as many; None keeps the names
    that their places give them.
    """

    def __init__(
        self,
        function: Callable[[Sequence[torch.Tensor]], object],
        inputs: Sequence[str],
        *,
        outputs: Sequence[str] | None,
        device: str,
    ) -> None:
        self.inputs = tuple(inputs)
        self._function = function
        self._outputs = outputs
        self._device = device

    def run(self, feed: Feed) -> Outputs:
        """Run on tensors of their own memory; outputs come back as numpy arrays."""
        import torch

        given = order_inputs(feed, self.inputs)
        tensors = [torch.tensor(array, device=self._device) for array in given]
        try:
            with torch.no_grad():
                value = self._function(tensors)
        except Exception as error:  # the runtime's edge: torch raises anything
            raise runner_error("torch", error, _error_line(error)) from error
        found = name_leaves(
            value, lambda leaf: isinstance(leaf, torch.Tensor), taken=self.inputs
        ).found
        names = list(found)
        if self._outputs is not None and len(self._outputs) == len(names):
            names = list(self._outputs)
        tensors = [leaf for leaf in found.values() if isinstance(leaf, torch.Tensor)]
        return {name: to_array(t) for name, t in zip(names, tensors, strict=True)}


def _error_line(error: Exception) -> str:
    """TorchScript puts a trace of the user's source before what it has to say."""
    lines = text_lines(error)
    traced = any(line.startswith("Traceback of TorchScript") for line in lines)
    return lines[-1] if traced else ""


def check_device(device: str) -> None:
    """That torch has the device; TF32, which keeps 10 bits of mantissa, is switched off.

    Raises:
        MissingError: there is no CUDA device.
    """
    import torch

    if device != "cuda":
        return
    if not torch.cuda.is_available():
        raise MissingError(
            "torch sees no CUDA device", hint=Hint("use ", Option("device", "cpu")), option="device"
        )
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def torch_settings(device: str) -> dict[str, str]:
    """What is set in torch when it judges on this device; nothing on the CPU."""
    if device != "cuda":
        return {}
    names = ("torch.backends.cudnn.allow_tf32", "torch.backends.cuda.matmul.allow_tf32")
    return dict.fromkeys(names, "False")


def float_tensors(state: Mapping[str, torch.Tensor]) -> Iterator[Array]:
    """The float32 tensors of a state dict, each once though it has several names."""
    import torch

    dense = [value for value in state.values() if value.layout is torch.strided]
    for tensor in {value.data_ptr(): value for value in dense}.values():
        if tensor.dtype is torch.float32:
            yield to_array(tensor)
