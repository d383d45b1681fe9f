"""Find branches on tensor data in the user's forward, and their outcome on each feed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, TypeAlias

from ..core.contract import Feed
from ..core.errors import first_line
from ..core.findings import BranchRecord
from .branch_tracer import Place, trace_branch_outcomes
from .float64_eager import has_script
from .source_decisions import BranchTest, KeptValue, ValueUse
from .source_positions import is_within
from .taint import Conversion, ConversionLog
from .user_code import shorten_path
from .value_dataflow import find_value_uses

if TYPE_CHECKING:
    import torch

    from ..core.contract import Outputs

EXAMPLE = "example"  # the name of the captured feed
_OUTCOMES = {"T": "true", "F": "false"}

RunFeed = Callable[[Feed], object]
WatchFeed = Callable[[Feed], ConversionLog]  # runs a feed, and returns its conversions


@dataclass(frozen=True, kw_only=True)
class DataBranch:
    """A branch or a stored value that depends on tensor data, and its origin.

    `places` are the lines at which tensors become the Python values that decide it. `others` are
    the feeds with another outcome than the captured one.
    """

    record: BranchRecord
    places: frozenset[Place]
    others: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class BranchReport:
    """The branches of eager on every feed.

    `idle` are lines that convert tensor data for checks and messages only. `within` are the
    user's lines under which torch's own code converts data. `incomplete` is why branches could
    not be observed; empty otherwise.
    """

    found: tuple[DataBranch, ...] = ()
    idle: frozenset[Place] = frozenset()
    within: frozenset[Place] = frozenset()
    runs: int = 0
    incomplete: str = ""

    @property
    def records(self) -> tuple[BranchRecord, ...]:
        """The records of the branches."""
        return tuple(one.record for one in self.found)

    def at(self, place: Place) -> tuple[DataBranch, ...]:
        """Return the branches that depend on a conversion at a line."""
        return tuple(one for one in self.found if place in one.places)


@dataclass
class _DecisionCollector:
    """Collects uses of tensor data over feeds, with their conversions."""

    modules: dict[ValueUse, str] = field(default_factory=dict)
    places: dict[ValueUse, set[Place]] = field(default_factory=dict)
    values: dict[ValueUse, dict[str, list[str]]] = field(default_factory=dict)
    within: set[Place] = field(default_factory=set)
    read: dict[Conversion, tuple[ValueUse, ...]] = field(default_factory=dict)

    def add(self, feed: str, seen: ConversionLog) -> None:
        """Add the conversions of one feed."""
        for conversion, values in seen.items():
            if conversion not in self.read:
                self.read[conversion] = self._read(conversion)
            for use in self.read[conversion]:
                self.modules.setdefault(use, conversion.module)
                self.places.setdefault(use, set()).add(_conversion_place(conversion))
                self.values.setdefault(use, {}).setdefault(feed, []).extend(values)

    def _read(self, conversion: Conversion) -> tuple[ValueUse, ...]:
        """Return the uses; of sizes and of torch's own conversions, only branches count."""
        found = find_value_uses(conversion.sites, array=conversion.array)
        site = conversion.sites[0]
        if conversion.within:
            self.within.add((site.file, site.line))
            return tuple(
                m for m in found if isinstance(m, BranchTest) and is_within(site.span, m.span)
            )
        return tuple(m for m in found if isinstance(m, BranchTest)) if conversion.size else found

    @property
    def tests(self) -> list[BranchTest]:
        """The branches, in order of execution."""
        return [use for use in self.places if isinstance(use, BranchTest)]

    def list_kept_values(self, reached: Collection[ValueUse]) -> list[KeptValue]:
        """Return stored values on which no executed branch depends."""
        decided = {
            use
            for found in self.read.values()
            if any(use in reached for use in found)
            for use in found
        }
        return [m for m in self.places if isinstance(m, KeptValue) and m not in decided]


