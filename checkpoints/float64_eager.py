"""The user's module in float64, the reference for eager's own roundoff."""

from __future__ import annotations

import copy
import warnings
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ..core.call import Binding
from ..core.errors import first_line
from ..core.records import size_text
from ..core.torch_tools import flatten_tensors, intercept_calls, intercept_operators, to_array
from .module_outputs import split_outputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

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
    _check_memory(_CONCURRENT_COPIES * max(sizes) if lean else sum(sizes))
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


# Weights in float64 one at a time: cast when a call uses them, freed afterwards.

# Metadata of a weight, available without a cast.
_METADATA_CALLS = frozenset((
    "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "is_contiguous",
    "get_device", "__len__", "__hash__", "__bool__",
))  # fmt: skip
_METADATA_PROPERTIES = frozenset((
    "shape", "ndim", "device", "layout", "requires_grad", "grad", "is_cuda", "is_sparse",
    "is_quantized", "is_mkldnn", "is_meta", "is_leaf", "names", "grad_fn",
))  # fmt: skip


class UncastWeightError(Exception):  # not a ModelcError: there is no reference then
    """A weight was used without a cast, or written to; the message says how in one line."""


def share_parameters(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of the module with the same parameters, and its buffers in float64."""
    copied = copy.deepcopy(module, {id(p): p for p in module.parameters()})
    for part in copied.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                part._buffers[name] = buffer.double()
    return copied


@contextmanager
def cast_weights_on_use(module: torch.nn.Module) -> Iterator[None]:
    """Cast float parameters of the module to float64 in every call within the context.

    Raises:
        UncastWeightError: a call used a parameter without a cast, as TorchScript does.
    """
    floats = {id(p): p for p in module.parameters() if p.is_floating_point()}
    copies = _Float64Copies()
    with ExitStack() as modes:
        modes.enter_context(_make_guard_mode(floats, copies))
        modes.enter_context(_make_cast_mode(floats, copies))
        yield


class _Float64Copies:
    """The float64 copies of weights that are alive."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}

    def of(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight in float64."""
        from torch.multiprocessing.reductions import StorageWeakRef

        gone = [key for key, storage in self._storages.items() if storage.expired()]  # type: ignore[no-untyped-call]  # torch's own
        for key in gone:
            del self._storages[key]
        made = weight.double()
        storage = StorageWeakRef(made.untyped_storage())  # type: ignore[no-untyped-call]  # torch's own
        self._storages[storage.cdata] = storage
        return made

    def hold(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor shares memory with one of the copies."""
        return tensor.untyped_storage()._cdata in self._storages


def _make_cast_mode(
    weights: Mapping[int, torch.Tensor], copies: _Float64Copies
) -> TorchFunctionMode:
    import torch

    def cast(value: object) -> object:
        if isinstance(value, list | tuple) and any(id(one) in weights for one in value):
            return type(value)(cast(one) for one in value)
        if isinstance(value, torch.Tensor) and id(value) in weights:
            return copies.of(value)
        return value

    def cast_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        property_name = (
            getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else ""
        )
        if property_name == "dtype" and id(args[0]) in weights:
            return torch.float64
        if property_name in _METADATA_PROPERTIES or name in _METADATA_CALLS:
            return func(*args, **kwargs)
        if _is_lookup(func, args, kwargs):
            return func(*args, **kwargs).double()
        named = {key: cast(value) for key, value in kwargs.items()}
        return func(*map(cast, args), **named)

    return intercept_calls(cast_arguments)


def _is_lookup(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call looks up rows of a table: cast the rows, not the table."""
    import torch

    renormalised = len(args) > 3 or kwargs.get("max_norm") is not None  # noqa: PLR2004
    return func is torch.nn.functional.embedding and not renormalised


def _make_guard_mode(
    weights: Mapping[int, torch.Tensor], copies: _Float64Copies
) -> TorchDispatchMode:
    """Reject operators on uncast parameters, which the cast mode did not see.

    Reject writes to cast weights as well: the next call would not see them.
    """
    import torch

    places = {p.untyped_storage().data_ptr() for p in weights.values()}
    copying = (torch.ops.aten._to_copy.default, torch.ops.aten.embedding.default)

    def is_weight(tensor: torch.Tensor) -> bool:
        return tensor.numel() > 0 and tensor.untyped_storage().data_ptr() in places

    def check_operator(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        operands = [
            one for one in flatten_tensors((*args, *kwargs.values())) if one.layout is torch.strided
        ]
        if func not in copying and any(map(is_weight, operands)):
            raise UncastWeightError(f"{func} uses a weight without a cast")
        if func._schema.is_mutable and any(map(copies.hold, operands)):
            raise UncastWeightError(f"{func} may write to a weight")
        return func(*args, **kwargs)

    return intercept_operators(check_operator)
