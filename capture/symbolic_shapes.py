"""Run forward with symbolic sizes, and record the conditions on them."""

from __future__ import annotations

import builtins
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from ..checkpoints.source_positions import find_user_line, is_user_file
from ..checkpoints.user_code import shorten_path
from ..core.errors import first_line
from ..core.signature import Signature
from ..core.torch_tools import intercept_calls
from .call_recording import MAX_CALLS, CallLimitError, record_scalars, replay_scalars
from .captured_program import preserve_module, restore_container
from .refusals import user_place

if TYPE_CHECKING:
    import torch
    from torch import nn

# Functions that split a tensor, with the position of the axis among their arguments
_SPLITTING_CALLS = {
    "__iter__": 0, "unbind": 1, "split": 2, "split_with_sizes": 2, "chunk": 2, "tensor_split": 2,
    "unsafe_split": 2, "unsafe_chunk": 2,
}  # fmt: skip


@dataclass(kw_only=True)
class ShapeTrace:
    """The conditions of a symbolic run, in torch's notation for sizes of `L['tensors']`.

    `lost` are the user's lines at which a size became a Python number. `ended` says where and why
    the run stopped, `late` that it made too many calls. `answered` says that Python values came out
    of tensors, or sizes went into them, with the example's values.
    """

    guards: tuple[str, ...] = ()
    lost: dict[str, None] = field(default_factory=dict)  # in order, each once
    ended: str = ""
    late: bool = False
    answered: bool = False


def trace_symbolic_shapes(
    module: nn.Module,
    tensors: tuple[torch.Tensor, ...],
    signature: Signature,
    *,
    most: int = MAX_CALLS,
) -> ShapeTrace:
    """Run the flat module without data, with a symbol for each dynamic dim.

    If it needs data, it first runs with data to record values. It stops after `most` calls of
    torch.
    """

    def trace_run(answers: list[object]) -> ShapeTrace:
        found, env = ShapeTrace(), ShapeEnv(duck_shape=False, specialize_zero_one=False)

        def mark_fixed() -> None:
            found.answered = True

        try:
            with (
                _watch_numbers(found),
                _watch_pieces(found),
                symint_builtins(module),
                replay_scalars(answers, most, fixed=mark_fixed),
            ):
                _run_symbolic(module, tensors, signature, env)
        except Exception as error:  # noqa: BLE001 - code raises anything without data
            file, _, line = user_place(error).rpartition(":")
            place = file and f"{shorten_path(file)}:{line}"
            found.ended = f"{place}: {first_line(error)}" if place else first_line(error)
            found.late = isinstance(error, CallLimitError)
        found.guards, found.answered = _guard_texts(env), found.answered or bool(answers)
        return found

    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    found = trace_run([])
    answers = record_scalars(module, tensors) if found.ended and not found.late else []
    return trace_run(answers) if answers else found


def _run_symbolic(
    module: nn.Module, tensors: tuple[torch.Tensor, ...], signature: Signature, env: Any
) -> None:
    import torch
    from torch._dispatch.python import enable_python_dispatcher
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental import _config

    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    held = dict(module.named_parameters()) | dict(module.named_buffers())
    with _config.patch(backed_size_oblivious=True), torch.no_grad():  # type: ignore[attr-defined]  # not in its stubs
        given = _symbolic_tensors(mode, tensors, signature)
        weights: dict[str, torch.Tensor] = {}
        for name, one in held.items():
            weights[name] = mode.from_tensor(one, static_shapes=True)
        with mode, enable_python_dispatcher():
            torch.func.functional_call(module, weights, given)


def _symbolic_tensors(
    mode: Any, tensors: tuple[torch.Tensor, ...], signature: Signature
) -> tuple[torch.Tensor, ...]:
    """Return the tensors without data, with symbols for dynamic dims."""
    from torch._dynamo.source import GetItemSource, LocalSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    made = []
    for place, (tensor, spec) in enumerate(zip(tensors, signature.inputs, strict=True)):
        kinds = [DimDynamic.DYNAMIC if dim.dynamic else DimDynamic.STATIC for dim in spec.dims]
        context: Any = StatelessSymbolicContext(
            dynamic_sizes=kinds, constraint_sizes=[None] * len(kinds)
        )
        source = GetItemSource(LocalSource("tensors"), place)
        made.append(mode.from_tensor(tensor, source=source, symbolic_context=context))
    return tuple(made)


def _guard_texts(env: Any) -> tuple[str, ...]:
    """Return the conditions on sizes, in torch's notation."""
    from torch.fx.experimental.symbolic_shapes import ShapeGuardPythonPrinter

    known = {
        symbol: [one for one in sources if "size()" in one.name]
        for symbol, sources in env.var_to_sources.items()
    }
    printer = ShapeGuardPythonPrinter(known, lambda source: source.name, known)
    named = {symbol for symbol, sources in known.items() if sources}
    conditions = [guard.expr for guard in env.guards if guard.expr.free_symbols <= named]
    return tuple(dict.fromkeys(printer.doprint(one) for one in conditions))


