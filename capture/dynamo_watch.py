"""Watch dynamo while it compiles a module: graphs, breaks, guards, compilations of functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from traceback import FrameSummary, extract_tb
from typing import TYPE_CHECKING, Any

from ..checkpoints.source_positions import is_user_file
from ..checkpoints.user_code import shorten_path
from ..core.compile_records import GraphBreak, SourceLine, ValueGuard
from ..core.errors import ErrorCode, UsageError

if TYPE_CHECKING:
    import torch
    from torch._guards import Guard

_MAX_HINT = 200  # characters
_RESUME = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")  # dynamo's name of a function's rest
# torch's kinds of guards on Python values; all others are on types, identities and tensors
_VALUE_GUARDS = frozenset(("CONSTANT_MATCH", "EQUALS_MATCH"))
_RESULT = "the result"  # of a call, in place of torch's name for it
_GIVEN_UP = frozenset(("Unsupported", "UserError"))  # errors that make a function run eagerly
_FIRST_DYNAMIC_SIZE = 2  # torch compiles the sizes 0 and 1 apart, without a guard of the user's


@dataclass(frozen=True, kw_only=True)
class GraphLimit:
    """Sizes of one axis of an input that a graph accepts; `high` is None without a bound."""

    number: int  # of the input
    axis: int
    low: int
    high: int | None
    place: SourceLine | None

    def accepts(self, size: int) -> bool:
        """Return whether the graph accepts the size."""
        return self.low <= size and (self.high is None or size <= self.high)


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """One compilation of a function, which torch numbers by `key`.

    `function`, `line` and `file` are those of its definition. `reason` is set for a further one.
    """

    key: str
    function: str
    file: str
    line: int
    reason: str
    limits: tuple[GraphLimit, ...]

    @property
    def definition(self) -> SourceLine | None:
        """The line of the function, if it is the user's."""
        return _source_line(self.file, self.line)


@dataclass
class _OpenGraph:
    """A graph while its compilation runs; torch adds guards to these objects until it ends."""

    key: str
    operators: int
    shapes: Any
    inputs: dict[str, int]  # number of the model's input, by torch's name of the source


