"""What `torch.compile` makes of a model: graphs, breaks, guards and recompiles, as records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import UsageError
from .kinds import ErrorCode
from .verdict import Verdict

COMPILED = "torch.compile"
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune")
COMPILE_BACKENDS = ("torch_tensorrt",)  # on a GPU
COMPILE_SETTINGS = ("fullgraph", "dynamic")  # that a mode may be combined with


def compile_settings(variant: str, option: str = "compile") -> dict[str, Any]:
    """Return the keyword arguments of torch.compile for a variant, as `max-autotune+dynamic`.

    Raises:
        UsageError: a part of it is unknown, or there are two modes; of this `option`.
    """
    parts = variant.split("+")
    modes = [part for part in parts if part not in COMPILE_SETTINGS]
    known = (*COMPILE_MODES, *COMPILE_BACKENDS)
    unknown = [part for part in modes if part not in known]
    if unknown:
        settings = " and ".join(f"+{one}" for one in COMPILE_SETTINGS)
        raise UsageError(
            f"unknown mode of torch.compile: {unknown[0]!r}",
            hint=f"the modes are {', '.join(known)}, each with {settings}",
            option=option,
            code=ErrorCode.UNKNOWN_NAME,
        )
    if len(modes) > 1:
        raise UsageError(
            f"{variant} has several modes of torch.compile",
            hint=f"give one of them: {modes[0]}",
            option=option,
            code=ErrorCode.INVALID_VALUE,
        )
    name = modes[0] if modes else "default"
    key = "backend" if name in COMPILE_BACKENDS else "mode"
    chosen = {part: True for part in parts if part in COMPILE_SETTINGS}
    return {key: None if name == "default" else name, **chosen}


def plain_variant(variant: str, option: str = "compile") -> str:
    """Return the one spelling of a variant: its mode, then its settings, each once.

    Raises:
        UsageError: as `compile_settings`.
    """
    found = compile_settings(variant, option)
    settings = [one for one in COMPILE_SETTINGS if one in found]
    name = found.get("backend") or found.get("mode") or "default"
    return "+".join([name, *settings])


def name_compiled(mode: str) -> str:
    """Return the name of a compiled module in verdicts and in rows of a benchmark."""
    return COMPILED if mode == "default" else f"{COMPILED}:{mode}"


@dataclass(frozen=True, kw_only=True)
class SourceLine:
    """A line of the user's code; `file` is relative to the current folder if possible."""

    file: str
    line: int
    code: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class GraphBreak:
    """Why dynamo ends a graph at a line of the user's code.

    Attributes:
        kind: torch's name of the reason.
        explanation: torch's own words on this case.
        hint: what torch advises, if it is short.
        place: the innermost line of the user's code; None if torch names none.
        function: the function that runs eagerly as a whole, if dynamo gives it up; else empty.
        count: how often it happened in the first run that had it.
        feed: the feed of that run.
    """

    kind: str
    explanation: str = ""
    hint: str = ""
    place: SourceLine | None = None
    function: str = ""
    count: int = 1
    feed: str = ""


@dataclass(frozen=True, kw_only=True)
class SizeGuard:
    """A range of one dim of an input that a graph is limited to, within the declared range.

    `dim` is its name in the domain, or INPUT[AXIS]; `high` is None without an upper bound.
    """

    dim: str
    low: int
    high: int | None
    place: SourceLine | None = None

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.dim} == {self.low}"
        if self.high is None:
            return f"{self.dim} >= {self.low}"
        return f"{self.low} <= {self.dim} <= {self.high}"


@dataclass(frozen=True, kw_only=True)
class ValueGuard:
    """A Python value that a graph has as a constant: `self.scale` in `self.scale == 2.0`."""

    name: str
    text: str
    place: SourceLine | None = None


@dataclass(frozen=True, kw_only=True)
class Recompile:
    """A further compilation of a function, because no earlier one accepts a feed.

    Attributes:
        feed: the feed that caused it.
        sizes: its sizes of the free dims.
        function: the function that was compiled again.
        reason: the failed guard in torch's words.
        place: the line of the guard if torch names one, else of the function.
        guards: the limits on sizes that the feed violates.
    """

    feed: str
    sizes: Mapping[str, int]
    function: str
    reason: str
    place: SourceLine | None = None
    guards: tuple[SizeGuard, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CompileFailure:
    """An error of `torch.compile` where the eager model has none."""

    error: str
    message: str
    feed: str
    place: SourceLine | None = None


@dataclass(frozen=True, kw_only=True)
class CompileTrace:
    """What dynamo did on all feeds, with one setting of `dynamic`.

    Attributes:
        dynamic: as given to torch.compile; None is its default.
        graphs: graphs that the first feed ran in.
        operators: operators in these graphs.
        feeds: feeds that were run.
        breaks: graph breaks, each place once.
        guards: guards of the graphs of the first feed, by torch's kind.
        sizes: limits on dims of the domain.
        values: Python values that are constants of the graphs.
        recompiles: compilations after the first of a function.
        limit: the limit of compilations of a function if it was reached.
        limited: the functions that reached it: they run eagerly on further feeds.
        failure: the error that ended it.
    """

    dynamic: bool | None
    graphs: int
    operators: int
    feeds: int
    breaks: tuple[GraphBreak, ...] = ()
    guards: Mapping[str, int] = field(default_factory=dict)
    sizes: tuple[SizeGuard, ...] = ()
    values: tuple[ValueGuard, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    limit: int | None = None
    limited: tuple[str, ...] = ()
    failure: CompileFailure | None = None


@dataclass(frozen=True, kw_only=True)
class CompileReport:
    """What `modelc inspect --breaks` found.

    `inputs` are the specs of the domain. `fullgraph` is whether `fullgraph=True` compiles;
    `fullgraph_reason` is the first reason why not. The first of `traces` has torch's default for
    dynamic shapes, the second `dynamic=True`.
    """

    checkpoint: str
    torch: str
    inputs: tuple[str, ...]
    fullgraph: bool
    fullgraph_reason: GraphBreak | None
    traces: tuple[CompileTrace, ...]


@dataclass(frozen=True, kw_only=True)
class CompiledVerdict:
    """The verdict on the eager module compiled by `torch.compile`, in a manifest.

    It holds for this `mode`, this version of `torch`, and the device of the verdict.
    """

    mode: str
    torch: str
    verdict: Verdict
