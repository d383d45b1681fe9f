"""The base class of runners, the check of feeds, and the runner of torch formats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from ..core.contract import Array, Converted, Feed, Inspection, Job, Outputs, Readiness
from ..core.dims import Dim
from ..core.errors import (
    LOGGED,
    ConversionError,
    Hint,
    MissingError,
    Option,
    RunnerError,
    first_line,
)
from ..core.kinds import Capture, Precision
from ..core.nested_values import name_leaves
from ..core.records import Coverage
from ..core.signature import InputSpec
from ..core.torch_tools import to_array

if TYPE_CHECKING:
    import torch

Opened = TypeVar("Opened", bound="RunnerBase")


class RunnerBase:
    """Base class of runners: a context manager that closes itself."""

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
        """Release the runtime's resources."""


class JudgedOnly:
    """Base class of targets that are judged as a format is, and neither convert nor describe."""

    NAME = ""
    SUMMARY = ""
    SUFFIX = ""
    MADE_FROM: Mapping[Precision, str] = {}
    CAPTURES: tuple[Capture, ...] = ()
    DEVICES: tuple[str, ...] = ("cpu",)

    def readiness(self) -> Readiness:
        """Return that it is ready: it was prepared before."""
        return Readiness(ready=True)

    def claims(self, _: Path) -> bool:
        """Return False: it has no files of its own."""
        return False

    def convert(self, job: Job) -> Converted:
        """Raise: there is nothing to convert."""
        raise ConversionError(f"{self.NAME} makes no file", hint=f"{job.stem} needs another format")

    def inspect(self, path: Path) -> Inspection:
        """Raise: it describes no file."""
        raise RunnerError(f"{path} is no file of {self.NAME}", hint="inspect an artifact")

    def coverage(self, path: Path, example: Feed, device: str) -> Coverage | None:  # noqa: ARG002 - the contract's
        """Return None: its compute dtypes are not measured."""
        return None


def order_inputs(feed: Feed, names: Sequence[str]) -> list[Array]:
    """Return the feed's arrays in the order of `names`.

    Raises:
        RunnerError: the feed lacks an input of the model.
    """
    for name in names:
        if name not in feed:
            raise RunnerError(
                f"the model requires {name!r}, which the signature lacks",
                hint=f"name the inputs as the model does: {', '.join(names)}",
            )
    return [feed[name] for name in names]


def nodes_between(
    makers: Mapping[str, str],
    reads: Mapping[str, Sequence[str]],
    known: Collection[str],
    wanted: Iterable[str],
) -> set[str]:
    """Return the names of the nodes that compute the wanted tensors from the known ones.

    A wanted tensor is computed even if it is known.

    Args:
        makers: the node by each tensor that it computes.
        reads: the tensors that each node reads.
        known: tensors that are given or constant.
        wanted: tensors.

    Raises:
        RunnerError: a tensor is neither known nor computed.
    """
    needed: set[str] = set()
    waiting = list(wanted)
    while waiting:
        tensor = waiting.pop()
        maker = makers.get(tensor)
        if maker is None and tensor not in known:
            raise RunnerError(
                f"the model requires {tensor!r}, which is neither given nor computed",
                hint="name the inputs as the model does",
            )
        if maker is not None and maker not in needed:
            needed.add(maker)
            waiting += [name for name in reads[maker] if name not in known]
    return needed


def runner_error(runtime: str, error: BaseException, detail: str = "") -> RunnerError:
    """Return the error for a runtime that cannot run a feed or open a file.

    Args:
        runtime: its name in the message.
        error: the exception.
        detail: the part of the exception's text with the reason, if not its first line.
    """
    line = first_line(RuntimeError(detail) if detail else error)
    return RunnerError(f"{runtime}: {line}", hint=LOGGED)


def text_lines(error: BaseException) -> list[str]:
    """Return the non-empty lines of an exception's text."""
    return [line.strip() for line in str(error).splitlines() if line.strip()]