@dataclass
class DynamoWatch:
    """Records what dynamo does in one run; `given` are the tensors of the run's inputs."""

    given: Sequence[Any] = ()
    breaks: list[GraphBreak] = field(default_factory=list)
    graphs: list[_OpenGraph] = field(default_factory=list)
    guards: list[Any] = field(default_factory=list)
    places: dict[int, tuple[object, SourceLine | None]] = field(default_factory=dict)
    _errors: list[Exception] = field(default_factory=list)

    @property
    def operators(self) -> int:
        """The number of operators in the graphs."""
        return sum(graph.operators for graph in self.graphs)

    def backend(self, graph: torch.fx.GraphModule, _: Sequence[object]) -> Callable[..., Any]:
        """Record a graph, and run it as it is: a backend for `torch.compile`."""
        from torch._guards import CompileContext, TracingContext

        context = TracingContext.get()
        inputs: dict[str, int] = {}
        for node in graph.graph.find_nodes(op="placeholder"):
            argument = node.meta.get("grapharg")
            if argument is None or argument.source is None:
                continue
            for number, tensor in enumerate(self.given):
                if argument.is_tensor and argument.example is tensor:
                    inputs[argument.source.name] = number
        calls = [node for node in graph.graph.nodes if node.op.startswith("call_")]
        self.graphs.append(
            _OpenGraph(
                key=str(CompileContext.current_compile_id()),
                operators=len(calls),
                shapes=None if context.fake_mode is None else context.fake_mode.shape_env,
                inputs=inputs,
            )
        )
        return graph.forward

    def note_guards(self, guards: Iterable[Guard]) -> None:
        """Record the guards of a graph that is complete: a hook for dynamo."""
        self.guards.extend(guards)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Record graph breaks and the lines of guards on sizes within the block."""
        from torch._dynamo.symbolic_convert import InstructionTranslatorBase
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        with (
            _observe(InstructionTranslatorBase, "log_graph_break", self._note_break),
            _observe(ShapeEnv, "_get_sloc", self._note_guard),
        ):
            yield

    def _note_break(self, _: object, **arguments: Any) -> None:
        error = arguments.get("exc")
        if isinstance(error, Exception) and not any(one is error for one in self._errors):
            self._errors.append(error)
            self.breaks.append(describe_break(error))

    def _note_guard(self, location: object, **_: Any) -> None:
        from torch._guards import TracingContext

        self.places[id(location)] = (location, _innermost(TracingContext.extract_stack()))

    def compilations(self) -> list[Compilation]:
        """Return the functions that were compiled in the run, and note those that were given up."""
        from torch._dynamo.utils import get_compilation_metrics

        found = []
        for one in get_compilation_metrics():
            if one.co_name is None:
                continue  # of the backward pass
            name, file = plain_name(one.co_name), one.co_filename or ""
            if one.fail_type is not None:
                if one.fail_type in _GIVEN_UP:
                    self.breaks.append(_describe_skip(one, name))
                continue
            key = str(one.compile_id)
            found.append(
                Compilation(
                    key=key,
                    function=name,
                    file=file,
                    line=one.co_firstlineno or 0,
                    reason=_plain_reason(one.recompile_reason),
                    limits=tuple(self._limits(key)),
                )
            )
        return found

    def _limits(self, key: str) -> Iterator[GraphLimit]:
        """Yield the limits on sizes of inputs of the graphs of one compilation."""
        from torch._dynamo.source import TensorProperty, TensorPropertySource

        for graph in self.graphs:
            if graph.key != key or graph.shapes is None:
                continue
            stacks = {one.name: stack for one, stack in graph.shapes.specialization_stacks.items()}
            for symbol, sources in graph.shapes.var_to_sources.items():
                low, high = _bounds(graph.shapes, symbol)
                if low <= _FIRST_DYNAMIC_SIZE and high is None:
                    continue
                for source in sources:
                    is_size = (
                        isinstance(source, TensorPropertySource)
                        and source.prop is TensorProperty.SIZE
                    )
                    number = graph.inputs.get(source.base.name) if is_size else None
                    if number is None:
                        continue
                    place = _innermost(stacks.get(source.name, ()))
                    place = place or self._guard_place(graph.shapes, symbol)
                    yield GraphLimit(
                        number=number, axis=source.idx, low=low, high=high, place=place
                    )

    def _guard_place(self, shapes: Any, symbol: object) -> SourceLine | None:
        """Return the user's line that the first guard on the symbol is from."""
        for guard in shapes.guards:
            if symbol in guard.expr.free_symbols:
                place = self.places.get(id(guard.sloc), (None, None))[1]
                if place is not None:
                    return place
        return None

    def guard_kinds(self) -> dict[str, int]:
        """Return the number of guards of the graphs, by torch's kind."""
        counts = Counter(guard.create_fn_name() for guard in self.guards)
        counts["SHAPE_ENV"] = sum(
            len(graph.shapes.guards) for graph in self.graphs if graph.shapes is not None
        )
        return {kind: count for kind, count in counts.most_common() if count}

    def value_guards(self) -> list[ValueGuard]:
        """Return the Python values of the user's code that the graphs have as constants."""
        found: dict[str, ValueGuard] = {}
        for guard in self.guards:
            # of a layer of torch, the innermost line is torch's own
            place = _innermost((guard.user_stack or ())[-1:])
            name = _plain_source(guard.name)
            if guard.create_fn_name() not in _VALUE_GUARDS or not (place and guard.code_list):
                continue
            if "__" not in name:  # Python's and torch's own attributes are not the user's
                text = _plain_source(guard.code_list[-1])
                name = _RESULT if name.startswith(_RESULT) else name
                found.setdefault(text, ValueGuard(name=name, text=text, place=place))
        return list(found.values())