def watch_branches(
    feeds: Sequence[tuple[str, Feed]],
    example: Feed | None,
    watch: WatchFeed,
    run: RunFeed,
    *,
    quiet: frozenset[FeedShapes] = frozenset(),
) -> BranchReport:
    """Find branches of eager on the feeds for judging, and on the captured one.

    Without Python values of tensor data, feeds of the same shapes run the same code: one feed of
    each shape is run. Otherwise all are, and again to trace outcomes if there are branches.

    Args:
        feeds: feeds that eager accepts, by name.
        example: the captured feed; if None, the first feed stands for it.
        watch: runs one feed and returns its conversions.
        run: runs one feed.
        quiet: shapes known to have no conversions.
    """
    named = [*feeds] if example is None else [(EXAMPLE, example), *feeds]
    sources = _DecisionCollector()
    try:
        runs = _collect_decisions(named, watch, sources, set(quiet))
        outcomes = {
            name: trace_branch_outcomes(partial(run, feed), sources.tests)
            for name, feed in named
            if sources.tests
        }
    except Exception as error:  # noqa: BLE001 - an instrumented run may fail where a plain one did not
        return BranchReport(incomplete=first_line(error))
    order = [*(name for name, _ in feeds), *([] if example is None else [EXAMPLE])]
    reached = {
        test: index
        for index, test in enumerate(sources.tests)
        if any(one[index] for one in outcomes.values())
    }
    found = [
        *(_make_branch(test, index, outcomes, order, sources) for test, index in reached.items()),
        *(_make_kept_branch(held, order, sources) for held in sources.list_kept_values(reached)),
    ]
    idle = {
        place
        for use, places in sources.places.items()
        if not isinstance(use, (BranchTest, KeptValue))
        for place in (*places, (use.file, use.line))
    }
    return BranchReport(
        found=tuple(found),
        idle=frozenset(idle),
        within=frozenset(sources.within),
        runs=runs + len(outcomes),
    )


def _collect_decisions(
    named: Sequence[tuple[str, Feed]],
    watch: WatchFeed,
    sources: _DecisionCollector,
    forms: set[FeedShapes],
) -> int:
    """Observe the feeds, those of known shapes only if others convert data; return the count."""
    runs = 0
    left = list(named)
    while left:
        skipped = []
        for name, feed in left:
            form = shapes_of_feed(feed)
            if form in forms and not sources.read:
                skipped.append((name, feed))
                continue
            forms.add(form)
            runs += 1
            sources.add(name, watch(feed))
        left = skipped if sources.read else []
    return runs


def _make_branch(
    test: BranchTest,
    index: int,
    outcomes: dict[str, tuple[str, ...]],
    order: list[str],
    sources: _DecisionCollector,
) -> DataBranch:
    outcome_feeds: dict[str, str] = {}
    for name in order:
        for letter in dict.fromkeys(outcomes[name][index]):
            outcome_feeds.setdefault(_OUTCOMES[letter], name)
    captured = outcomes[_name_example(order)][index]
    others = tuple(name for name in order if outcomes[name][index] != captured)
    lines = range(test.span[0], test.span[2] + 1)
    places = {*sources.places[test], *((test.file, line) for line in lines)}
    record = BranchRecord(
        file=shorten_path(test.file), line=test.line, condition=test.condition,
        module=sources.modules[test], arms=outcome_feeds, data=True, kind=test.kind,
        same=not others,
    )  # fmt: skip
    return DataBranch(record=record, places=frozenset(places), others=others)


def _make_kept_branch(held: KeptValue, order: list[str], sources: _DecisionCollector) -> DataBranch:
    values = sources.values[held]
    captured = values.get(_name_example(order))
    others = tuple(name for name in order if values.get(name) != captured)
    record = BranchRecord(
        file=shorten_path(held.file), line=held.line, condition=held.text,
        module=sources.modules[held], data=True, kind="value", same=not others,
    )  # fmt: skip
    return DataBranch(record=record, places=frozenset(sources.places[held]), others=others)


def _name_example(order: list[str]) -> str:
    """Return the captured feed, or the first."""
    return EXAMPLE if EXAMPLE in order else order[0]


def _conversion_place(conversion: Conversion) -> Place:
    """Return the line of a conversion."""
    return conversion.sites[0].file, conversion.sites[0].line


