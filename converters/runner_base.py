"""The base class of runners, the check of feeds, and the runner for what torch loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from ..core.contract import Array, Feed, Outputs
from ..core.dims import Dim
from ..core.errors import LOGGED, Hint, MissingError, Option, RunnerError, first_line
from ..core.nested_values import name_leaves
from ..core.signature import InputSpec
from ..core.torch_tools import to_array

if TYPE_CHECKING:
    import torch

Opened = TypeVar("Opened", bound="RunnerBase")


class RunnerBase:
    """Base of the runners: enters as itself, drops what it holds on the way out."""

    inputs: tuple[str, ...] = ()

    def __enter__(self: Opened) -> Opened:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back what the runtime holds."""


def order_inputs(feed: Feed, names: Sequence[str]) -> list[Array]:
    """The feed's arrays in the order of `names`.

    Raises:
        RunnerError: the model takes an input that the feed does not have.
    """
    for name in names:
        if name not in feed:
            raise RunnerError(
                f"the model takes {name!r}, which no input of the signature gives",
                hint=f"name the inputs as the model does: {', '.join(names)}",
            )
    return [feed[name] for name in names]


def runner_error(runtime: str, error: BaseException, telling: str = "") -> RunnerError:
    """The error for a runtime that would not run a feed or open a file.

    Args:
        runtime: as the message names it.
        error: what it raised.
        telling: what of the error's text says why, where that is not its first line.
    """
    line = first_line(RuntimeError(telling) if telling else error)
    return RunnerError(f"{runtime}: {line}", hint=LOGGED)


def text_lines(error: BaseException) -> list[str]:
    """The lines of an error's text that hold anything."""
    return [line.strip() for line in str(error).splitlines() if line.strip()]


_FEED_HINT = "give what the model was exported for"


def check_feed(feed: Feed, specs: Sequence[InputSpec]) -> None:
    """Check dtypes, ranks, fixed sizes, ranges, and sizes that belong together.

    Raises:
        RunnerError: an array does not fit; the message names input, dim and size.
    """
    sizes: dict[str, int] = {}
    for spec in specs:
        array = feed[spec.name]
        _check_form(array, spec)
        for axis, (dim, size) in enumerate(zip(spec.dims, array.shape, strict=True)):
            _check_size(dim, size, f"dim {dim.name or axis} of {spec.name}")
            if dim.name is not None and sizes.setdefault(dim.name, size) != size:
                raise RunnerError(
                    f"dim {dim.name} is {sizes[dim.name]}, and {size} in {spec.name}",
                    hint=_FEED_HINT,
                )
    for dim in (dim for spec in specs for dim in spec.dims):
        _check_relation(dim, sizes)


def _check_form(array: Array, spec: InputSpec) -> None:
    if str(array.dtype) != spec.dtype:
        raise RunnerError(f"{spec.name} is {array.dtype}, not {spec.dtype}", hint=_FEED_HINT)
    if array.ndim != len(spec.dims):
        raise RunnerError(
            f"{spec.name} has {array.ndim} dims {tuple(array.shape)}, not {len(spec.dims)}",
            hint=_FEED_HINT,
        )


def _check_size(dim: Dim, size: int, where: str) -> None:
    if not dim.dynamic and size != dim.opt:
        raise RunnerError(f"{where} is {size}, not {dim.opt}", hint=_FEED_HINT)
    if dim.dynamic and dim.bounded and not dim.low <= size <= dim.high:
        raise RunnerError(f"{where} is {size}, outside {dim.low}..{dim.high}", hint=_FEED_HINT)
    if size < min(dim.low, 1):
        raise RunnerError(f"{where} is {size}", hint=_FEED_HINT)


def _check_relation(dim: Dim, sizes: Mapping[str, int]) -> None:
    """That a size which follows from another one does."""
    if dim.relation is None or dim.name is None:
        return
    base = dim.relation.base_of(sizes[dim.name])
    if base is None or sizes.get(dim.relation.base, base) != base:
        raise RunnerError(
            f"dim {dim.name} is {sizes[dim.name]}, not {dim.relation}", hint=_FEED_HINT
        )


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
            value, lambda leaf: isinstance(leaf, torch.Tensor), reserved=self.inputs
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