def check_compilable(module: torch.nn.Module) -> None:
    """Check that `torch.compile` takes the module.

    Raises:
        UsageError: it is a TorchScript module.
    """
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        raise UsageError(
            "torch.compile takes no TorchScript module, which the checkpoint contains",
            hint="give the weights of the module itself, with --model",
            code=ErrorCode.UNSUPPORTED,
        )


@contextmanager
def _observe(owner: type, name: str, note: Callable[..., None]) -> Iterator[None]:
    """Call `note` with the result and the named arguments of each call of a method of torch.

    A torch without the method is left as it is, and nothing is noted.
    """
    method = getattr(owner, name, None)
    if method is None:
        yield
        return

    def call_method(self: object, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        note(result, **kwargs)
        return result

    setattr(owner, name, call_method)
    try:
        yield
    finally:
        setattr(owner, name, method)


def _bounds(shapes: Any, symbol: Any) -> tuple[int, int | None]:
    """Return the sizes that a symbol may have; the first is at most 2 without a lower bound."""
    fixed = shapes.replacements.get(symbol)
    if fixed is not None and fixed.is_Integer:
        return int(fixed), int(fixed)
    known = shapes.var_to_range.get(symbol)
    if known is None:
        return 0, None
    low = int(known.lower) if known.lower.is_Integer else 0
    return low, int(known.upper) if known.upper.is_Integer else None


def describe_break(error: Exception) -> GraphBreak:
    """Return the graph break of one of dynamo's errors."""
    text = str(getattr(error, "msg", "") or error)
    kind = str(getattr(error, "gb_type", "") or "")
    place = _innermost(getattr(error, "real_stack", ()) or ())
    return _make_break(text, kind, place or _innermost(extract_tb(error.__traceback__)))


def _describe_skip(metrics: Any, function: str) -> GraphBreak:
    """Return the break at which dynamo gave a function up."""
    place = _source_line(metrics.fail_user_frame_filename or "", metrics.fail_user_frame_lineno)
    place = place or _source_line(metrics.co_filename or "", metrics.co_firstlineno)
    return _make_break(str(metrics.fail_reason), "", place, function)


def _make_break(text: str, kind: str, place: SourceLine | None, function: str = "") -> GraphBreak:
    """Lay out torch's text: its first line, `Explanation:` and `Hint:`."""
    lines = [line.strip() for line in text.splitlines()]
    explanation = next((line for line in lines if line.startswith("Explanation: ")), "")
    hints = [line.removeprefix("Hint: ") for line in lines if line.startswith("Hint: ")]
    hint = next((one for one in hints if len(one) <= _MAX_HINT), "")
    return GraphBreak(
        kind=next(filter(None, lines), kind),
        explanation=explanation.removeprefix("Explanation: "),
        hint=hint,
        place=place,
        function=function,
    )


def plain_name(function: str) -> str:
    """Return the user's name of a function, of which dynamo may compile the rest."""
    while found := _RESUME.fullmatch(function):
        function = found[1]
    return function


def _plain_reason(text: str | None) -> str:
    """Return torch's words without the number of the compilation, and on one line."""
    if not text:
        return ""
    first = text.splitlines()[0].partition(": ")[2] or text
    return _plain_source(first.partition("  # ")[0]).strip()


def _plain_source(text: str) -> str:
    """Return torch's expression with `x` in place of `L['x']`, and no name for a bare result."""
    return re.sub(r"\b___stack\d+", _RESULT, re.sub(r"L\['(\w+)'\]", r"\1", text))


def _innermost(stack: Sequence[FrameSummary]) -> SourceLine | None:
    """Return the innermost line of the user's code."""
    for frame in reversed(stack):
        found = _source_line(frame.filename, frame.lineno)
        if found is not None:
            return found
    return None


def _source_line(file: str, line: int | None) -> SourceLine | None:
    import linecache

    if not file or not line or not is_user_file(file):
        return None
    return SourceLine(
        file=shorten_path(file), line=line, code=linecache.getline(file, line).strip()
    )
