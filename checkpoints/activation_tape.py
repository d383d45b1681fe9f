"""Record every module call and tensor operation of eager on one feed, in order."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..core.contract import Array
from ..core.target_extensions import is_discrete_dtype
from ..core.torch_tools import intercept_calls, to_array
from .eager_perturbations import perturb_feed, perturb_weights

if TYPE_CHECKING:
    import torch
    from torch.overrides import TorchFunctionMode

    from ..core.contract import Feed
    from .eager_model import Eager

_THIS_FILE = str(Path(__file__))
_BOUNDARY_FILES = (  # files that call the user's module: frames beyond are not the model's
    str(Path(__file__).with_name("eager_model.py")),
    str(Path(__file__).parent.parent / "core" / "call.py"),
)


@dataclass(frozen=True, kw_only=True)
class TracedTensor:
    """One tensor that eager computed: the output of a module call or an operation.

    `order` is its place in the run, the same in every run of the feed. `operation` is the torch
    function, empty for a module's output. `call` numbers the module's calls from 0, `leaf` the
    tensors of one result. `file` and `line` are in the user's code. `same` is the order of an
    earlier module output that is the same tensor object.
    """

    order: int
    module: str
    kind: str
    call: int
    operation: str
    leaf: int
    shape: tuple[int, ...]
    dtype: str
    size: int  # bytes
    file: str
    line: int
    same: int | None = None

    @property
    def is_floating(self) -> bool:
        """Whether it holds floating-point numbers."""
        return "float" in self.dtype

    @property
    def discrete(self) -> bool:
        """Whether it holds integers or bools."""
        return is_discrete_dtype(self.dtype)


@dataclass(frozen=True, kw_only=True)
class TracedCall:
    """One call of a torch function by eager, to be repeated with changes."""

    name: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(kw_only=True)
class ActivationTape:
    """The record of one run of eager: its values, and the requested arrays and operations."""

    values: list[TracedTensor] = field(default_factory=list)
    arrays: dict[int, Array] = field(default_factory=dict)
    operations: dict[int, TracedCall] = field(default_factory=dict)
    outputs: dict[str, Array] = field(default_factory=dict)


def record_activations(
    eager: Eager,
    feed: Feed,
    *,
    arrays: Collection[int] = (),
    operations: Collection[int] = (),
) -> ActivationTape:
    """Run eager once, and record every tensor that it computes.

    Args:
        eager: the model.
        feed: one feed.
        arrays: the orders of the values whose arrays to keep.
        operations: the orders of the values whose operations to keep, with their arguments.

    Raises:
        CheckpointError: eager rejects the feed.
    """
    recorder = _ActivationRecorder(frozenset(arrays), frozenset(operations))
    with recorder.record_module(eager.module):
        recorder.tape.outputs = eager.run(feed)
    if not recorder.tape.values:  # scripts take no hooks: only the outputs are known
        recorder.note_outputs(eager.module)
    return recorder.tape


def record_perturbed(
    eager: Eager, feed: Feed, share: float, seed: int, arrays: Collection[int]
) -> ActivationTape:
    """Record a run with every float weight and input perturbed by a random share of itself.

    Raises:
        CheckpointError: eager rejects the feed.
    """
    with perturb_weights(eager.module, share, seed):
        return record_activations(eager, perturb_feed(feed, share, seed), arrays=arrays)


def state_of(eager: Eager) -> Mapping[str, Array]:
    """Return parameters and buffers by name, aliases included."""
    state = eager.module.state_dict(keep_vars=False)
    return {name: to_array(tensor) for name, tensor in state.items() if hasattr(tensor, "dtype")}


def paths_of(eager: Eager) -> list[str]:
    """Return the paths of the model's modules; the root's path is empty."""
    return [path for path, _ in eager.module.named_modules(remove_duplicate=False)]


class _ActivationRecorder:
    """Records with hooks on modules, and a mode that sees each torch function call."""

    def __init__(self, arrays: frozenset[int], operations: frozenset[int]) -> None:
        self.tape = ActivationTape()
        self._arrays, self._operations = arrays, operations
        self._order = 0
        self._busy = False  # the recorder's own computations are not recorded
        self._given: dict[int, tuple[weakref.ref[torch.Tensor], int, int]] = {}
        self._stack: list[tuple[str, str, int, tuple[str, int]]] = []
        self._calls: dict[str, int] = {}

    @contextmanager
    def record_module(self, module: torch.nn.Module) -> Iterator[None]:
        from torch.jit import ScriptModule

        with ExitStack() as stack:
            for path, one in module.named_modules():
                if isinstance(one, ScriptModule):
                    continue  # takes no hooks
                kind = f"{type(one).__module__}.{type(one).__qualname__}"
                for hook in (
                    one.register_forward_pre_hook(self._make_pre_hook(path, kind)),
                    one.register_forward_hook(self._after_call, always_call=True),
                ):
                    stack.callback(hook.remove)
            stack.enter_context(_make_function_mode(self))
            yield

    def _make_pre_hook(self, path: str, kind: str) -> Any:
        def enter(module: torch.nn.Module, given: object) -> None:  # noqa: ARG001 - torch's own
            number = self._calls.get(path, 0)
            self._calls[path] = number + 1
            self._stack.append((path, kind, number, _find_user_frame()))

        return enter

    def _after_call(self, module: object, given: object, result: object) -> None:  # noqa: ARG002
        path, kind, number, place = self._stack.pop()
        for leaf, tensor in enumerate(_dense_tensors(result)):
            self._note(tensor, (path, kind, number), ("", leaf), place)

    def note_outputs(self, module: torch.nn.Module) -> None:
        """Record the outputs as those of the model, if nothing in it was recorded."""
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        for order, array in enumerate(self.tape.outputs.values()):
            value = TracedTensor(
                order=order, module="", kind=kind, call=0, operation="", leaf=order,
                shape=array.shape, dtype=str(array.dtype), size=array.nbytes, file="", line=0,
            )  # fmt: skip
            self.tape.values.append(value)
            if order in self._arrays:
                self.tape.arrays[order] = array

    def record_call(self, name: str, operation: TracedCall, result: object) -> None:
        """Record the result of an operation."""
        path, kind, number, _ = self._stack[-1]
        tensors = list(_dense_tensors(result))
        if not tensors:
            return
        if self._order in self._operations:
            self.tape.operations[self._order] = operation
        place = _find_user_frame()
        for leaf, tensor in enumerate(tensors):
            self._note(tensor, (path, kind, number), (name, leaf), place)

    def _note(
        self,
        tensor: torch.Tensor,
        owner: tuple[str, str, int],
        what: tuple[str, int],
        place: tuple[str, int],
    ) -> None:
        order, self._order = self._order, self._order + 1
        self.tape.values.append(
            TracedTensor(
                order=order,
                module=owner[0],
                kind=owner[1],
                call=owner[2],
                operation=what[0],
                leaf=what[1],
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                size=tensor.numel() * tensor.element_size(),
                file=place[0],
                line=place[1],
                same=None if what[0] else self._earlier(tensor, order),
            )
        )
        if order in self._arrays:
            with self.pause():
                self.tape.arrays[order] = to_array(tensor)

    def _earlier(self, tensor: torch.Tensor, order: int) -> int | None:
        """Return the order of the first module output that is this tensor; None if this is it.

        A tensor that was written to in between (`out += x`, `ReLU(inplace=True)`) is another
        value: torch counts writes, except to inference tensors.
        """
        if tensor.is_inference():
            return None
        known = self._given.get(id(tensor))
        if known is not None and known[0]() is tensor and known[2] == tensor._version:
            return known[1]
        self._given[id(tensor)] = (weakref.ref(tensor), order, tensor._version)
        return None

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Pause recording within the context."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    @property
    def is_recording(self) -> bool:
        """Whether the model is running and recording is not paused."""
        return bool(self._stack) and not self._busy

    def wants(self) -> bool:
        """Whether to keep the next value's operation."""
        return self._order in self._operations


