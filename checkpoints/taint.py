"""Find where a run of eager turns tensor data that depends on its inputs into Python values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.torch_tools import flatten_tensors, intercept_operators
from .source_positions import CodeSite, find_user_frames

if TYPE_CHECKING:
    import torch

# Metadata of a tensor. Everything else counts as data.
_SIZES = frozenset(("size", "numel", "nelement", "__len__", "shape"))
_METADATA_CALLS = frozenset(
    (
        "dim", "ndimension", "stride", "storage_offset", "element_size", "is_contiguous", "type",
        "is_floating_point", "is_complex", "is_signed", "is_same_size", "is_inference", "is_conj",
        "is_neg", "is_pinned", "is_set_to", "is_shared", "get_device", "dense_dim", "sparse_dim",
        "__hash__", "data_ptr", "has_names", "q_scale", "q_zero_point", "q_per_channel_axis",
        "result_type", "can_cast", "is_distributed", "__reduce_ex__", "is_nested", "_is_view",
        "_has_compatible_shallow_copy_type", "_nnz", "is_coalesced", "_dimI", "_dimV",
    )
)  # fmt: skip
_MEMORY = frozenset(("numpy", "__array__", "__dlpack__"))
# Operators that return a Python value, and those that use only the metadata of their inputs.
_SCALARS = ("_local_scalar_dense", "equal", "is_nonzero", "item")
_METADATA_ONLY = frozenset(
    f"{name}_like" for name in ("empty", "zeros", "ones", "full", "rand", "randn")
) | frozenset(
    ("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided", "empty_strided")
)


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """Tensor data that became a Python value, or, with `size`, a size that depends on data.

    Attributes:
        sites: the user's frames, the innermost first.
        array: an array or a list was made, not a number.
        symbol: it is a symbol of a capture, which follows the value.
        within: torch's own Python code made the conversion.
        module: the path of the converting module.
    """

    sites: tuple[CodeSite, ...]
    size: bool = False
    array: bool = False
    symbol: bool = False
    within: bool = False
    module: str = ""


ConversionLog: TypeAlias = dict[Conversion, list[str]]  # with the values, as text, in order


@contextmanager
def track_taint(module: torch.nn.Module, inputs: Iterable[torch.Tensor]) -> Iterator[ConversionLog]:
    """Collect every conversion of data that depends on `inputs` within the context.

    Parameters and buffers are not data: they are the same on every feed. After the first
    conversion, tensors of unknown origin count as data as well.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    taint = _TaintMap(module, inputs)

    class Calls(TorchFunctionMode):
        """Sees calls as the user wrote them."""

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> object:
            given = kwargs or {}
            answer = func(*args, **given)
            taint.note_call(func, (*args, *given.values()), answer)
            return answer

    def follow(func: Any, args: Any, kwargs: Any) -> object:
        """Follow data through operators, including those within torch and as torch.cond."""
        answer = func(*args, **kwargs)
        taint.propagate(func, args, kwargs, answer)
        return answer

    with torch.no_grad(), intercept_operators(follow, branches=True), Calls():
        yield taint.seen


@contextmanager
def watch_capture() -> Iterator[ConversionLog]:
    """Collect every place where a tensor becomes a Python value or a symbol within the context."""
    from torch.overrides import TorchFunctionMode

    seen: ConversionLog = {}

    class Calls(TorchFunctionMode):
        """Sees each conversion, whatever the tensors depend on."""

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> object:
            answer = func(*args, **(kwargs or {}))
            name = _function_name(func)
            if not _is_metadata_query(func, name):
                if _is_python_value(answer, name):
                    _note_conversion(seen, answer, {})
                elif is_symbol(answer):
                    _note_conversion(seen, answer, {}, symbol=True)
            return answer

    with Calls():
        yield seen


