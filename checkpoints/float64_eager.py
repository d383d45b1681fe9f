"""The user's module in float64: the reference that eager's own roundoff is measured against."""

from __future__ import annotations

import copy
import warnings
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ..core.call import Binding
from ..core.errors import first_line
from ..core.torch_tools import intercept_calls, to_array
from .module_outputs import split_outputs
from .weight_casting import UncastWeightError, cast_weights_on_use, share_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch
    from torch.overrides import TorchFunctionMode

    from ..core.contract import Array, Feed, Outputs

_MEMORY_SHARE = (
    0.5  # of the memory that is free: more than that for a copy of the weights is too much
)
_WIDTH = 8  # bytes of a float64
_WHOLE_COPY_LIMIT = (
    2**30
)  # bytes in float64 up to which a copy of all weights is made: casting takes time
_CONCURRENT_COPIES = 3  # weights that one call may take
_DTYPE_CALLS = (
    "to", "type_as", "zeros", "ones", "full", "empty", "arange", "linspace", "tensor", "softmax",
    "log_softmax", "sum", "mean", "cumsum", "zeros_like", "ones_like", "full_like", "_cast_Float",
)  # fmt: skip
_SMALLER_DTYPES = (5, 6, 15)  # float16, float32 and bfloat16 as TorchScript counts dtypes


class Float64Error(Exception):  # no error of anybody's: the judge falls back to its table
    """The model cannot be run in float64; the message is one line that says why."""


def open_float64(
    module: torch.nn.Module,
    inputs: tuple[str, ...],
    binding: Binding,
    *,
    drop: Sequence[str] = (),
    whole: int = _WHOLE_COPY_LIMIT,
) -> Float64Module:
    """The module in float64: a copy, or beyond `whole` bytes each weight when it is used.

    Raises:
        Float64Error: it holds quantized weights, cannot be copied, or memory is too small.
    """
    if _has_rounding_script(module):
        raise Float64Error("its TorchScript asks for a smaller float dtype, which would round it")
    sizes = [tensor.numel() * _WIDTH for tensor in (*module.parameters(), *module.buffers())]
    lean = sum(sizes) > whole and not has_script(module)
    _check_memory(_CONCURRENT_COPIES * max(sizes) if lean else sum(sizes))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of gradients, which nobody asks for
            twin = share_parameters(module) if lean else copy.deepcopy(module).double()
    except Exception as error:
        raise Float64Error(f"it cannot be copied in float64: {first_line(error)}") from error
    return Float64Module(twin, inputs, binding, lean=lean, drop=drop)


def _check_memory(needed: int) -> None:
    free = _free_memory()
    if free is not None and needed > _MEMORY_SHARE * free:
        raise Float64Error(
            f"its weights need {needed / 1e9:.1f} GB in float64, {free / 1e9:.1f} GB are free"
        )


def has_script(module: torch.nn.Module) -> bool:
    """Whether any part of it is TorchScript, whose operators pass through no Python."""
    import torch

    return any(isinstance(part, torch.jit.ScriptModule) for part in module.modules())