def _make_function_mode(recorder: _ActivationRecorder) -> TorchFunctionMode:
    """Return a mode that records each function; arguments are copied before the call."""

    def record(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = str(getattr(func, "__name__", "")).strip("_")
        if not recorder.is_recording or name == "get":  # a property, not an operation
            return func(*args, **kwargs)
        kept = (args, kwargs)
        if recorder.wants():
            with recorder.pause():
                kept = (_copy_arguments(args), _copy_arguments(kwargs))
        result = func(*args, **kwargs)
        call = TracedCall(name=name, function=func, args=tuple(kept[0]), kwargs=dict(kept[1]))
        recorder.record_call(name, call, result)
        return result

    return intercept_calls(record)


def _copy_arguments(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, (tuple, list)):
        return type(value)(_copy_arguments(one) for one in value)
    if isinstance(value, dict):
        return {key: _copy_arguments(one) for key, one in value.items()}
    return value


def _dense_tensors(value: object) -> Iterator[torch.Tensor]:
    """Yield the dense tensors of a result, in order."""
    import torch

    from ..core.nested_values import iterate_leaves

    for _, leaf in iterate_leaves(value, lambda one: isinstance(one, torch.Tensor)):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            yield leaf


def _find_user_frame() -> tuple[str, int]:
    """Return the innermost frame outside torch and modelc."""
    import torch

    tools = str(Path(__file__).parent.parent / "core" / "torch_tools.py")
    skipped = (str(Path(torch.__file__).parent), _THIS_FILE, tools, contextlib.__file__, "<")
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename not in _BOUNDARY_FILES:
        if not frame.f_code.co_filename.startswith(skipped):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0