@contextmanager
def _watch_numbers(found: ShapeTrace) -> Iterator[None]:
    """Let sizes that become Python numbers or text have the example's value, without guards."""
    from torch.fx.experimental.sym_node import SymNode

    def number(kind: Callable[[Any], object]) -> Callable[..., object]:
        def answer(node: Any, *_: object) -> object:  # torch's own file and line
            place = _user_line(sys._getframe(1))
            if place and not node.is_constant():
                found.lost[place] = None
            return kind(node.hint)

        return answer

    kept = SymNode.guard_int, SymNode.guard_float
    try:
        SymNode.guard_int, SymNode.guard_float = number(int), number(float)  # type: ignore[assignment,method-assign]
        with watch_size_text(lambda place: found.lost.update({place: None})):
            yield
    finally:
        SymNode.guard_int, SymNode.guard_float = kept  # type: ignore[method-assign]


@contextmanager
def _watch_pieces(found: ShapeTrace) -> Iterator[None]:
    """Record where a tensor is split along a dynamic axis: the number of parts is a constant."""
    import torch

    def is_dynamic(args: Sequence[Any], kwargs: Mapping[str, Any], place: int) -> bool:
        tensor = args[0] if args else kwargs.get("input", kwargs.get("tensor"))
        dim = kwargs.get("dim", args[place] if place and len(args) > place else 0)
        if not isinstance(tensor, torch.Tensor) or not tensor.dim() or not isinstance(dim, int):
            return False
        return isinstance(tensor.shape[dim], torch.SymInt)

    def note_split(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if name in _SPLITTING_CALLS and is_dynamic(args, kwargs, _SPLITTING_CALLS[name]):
            place = find_user_line(sys._getframe(1))
            if place is not None:
                found.lost["{}:{}".format(*place)] = None
        return func(*args, **kwargs)

    with intercept_calls(note_split):
        yield


@contextmanager
def watch_size_text(seen: Callable[[str], None]) -> Iterator[None]:
    """Format sizes in the user's code with the example's value; call `seen` with the line.

    torch would format the name of the symbol, without a guard.
    """
    import torch

    plain: Callable[[torch.SymInt], str] = torch.SymInt.__repr__

    def text(size: torch.SymInt) -> str:
        place = _user_line(sys._getframe(1))
        if not place:
            return plain(size)
        seen(place)
        return repr(size.node.hint)

    torch.SymInt.__repr__ = text  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.SymInt.__repr__ = plain  # type: ignore[method-assign]


def _user_line(frame: FrameType | None) -> str:
    """Return the user's line that converted a SymInt directly."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            return f"{file}:{frame.f_lineno}"
        if not file.endswith(("torch/__init__.py", "sym_node.py")):
            return ""
        frame = frame.f_back
    return ""


_CACHED = type(lru_cache(lambda: None))


@contextmanager
def symint_builtins(module: nn.Module) -> Iterator[None]:
    """Replace `len` and `int` in the user's files by ones that keep symbols.

    State that forward stores meanwhile is dropped: its tensors have no data.
    """
    files = list(_user_modules(module))
    with preserve_module(module), ExitStack() as stack:
        for names in map(vars, files):
            stack.callback(_restore_containers, names, _module_containers(names))
            for text in _SYMBOLIC_BUILTINS.keys() - names.keys():  # the file's own names stay
                names[text] = _SYMBOLIC_BUILTINS[text]
                stack.callback(names.pop, text)
        yield


def _user_modules(module: nn.Module) -> Iterator[ModuleType]:
    """Yield the loaded files of the packages of the model's classes."""
    tops = {type(part).__module__.partition(".")[0] for part in module.modules()}
    for name, file in list(sys.modules.items()):
        where = getattr(file, "__file__", None)
        if name.partition(".")[0] in tops and where and is_user_file(where):
            yield file


def _module_containers(names: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Return a file's global lists and dicts with copies."""
    return [
        (one, one.copy())
        for name, one in list(names.items())
        if type(one) in (dict, list) and not name.startswith("__") and one is not sys.modules
    ]


def _restore_containers(names: dict[str, Any], kept: list[tuple[Any, Any]]) -> None:
    """Restore lists and dicts, and clear caches of functions and methods."""
    for value, before in kept:
        if not _is_same(value, before):
            restore_container(value, before)
    kinds = [one for one in list(names.values()) if isinstance(one, type)]
    for one in [*names.values(), *(member for kind in kinds for member in vars(kind).values())]:
        if type(one) is _CACHED:
            one.cache_clear()


def _is_same(value: Any, before: Any) -> bool:
    """Whether both contain the same objects in order."""
    if isinstance(value, dict):
        return _is_same([*value, *value.values()], [*before, *before.values()])
    return len(value) == len(before) and all(map(operator.is_, value, before))


class _SymbolicIntMeta(type):
    """The type of `SymbolicInt`: symbolic sizes are instances and stay symbols."""

    def __instancecheck__(cls, value: object) -> bool:
        import torch

        return isinstance(value, (builtins.int, torch.SymInt))

    def __call__(cls, *args: Any, **kwargs: Any) -> object:
        import torch

        if len(args) == 1 and isinstance(args[0], (torch.SymInt, torch.SymFloat)):
            return torch.sym_int(args[0])  # type: ignore[no-untyped-call]  # torch's own
        return builtins.int(*args, **kwargs)


class SymbolicInt(builtins.int, metaclass=_SymbolicIntMeta):
    """Replaces `int`, and keeps values computed from sizes symbolic."""


def symbolic_len(value: Any) -> object:
    """Replace `len`: `value.shape[0]` of tensors, which may be symbolic."""
    import torch

    return value.shape[0] if isinstance(value, torch.Tensor) and value.ndim else len(value)


_SYMBOLIC_BUILTINS = {"len": symbolic_len, "int": SymbolicInt}
