"""Find branches on tensor data in the user's forward, and the outcome that each feed takes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, TypeAlias

from ..core.contract import Feed
from ..core.errors import first_line
from ..core.findings import BranchRecord
from .branch_coverage import Place, trace_branch_outcomes
from .float64_eager import has_script
from .source_decisions import BranchTest, KeptValue, ValueUse
from .source_positions import is_within
from .taint import Conversion, ConversionLog
from .user_code import code_folders
from .value_dataflow import find_value_uses

if TYPE_CHECKING:
    import torch

    from ..core.contract import Outputs

EXAMPLE = "example"  # what the feed that is captured is called
_OUTCOMES = {"T": "true", "F": "false"}

RunFeed = Callable[[Feed], object]
WatchFeed = Callable[[Feed], ConversionLog]  # runs a feed, and gives what it saw


@dataclass(frozen=True, kw_only=True)
class DataBranch:
    """A branch or a kept value that depends on tensor data, and where it comes from.

    `places` are the lines at which tensors become the Python values that decide it. `others` are
    the feeds that went another way than the one that is captured.
    """

    record: BranchRecord
    places: frozenset[Place]
    others: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class BranchReport:
    """What watching eager on every feed showed.

    `idle` are lines that convert tensor data and change nothing that is computed: checks,
    messages. `within` are lines of the user's under which torch's own code asks for data.
    `incomplete` is why not everything could be watched; empty where it could.
    """

    found: tuple[DataBranch, ...] = ()
    idle: frozenset[Place] = frozenset()
    within: frozenset[Place] = frozenset()
    runs: int = 0
    incomplete: str = ""

    @property
    def records(self) -> tuple[BranchRecord, ...]:
        """The branches alone."""
        return tuple(one.record for one in self.found)

    def at(self, place: Place) -> tuple[DataBranch, ...]:
        """What the Python value made at a line decides."""
        return tuple(one for one in self.found if place in one.places)


@dataclass
class _DecisionCollector:
    """Collects, over feeds, what is decided by tensor data, and by which conversions."""

    modules: dict[ValueUse, str] = field(default_factory=dict)
    places: dict[ValueUse, set[Place]] = field(default_factory=dict)
    values: dict[ValueUse, dict[str, list[str]]] = field(default_factory=dict)
    within: set[Place] = field(default_factory=set)
    read: dict[Conversion, tuple[ValueUse, ...]] = field(default_factory=dict)

    def add(self, feed: str, seen: ConversionLog) -> None:
        """Take in what one feed showed."""
        for conversion, values in seen.items():
            if conversion not in self.read:
                self.read[conversion] = self._read(conversion)
            for meaning in self.read[conversion]:
                self.modules.setdefault(meaning, conversion.module)
                self.places.setdefault(meaning, set()).add(_conversion_place(conversion))
                self.values.setdefault(meaning, {}).setdefault(feed, []).extend(values)

    def _read(self, conversion: Conversion) -> tuple[ValueUse, ...]:
        """Sizes are kept by captures, so only branches on them count; of torch's own, likewise."""
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
        """The branches, in the order in which they were met."""
        return [meaning for meaning in self.places if isinstance(meaning, BranchTest)]

    def list_kept_values(self, reached: Collection[ValueUse]) -> list[KeptValue]:
        """The statements that keep a value which decides no branch that was reached."""
        decided = {
            meaning
            for found in self.read.values()
            if any(meaning in reached for meaning in found)
            for meaning in found
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
    """Watch eager on the feeds that artifacts are judged on, and on the one that is captured.

    Without any value of tensor data in Python, feeds of the same form run the same code: one of
    each form is watched then. Else all are, and once more for the arms where there are branches.

    Args:
        feeds: by name, each of which eager takes.
        example: the feed that was captured; None where that is not known: the first stands for it.
        watch: runs one feed and gives the conversions that it saw.
        run: runs one feed plainly.
        quiet: forms of which a feed was watched before, and had no such value.
    """
    named = [*feeds] if example is None else [(EXAMPLE, example), *feeds]
    sources = _DecisionCollector()
    try:
        runs = _collect_decisions(named, watch, sources, set(quiet))
        ways = {
            name: _trace_outcomes(run, feed, sources.tests) for name, feed in named if sources.tests
        }
    except Exception as error:  # noqa: BLE001 - an instrumented run may fail where a plain one did not
        return BranchReport(incomplete=first_line(error))
    order = [*(name for name, _ in feeds), *([] if example is None else [EXAMPLE])]
    reached = {
        test: index
        for index, test in enumerate(sources.tests)
        if any(way[index] for way in ways.values())
    }
    found = [
        *(_make_branch(test, index, ways, order, sources) for test, index in reached.items()),
        *(_make_kept_branch(held, order, sources) for held in sources.list_kept_values(reached)),
    ]
    idle = {
        place
        for meaning, places in sources.places.items()
        if not isinstance(meaning, (BranchTest, KeptValue))
        for place in (*places, (meaning.file, meaning.line))
    }
    return BranchReport(
        found=tuple(found),
        idle=frozenset(idle),
        within=frozenset(sources.within),
        runs=runs + len(ways),
    )


def _trace_outcomes(run: RunFeed, feed: Feed, tests: Sequence[BranchTest]) -> tuple[str, ...]:
    return trace_branch_outcomes(lambda: run(feed), tests)


def _collect_decisions(
    named: Sequence[tuple[str, Feed]],
    watch: WatchFeed,
    sources: _DecisionCollector,
    forms: set[FeedShapes],
) -> int:
    """Watch feed after feed, of known forms only where others had values; says how many were."""
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
    ways: dict[str, tuple[str, ...]],
    order: list[str],
    sources: _DecisionCollector,
) -> DataBranch:
    arms: dict[str, str] = {}
    for name in order:
        for way in dict.fromkeys(ways[name][index]):
            arms.setdefault(_OUTCOMES[way], name)
    captured = ways[_name_example(order)][index]
    others = tuple(name for name in order if ways[name][index] != captured)
    record = BranchRecord(
        file=shorten_path(test.file),
        line=test.line,
        condition=test.condition,
        module=sources.modules[test],
        arms=arms,
        data=True,
        kind=test.kind,
        same=not others,
    )
    lines = range(test.span[0], test.span[2] + 1)
    places = {*sources.places[test], *((test.file, line) for line in lines)}
    return DataBranch(record=record, places=frozenset(places), others=others)