_FEED_HINT = "give inputs within the exported signature"


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
                    f"dim {dim.name} is {sizes[dim.name]}, but {size} in {spec.name}",
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
    if dim.relation is None or dim.name is None:
        return
    if dim.is_sum:
        kept = dim.size({dim.name: sizes[dim.name], **sizes}) == sizes[dim.name]
    else:
        base = dim.free_size(sizes[dim.name])
        kept = base is not None and sizes.get(dim.relation.base, base) == base
    if not kept:
        raise RunnerError(
            f"dim {dim.name} is {sizes[dim.name]}, not {dim.relation}", hint=_FEED_HINT
        )


class TorchRunner(RunnerBase):
    """Calls `function` with tensors in the order of `inputs`.

    `outputs` renames the returned tensors if their number matches; None keeps positional names.
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
        """Run on tensors with memory of their own; return numpy arrays."""
        import torch

        given = order_inputs(feed, self.inputs)
        tensors = [torch.tensor(array, device=self._device) for array in given]
        try:
            with torch.no_grad():
                value = self._function(tensors)
        except Exception as error:  # torch raises anything here
            lines = text_lines(error)  # TorchScript's message follows a trace of the user's source
            traced = any(line.startswith("Traceback of TorchScript") for line in lines)
            raise runner_error("torch", error, lines[-1] if traced else "") from error
        found = name_leaves(
            value, lambda leaf: isinstance(leaf, torch.Tensor), reserved=self.inputs
        ).found
        names = list(found)
        if self._outputs is not None and len(self._outputs) == len(names):
            names = list(self._outputs)
        tensors = [leaf for leaf in found.values() if isinstance(leaf, torch.Tensor)]
        return {name: to_array(t) for name, t in zip(names, tensors, strict=True)}

    def prepare(self, feed: Feed) -> Callable[[], object]:
        """Return a call on tensors, which takes and returns no arrays."""
        import torch

        given = order_inputs(feed, self.inputs)
        tensors = [torch.tensor(array, device=self._device) for array in given]
        return make_torch_call(lambda some: lambda: self._function(some), tensors, self._device)


def make_torch_call(
    bind: Callable[[Sequence[torch.Tensor]], Callable[[], object]],
    tensors: Sequence[torch.Tensor],
    device: str,
) -> Callable[[], object]:
    """Return a call without gradients, which ends when the device has.

    Tensors that the model writes to get their values back before each run: they must not drift.

    Args:
        bind: returns the call of the model on tensors.
        tensors: the inputs.
        device: of the tensors.
    """
    import torch

    copies = [tensor.clone() for tensor in tensors]
    calls = [bind(tensors)]

    def restore_and_call() -> object:
        for tensor, copy in zip(tensors, copies, strict=True):
            tensor.copy_(copy)
        return calls[0]()

    def copy_and_call() -> object:  # the model changes the shape of an input
        return bind([tensor.clone() for tensor in copies])()

    def call() -> object:
        with torch.inference_mode():
            found = calls[-1]()
        if device == "cuda":
            torch.cuda.synchronize()
        if len(calls) == 1:  # the first run shows whether the model writes to its inputs
            kept = all(map(torch.equal, tensors, copies))
            shaped = all(a.shape == b.shape for a, b in zip(tensors, copies, strict=True))
            restore = restore_and_call if shaped else copy_and_call
            calls.append(calls[0] if kept else restore)
        return found

    return call


def check_device(device: str) -> None:
    """Check that torch has the device, and disable TF32, which keeps 10 bits of mantissa.

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
    """Return torch's settings when it judges on this device; empty on the CPU."""
    names = ("torch.backends.cudnn.allow_tf32", "torch.backends.cuda.matmul.allow_tf32")
    return dict.fromkeys(names, "False") if device == "cuda" else {}


def float_tensors(state: Mapping[str, torch.Tensor]) -> Iterator[Array]:
    """Yield the float32 tensors of a state dict, each once even if it has several names."""
    import torch

    dense = [value for value in state.values() if value.layout is torch.strided]
    for tensor in {value.data_ptr(): value for value in dense}.values():
        if tensor.dtype is torch.float32:
            yield to_array(tensor)