class _TaintMap:
    """The storages that hold data of the inputs, and those whose sizes depend on it."""

    def __init__(self, module: torch.nn.Module, inputs: Iterable[torch.Tensor]) -> None:
        self.seen: ConversionLog = {}
        self.leaked = False
        self.data: dict[int, bool] = {}  # by storage: whether it holds data of the inputs
        self.shaped: set[int] = set()
        self.held: list[object] = []  # weak references, so that no address is reused
        self.paths = {id(part): name for name, part in module.named_modules()}
        for tensor in (*module.parameters(), *module.buffers()):
            self._mark(tensor, data=False)
        for tensor in inputs:
            self._mark(tensor, data=True)

    def note_call(self, func: Any, args: Sequence[object], answer: object) -> None:
        """Record a call that returned a Python value of data."""
        name = _function_name(func)
        if not _is_python_value(answer, name):
            return
        tensors = list(flatten_tensors(args))
        if _is_metadata_query(func, name):
            if name in _SIZES and any(_storage_key(t) in self.shaped for t in tensors):
                _note_conversion(self.seen, answer, self.paths, size=True)
        elif any(self._is_data(tensor) for tensor in tensors):
            self._note(answer)

    def propagate(
        self, func: Any, args: Sequence[object], kwargs: dict[str, object], answer: object
    ) -> None:
        """Propagate taint from an operator's inputs to its outputs and mutated arguments."""
        given = list(flatten_tensors((*args, *kwargs.values())))
        data = any(self._is_data(tensor) for tensor in given) or (not given and self.leaked)
        schema = getattr(func, "_schema", None)  # higher-order operators have none
        name = _function_name(func) if schema is None else schema.name.partition("::")[2]
        if data and name in _SCALARS:
            self._note(answer)
        shaped = any(_storage_key(tensor) in self.shaped for tensor in given)
        shaped = shaped or (data and _has_data_sizes(func, name, given))
        data = data and name not in _METADATA_ONLY
        for tensor in flatten_tensors((answer,)):
            self._mark(tensor, data=data or self.data.get(_storage_key(tensor), False))
            if shaped and tensor.dim():
                self.shaped.add(_storage_key(tensor))
        if data:
            for tensor in _find_mutated(func, args, kwargs):
                self._mark(tensor, data=True)

    def _note(self, answer: object) -> None:
        self.leaked = self.leaked or not isinstance(answer, bool)
        _note_conversion(self.seen, answer, self.paths)

    def _is_data(self, tensor: torch.Tensor) -> bool:
        return self.data.get(_storage_key(tensor), self.leaked)

    def _mark(self, tensor: torch.Tensor, *, data: bool) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        key = _storage_key(tensor)
        if key and key not in self.data:
            self.held.append(StorageWeakRef(tensor.untyped_storage()))  # type: ignore[no-untyped-call]  # torch's own
        self.data[key] = data or self.data.get(key, False)


def _storage_key(tensor: torch.Tensor) -> int:
    """Return the id of the tensor's storage; 0 for tensors without one, which count as one."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0


def _find_mutated(
    func: Any, args: Sequence[object], kwargs: dict[str, object]
) -> Iterator[torch.Tensor]:
    """Yield the arguments that an operator mutates; none for higher-order operators."""
    schema = getattr(func, "_schema", None)
    for index, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            yield from flatten_tensors((value,))


def _has_data_sizes(func: Any, name: str, given: Sequence[torch.Tensor]) -> bool:
    """Whether the output's size depends on data: `nonzero`, `x[mask]`."""
    import torch

    if name == "index":
        return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in given[1:])
    return torch.Tag.dynamic_output_shape in getattr(func, "tags", ())


def _function_name(func: Any) -> str:
    name = str(getattr(func, "__name__", ""))
    return str(getattr(func.__self__, "__name__", "")) if name == "__get__" else name


def _is_metadata_query(func: Any, name: str) -> bool:
    """Whether the call returns metadata of a tensor; every attribute does."""
    return name in _SIZES or name in _METADATA_CALLS or getattr(func, "__name__", "") == "__get__"


def _is_python_value(answer: object, name: str) -> bool:
    """Whether the answer is a Python value or an array, not a tensor or a symbol."""
    if name in _MEMORY:
        return True
    if isinstance(answer, (list, tuple)):
        return bool(answer) and all(_is_python_value(part, name) for part in answer)
    return isinstance(answer, (bool, int, float, complex))


def is_symbol(answer: object) -> bool:
    """Whether the answer is a symbol of a capture, or a list of them."""
    import torch

    if isinstance(answer, (list, tuple)):
        return any(map(is_symbol, answer))
    return isinstance(answer, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _note_conversion(
    seen: ConversionLog,
    answer: object,
    paths: dict[int, str],
    *,
    size: bool = False,
    symbol: bool = False,
) -> None:
    sites, within, module = find_user_frames(paths, __file__)
    if sites:
        array = not isinstance(answer, (bool, int, float, complex))
        conversion = Conversion(
            sites=sites, size=size, array=array, symbol=symbol, within=within, module=module
        )
        seen.setdefault(conversion, []).append(_value_text(answer))


def _value_text(answer: object) -> str:
    """Return text to compare values by; arrays by their bytes."""
    if hasattr(answer, "tobytes"):
        return f"{hash((answer.tobytes(), getattr(answer, 'shape', ())))}"
    return repr(answer)
