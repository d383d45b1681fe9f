"""The user's module in float64, the reference for eager's own roundoff."""

from __future__ import annotations

import copy
import warnings
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ..core.call import Binding
from ..core.errors import first_line
from ..core.records import size_text
from ..core.torch_tools import intercept_calls, to_array
from .module_outputs import split_outputs
from .weights_on_use import (
    UncastWeightError,
    cast_weights_on_use,
    largest_use,
    share_parameters,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch
    from torch.overrides import TorchFunctionMode

    from ..core.contract import Feed, Outputs


_MEMORY_SHARE = 0.5  # of free memory, the most for a copy of the weights
_WIDTH = 8  # bytes of a float64
_WHOLE_COPY_LIMIT = 2**30  # bytes in float64 up to which all weights are copied: casting takes time
_CONCURRENT_COPIES = 3  # weights that one call may use
_DTYPE_CALLS = (
    "to", "type_as", "zeros", "ones", "full", "empty", "arange", "linspace", "tensor", "softmax",
    "log_softmax", "sum", "mean", "cumsum", "zeros_like", "ones_like", "full_like", "_cast_Float",
)  # fmt: skip
_GROUPED = "_grouped_mm"  # torch's kernel of experts
_SMALLER_DTYPES = (5, 6, 15)  # float16, float32 and bfloat16 as TorchScript counts dtypes


class Float64Error(Exception):  # not a ModelcError: the judge falls back to its table
    """The model cannot run in float64; the message says why in one line."""


def open_float64(
    module: torch.nn.Module,
    inputs: tuple[str, ...],
    binding: Binding,
    *,
    drop: Sequence[str] = (),
    whole: int = _WHOLE_COPY_LIMIT,
) -> Float64Module:
    """Return the module in float64: a copy, or beyond `whole` bytes with weights cast on use.

    Raises:
        Float64Error: it has quantized weights, cannot be copied, or memory is too small.
    """
    if _has_rounding_script(module):
        raise Float64Error("its TorchScript casts to a smaller float dtype")
    sizes = [tensor.numel() * _WIDTH for tensor in (*module.parameters(), *module.buffers())]
    lean = sum(sizes) > whole and not has_script(module)
    _check_memory(_CONCURRENT_COPIES * _WIDTH * largest_use(module) if lean else sum(sizes))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about gradients, which are not used
            float64_copy = share_parameters(module) if lean else copy.deepcopy(module).double()
    except Exception as error:
        raise Float64Error(f"it cannot be copied to float64: {first_line(error)}") from error
    return Float64Module(float64_copy, inputs, binding, lean=lean, drop=drop)


def _check_memory(needed: int) -> None:
    free = _free_memory()
    if free is not None and needed > _MEMORY_SHARE * free:
        raise Float64Error(
            f"its weights require {size_text(needed)} in float64, {size_text(free)} are free"
        )


def has_script(module: torch.nn.Module) -> bool:
    """Whether any submodule is TorchScript, whose operators bypass Python."""
    import torch

    return any(isinstance(part, torch.jit.ScriptModule) for part in module.modules())


class Float64Module:
    """The module with float64 weights and inputs: outputs without float32 roundoff.

    Float dtypes in the model's code are promoted to float64, so that `.float()` or
    `dtype=torch.float32` in forward does not round the reference. If `lean`, the weights stay
    float32 and are cast on use.
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
        """Run one feed; float outputs are float64.

        Raises:
            Float64Error: the model does not run in float64 (a custom operator, a constant in its
                code), or rounds to a smaller dtype.
        """
        import numpy as np
        import torch

        copies = [torch.from_numpy(np.array(feed[name], order="C")) for name in self._inputs]
        given = [one.double() if one.is_floating_point() else one for one in copies]
        try:
            cast = cast_weights_on_use(self._module) if self._lean else nullcontext()
            with torch.no_grad(), _default_float64(), _make_promotion_mode(), cast:
                value = self._binding.call(self._module, given)
        except Float64Error:
            raise
        except UncastWeightError as error:
            raise Float64Error(f"it is too large for a float64 copy, and {error}") from error
        except Exception as error:
            raise Float64Error(f"it does not run in float64: {first_line(error)}") from error
        tensors = split_outputs(value, reserved=self._inputs, drop=self._drop).tensors
        for name, tensor in tensors.items():
            if _is_smaller(tensor):
                dtype = str(tensor.dtype).removeprefix("torch.")
                raise Float64Error(f"its output {name!r} is {dtype}")
        return {name: to_array(tensor) for name, tensor in tensors.items()}


def _has_rounding_script(module: torch.nn.Module) -> bool:
    """Whether TorchScript code, which function modes do not see, names a smaller float dtype."""
    import torch

    scripts = [one for one in module.modules() if isinstance(one, torch.jit.ScriptModule)]
    graphs: list[Any] = [  # torch does not type them; the outermost script contains the others
        one.inlined_graph for one in scripts[:1] if hasattr(one, "inlined_graph")
    ]
    return any(
        _is_smaller_cast(node)
        for graph in graphs
        for kind in _DTYPE_CALLS
        for node in graph.findAllNodes(f"aten::{kind}", recurse=True)
    )


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
    """Return a mode that replaces smaller float dtypes by float64 in all calls."""
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
        if getattr(func, "__name__", "") == _GROUPED:
            return _multiply_groups(*args, **kwargs)
        named = {key: promote(value) for key, value in kwargs.items()}
        result = func(*(promote(value) for value in args), **named)
        _check_rounding(func, args, result)
        return result

    return intercept_calls(in_float64)


def _multiply_groups(
    rows: torch.Tensor, weights: torch.Tensor, *, offs: torch.Tensor, **_: object
) -> torch.Tensor:
    """Multiply each group of rows, up to its end in `offs`, by its weight; torch has no float64."""
    ends = [0, *offs.tolist()]
    made = rows.new_zeros(len(rows), weights.shape[-1])
    for start, end, weight in zip(ends, ends[1:], weights, strict=False):
        made[start:end] = rows[start:end] @ weight
    return made


def _check_rounding(func: Any, args: Sequence[object], result: object) -> None:
    """Reject a call that rounded float64 values: a cast by name, a float32 cache.

    Values that the smaller dtype represents exactly, such as the inputs, are allowed.

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
                raise Float64Error(f"its {name} rounds to {dtype}")


def _is_smaller(tensor: torch.Tensor) -> bool:
    import torch

    return tensor.is_floating_point() and tensor.dtype is not torch.float64


def _free_memory() -> int | None:
    """Return the memory available to a new process in bytes; None if unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123 - a kernel's file
            known = dict(line.split(":", 1) for line in lines)
        return int(known["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