def _make_kept_branch(held: KeptValue, order: list[str], sources: _DecisionCollector) -> DataBranch:
    values = sources.values[held]
    captured = values.get(_name_example(order))
    others = tuple(name for name in order if values.get(name) != captured)
    record = BranchRecord(
        file=shorten_path(held.file),
        line=held.line,
        condition=held.text,
        module=sources.modules[held],
        data=True,
        kind="value",
        same=not others,
    )
    return DataBranch(record=record, places=frozenset(sources.places[held]), others=others)


def _name_example(order: list[str]) -> str:
    """The feed that was captured, or the one that stands for it."""
    return EXAMPLE if EXAMPLE in order else order[0]


def _conversion_place(conversion: Conversion) -> Place:
    """The line at which the tensor became a Python value."""
    return conversion.sites[0].file, conversion.sites[0].line


def conversion_places(seen: Iterable[Conversion]) -> frozenset[Place]:
    """The lines of the user's code at which tensors became Python values."""
    return frozenset(_conversion_place(conversion) for conversion in seen if not conversion.symbol)


def symbol_places(seen: Iterable[Conversion]) -> frozenset[Place]:
    """The lines at which a capture made symbols of them, and no plain values."""
    symbols = frozenset(_conversion_place(conversion) for conversion in seen if conversion.symbol)
    return symbols - conversion_places(seen)


def shorten_path(file: str) -> str:
    """A file relative to the current folder or to where it is imported from, if it lies there."""
    path = Path(file)
    for root in map(Path, (*code_folders(), *sys.path)):
        if root.is_absolute() and path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return str(path)


# Which runs of eager may be watched for branches while they answer, and what that showed.
#
# Watching puts modes of torch around a run. Where the outputs are the same bits so, and no module
# is known that asks about modes, a run that is watched is eager's own answer: a feed need not be
# run twice, once to answer and once to be watched. That ends at the first value of tensor data that
# becomes a Python value: then all feeds are watched apart.


FeedShapes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]  # each input with its shape

# Modules that take another path where a mode sees their calls, by the name of a class or a base.
_UNWATCHABLE_CLASSES = frozenset(
    ("MultiheadAttention", "TransformerEncoder", "TransformerEncoderLayer", "OptimizedModule")
)


def shapes_of_feed(feed: Feed) -> FeedShapes:
    """The shapes that Python code can tell feeds apart by, data aside."""
    return tuple((name, tuple(array.shape)) for name, array in feed.items())


def is_watchable(module: torch.nn.Module) -> bool:
    """Whether no part is known to compute otherwise where it is watched, or not to be seen."""
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
    """The forms of feeds on which a watched run turned no tensor data into Python values.

    Closed until a run was shown to be the same when it is watched, and from the first on that
    was not quiet.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._forms: set[FeedShapes] = set()

    @property
    def forms(self) -> frozenset[FeedShapes]:
        """The forms so far; none where one was not quiet."""
        return frozenset(self._forms)

    def is_open(self, feed: Feed) -> bool:
        """Whether the feed may be watched while it is run, and is of a form not seen yet."""
        return self._is_open and shapes_of_feed(feed) not in self._forms

    def open(self, feed: Feed, seen: ConversionLog) -> None:
        """A watched run gave the same bits as a plain one."""
        self._is_open = True
        self.add(feed, seen)

    def add(self, feed: Feed, seen: ConversionLog) -> bool:
        """Take in a watched run; whether it was quiet."""
        if seen:
            self._is_open = False
            self._forms.clear()
        elif self._is_open:
            self._forms.add(shapes_of_feed(feed))
        return not seen


# Shortcuts of libraries that leave out what changes nothing, and that they turn off in a capture.
#
# Such a branch on tensor data has an arm that no feed need take: either arm computes the same.


# transformers asks of a padding mask whether it hides anything; where it does not, sdpa gets none,
# or `is_causal` in its place. While a model is traced or exported these give False at once.
_SHORTCUTS = {
    "transformers.masking_utils": ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa"),
}


def are_library_shortcuts(places: Collection[Place]) -> bool:
    """Whether all places lie in such functions, as the libraries that are loaded have them."""
    spans = list(_shortcut_spans())
    return bool(places) and all(
        any(file == known and first <= line <= last for known, first, last in spans)
        for file, line in places
    )


def _shortcut_spans() -> list[tuple[str, int, int]]:
    """File, first and last line of each."""
    found = []
    for name, functions in _SHORTCUTS.items():
        here = vars(sys.modules[name]) if name in sys.modules else {}
        for function in (here.get(one) for one in functions):
            if isinstance(function, FunctionType):
                code = function.__code__
                lines = [line for _, _, line in code.co_lines() if line is not None]
                found.append((code.co_filename, code.co_firstlineno, max(lines)))
    return found