class Float64Module:
    """The module with float64 weights, fed float64: what each output would be without roundoff.

    Every float dtype that the model's code asks for is raised to float64 as well, so that a
    `.float()` or `dtype=torch.float32` in forward does not round the reference. `lean` says that
    the weights are float32 still, and are cast when they are used.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        inputs: tuple[str, ...],
        binding: Binding,
        *,
        lean: bool = False,
        drop: Sequence[str] = (),
    ) -> None:
        self._module = module
        self._inputs = inputs
        self._binding = binding
        self._lean = lean
        self._drop = tuple(drop)

    def run(self, feed: Feed) -> Outputs:
        """Run one feed; float outputs are float64, the others as they are.

        Raises:
            Float64Error: the model refuses float64 (a custom operator, a constant in its code), or
                rounds to less all the same.
        """
        import torch

        given = [
            _promote_to_float64(torch.from_numpy(_copy_input(feed[name]))) for name in self._inputs
        ]
        try:
            cast = cast_weights_on_use(self._module) if self._lean else nullcontext()
            with torch.no_grad(), _default_float64(), _make_promotion_mode(), cast:
                value = self._binding.call(self._module, given)
        except Float64Error:
            raise
        except UncastWeightError as error:
            raise Float64Error(f"it is too large for a copy in float64, and {error}") from error
        except Exception as error:
            raise Float64Error(f"it does not run in float64: {first_line(error)}") from error
        tensors = split_outputs(value, taken=self._inputs, drop=self._drop).tensors
        for name, tensor in tensors.items():
            if _is_smaller(tensor):
                dtype = str(tensor.dtype).removeprefix("torch.")
                raise Float64Error(f"its output {name!r} is {dtype} even so")
        return {name: to_array(tensor) for name, tensor in tensors.items()}


def _has_rounding_script(module: torch.nn.Module) -> bool:
    """Whether TorchScript code, which no function mode reaches, names a smaller float dtype."""
    import torch

    scripts = [one for one in module.modules() if isinstance(one, torch.jit.ScriptModule)]
    return any(
        _is_smaller_cast(node)
        for script in scripts[:1]  # the outermost holds the others
        if hasattr(script, "inlined_graph")
        for node in _dtype_nodes(script.inlined_graph)
    )


def _dtype_nodes(graph: Any) -> Iterator[torch._C.Node]:  # torch does not type its graphs
    """Nodes that cast, make a tensor, or compute in a dtype that they name."""
    for kind in _DTYPE_CALLS:
        yield from graph.findAllNodes(f"aten::{kind}", recurse=True)


def _is_smaller_cast(node: torch._C.Node) -> bool:
    """Whether a constant dtype argument of the node is float32 or smaller."""
    import torch

    if node.schema() == "(no schema)":
        return False
    names = [argument.name for argument in torch._C.parse_schema(node.schema()).arguments]
    for name, value in zip(names, node.inputs(), strict=False):
        constant: object = value.toIValue() if name == "dtype" else None
        if isinstance(constant, int) and constant in _SMALLER_DTYPES:
            return True
    return False


@contextmanager
def _default_float64() -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _make_promotion_mode() -> TorchFunctionMode:
    """A mode in which every call that asks for a smaller float dtype gets float64."""
    import torch

    smaller = {torch.float32, torch.float16, torch.bfloat16}
    methods = {torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16}

    def promote(value: object) -> object:
        if isinstance(value, torch.dtype) and value in smaller:
            return torch.float64
        return value

    def in_float64(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func in methods:
            return args[0].double()
        named = {key: promote(value) for key, value in kwargs.items()}
        result = func(*(promote(value) for value in args), **named)
        _refuse_rounding(func, args, result)
        return result

    return intercept_calls(in_float64)


def _refuse_rounding(func: Any, args: Sequence[object], result: object) -> None:
    """Refuse a call that turned float64 into less all the same: a cast by name, a float32 cache.

    Values that float32 holds as they are, such as the inputs themselves, lose nothing.

    Raises:
        Float64Error: values were rounded.
    """
    import torch

    name = getattr(func, "__name__", str(func))
    into = args[0] if name == "__setitem__" else result
    if not isinstance(into, torch.Tensor) or not _is_smaller(into):
        return
    for value in args:
        if isinstance(value, torch.Tensor) and value.dtype is torch.float64:
            kept = value.to(into.dtype).to(torch.float64)
            if not torch.equal(kept.nan_to_num(), value.nan_to_num()):
                dtype = str(into.dtype).removeprefix("torch.")
                raise Float64Error(f"its {name} rounds to {dtype} all the same")


def _is_smaller(tensor: torch.Tensor) -> bool:
    import torch

    return tensor.is_floating_point() and tensor.dtype is not torch.float64


def _promote_to_float64(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _copy_input(array: Array) -> Array:
    import numpy as np

    return np.array(array, order="C")


def _free_memory() -> int | None:
    """Bytes that the system says are free for a new process; None where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123 - a kernel's file
            known = dict(line.split(":", 1) for line in lines)
        return int(known["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