def symbol_places(seen: Collection[Conversion]) -> frozenset[Place]:
    """Return the user's lines at which a capture created only symbols of tensors."""
    symbols = {_conversion_place(one) for one in seen if one.symbol}
    return frozenset(symbols - {_conversion_place(one) for one in seen if not one.symbol})


# Which runs of eager may be watched for branches while they answer, and what that showed.
#
# Watching puts modes of torch around a run. Where the outputs are the same bits so, and no module
# is known that asks about modes, a run that is watched is eager's own answer: a feed need not be
# run twice, once to answer and once to be watched. That ends at the first value of tensor data that
# becomes a Python value: then all feeds are watched apart.


FeedShapes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]  # the shape of each input

# Classes (or bases) of modules that behave differently under modes.
_UNWATCHABLE_CLASSES = frozenset(
    ("MultiheadAttention", "TransformerEncoder", "TransformerEncoderLayer", "OptimizedModule")
)


def shapes_of_feed(feed: Feed) -> FeedShapes:
    """Return the shapes of a feed's inputs."""
    return tuple((name, tuple(array.shape)) for name, array in feed.items())


def is_watchable(module: torch.nn.Module) -> bool:
    """Whether no submodule is known to behave differently under modes, or to bypass them."""
    if has_script(module):
        return False
    kinds = {type(part) for part in module.modules()}
    return not any(base.__name__ in _UNWATCHABLE_CLASSES for kind in kinds for base in kind.__mro__)


def is_bitwise_equal(one: Outputs, other: Outputs) -> bool:
    """Whether all outputs are equal in names, dtypes, shapes and bytes."""
    return list(one) == list(other) and all(
        array.dtype == other[name].dtype
        and array.shape == other[name].shape
        and array.tobytes() == other[name].tobytes()
        for name, array in one.items()
    )


class QuietShapes:
    """The shapes of feeds without conversions of tensor data.

    Closed until a run is known to be the same under observation, and after the first conversion.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._forms: set[FeedShapes] = set()

    @property
    def forms(self) -> frozenset[FeedShapes]:
        """The shapes so far; empty after a conversion."""
        return frozenset(self._forms)

    def is_open(self, feed: Feed) -> bool:
        """Whether the feed may be observed in its reference run, and has new shapes."""
        return self._is_open and shapes_of_feed(feed) not in self._forms

    def open(self, feed: Feed, seen: ConversionLog) -> None:
        """Record that an observed run is bitwise equal to a plain one."""
        self._is_open = True
        self.add(feed, seen)

    def add(self, feed: Feed, seen: ConversionLog) -> bool:
        """Add an observed run; return whether it had no conversions."""
        if seen:
            self._is_open = False
            self._forms.clear()
        elif self._is_open:
            self._forms.add(shapes_of_feed(feed))
        return not seen


# Shortcuts of libraries that leave out what changes nothing, and that they turn off in a capture.
#
# Both outcomes of such a branch on tensor data compute the same, so feeds need not take both.


# transformers tests whether a padding mask hides anything; if not, sdpa gets no mask or
# `is_causal`.
# While a model is traced or exported, these return False.
_SHORTCUTS = {
    "transformers.masking_utils": ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa"),
}


def are_library_shortcuts(places: Collection[Place]) -> bool:
    """Whether all places are in such functions of loaded libraries."""
    spans = list(_shortcut_spans())
    return bool(places) and all(
        any(file == known and first <= line <= last for known, first, last in spans)
        for file, line in places
    )


def _shortcut_spans() -> list[tuple[str, int, int]]:
    """Return file, first and last line of each shortcut."""
    found = []
    for name, functions in _SHORTCUTS.items():
        here = vars(sys.modules[name]) if name in sys.modules else {}
        for function in (here.get(one) for one in functions):
            if isinstance(function, FunctionType):
                code = function.__code__
                lines = [line for _, _, line in code.co_lines() if line is not None]
                found.append((code.co_filename, code.co_firstlineno, max(lines)))
    return found
