"""Find sizes at which forward takes another branch, and compare a trace with eager there."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from ..core.contract import Job
from ..core.domain import Sizes, sample_points, sample_sizes
from .call_recording import find_branch_sizes, reads_storage
from .captured_program import model_of
from .size_checks import OUTSIDE, feed_sizes, first_mismatch, resize_example
from .size_constraints import (
    SizeConstraint,
    are_satisfied,
    boundary_sizes,
    is_at_range_end,
    is_satisfied,
    parse_constraints,
)
from .symbolic_shapes import ShapeTrace, trace_symbolic_shapes

if TYPE_CHECKING:
    from ..core.signature import Signature

_SEEN = "compared"  # in a job's programs: what was found for a trace before
_FOLLOWED = "followed"  # in a job's programs: what was seen of a way through forward, by its sizes
_OFF = 1e-4  # of the largest value: a trace calls the very same operators as eager
_KEPT = 2  # sizes at which a condition breaks that are tried
_PATHS = 6  # ways through forward that are followed
_PAIRED = 256  # sizes of a dim to which those of another are looked for
_TOLD = 4  # lines that a note names
_Key: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class SizeComparison:
    """The sizes that were tried, in order, which of them is wrong, and what could not be tried.

    `lost` says that a size became a plain number on the way.
    """

    sizes: tuple[Sizes, ...] = ()
    wrong: Sizes | None = None
    notes: tuple[str, ...] = ()
    lost: bool = False


def find_wrong_size(made: Callable[..., object], job: Job) -> tuple[Sizes | None, tuple[str, ...]]:
    """The first size at which a trace gives something else than eager, and notes.

    Looked at are sizes at which conditions of forward on sizes turn out otherwise than in the
    example. Where torch.export gave a program for all sizes there are none; those of which it said
    that it was not made for them come first.
    """
    from torch.jit import ScriptModule

    known = job.programs.get(OUTSIDE)
    if isinstance(known, Sequence):
        wrong = first_mismatch(made, job, known, off=_OFF)
        if wrong is not None or not known:
            return wrong, ()
    seen = job.programs.get(_SEEN)
    if isinstance(seen, SizeComparison):
        return first_mismatch(made, job, seen.sizes, off=_OFF), seen.notes
    if not job.signature.free_dims or isinstance(model_of(job).module, ScriptModule):
        return None, ()
    found = compare_sizes(made, job)
    job.programs[_SEEN] = found
    return found.wrong, found.notes


def find_right_interval(
    made: Callable[..., object], job: Job, wrong: Sizes
) -> tuple[str, int, int] | None:
    """The sizes of one dim around the captured one at which a trace is right, as running it shows.

    The dim is one that makes the trace wrong by itself; the end is found by halving, on the way
    from the captured size to the wrong one. None where no dim does, or nothing is left.
    """
    example = feed_sizes(job.signature, job.example)
    for name, dim in job.signature.free_dims.items():
        right, bad = example[name], wrong[name]
        if right == bad or first_mismatch(made, job, [{**example, name: bad}], off=_OFF) is None:
            continue
        while abs(right - bad) > 1:
            middle = (right + bad) // 2
            if first_mismatch(made, job, [{**example, name: middle}], off=_OFF) is None:
                right = middle
            else:
                bad = middle
        low, high = (right, dim.high) if bad < right else (dim.low, right)
        low, high = _interval_between_branches(made, job, name, (low, high))
        return (name, low, high) if low < high else None
    return None


def _interval_between_branches(
    made: Callable[..., object], job: Job, name: str, ends: tuple[int, int]
) -> tuple[int, int]:
    """The part of an interval around the captured size without other sizes that are wrong.

    Looked at are those at which forward goes another way.
    """
    example = feed_sizes(job.signature, job.example)
    low, high = ends
    search = _BranchSearch(made=None, job=job, waiting=[example], between=(name, *ends))
    search.run()
    others = {one[name] for one in search.tried if one[name] != example[name]}
    for size in sorted(others, key=lambda one: abs(one - example[name])):
        if low <= size <= high and first_mismatch(made, job, [{**example, name: size}], off=_OFF):
            low, high = (size + 1, high) if size < example[name] else (low, size - 1)
    return low, high


def branch_sizes(job: Job) -> tuple[Sizes, ...]:
    """The sizes at which forward goes another way than at the example, as far as it was seen.

    What was found for a trace of the job's programs is given; else forward is followed.
    """
    from torch.jit import ScriptModule

    seen = job.programs.get(_SEEN)
    if isinstance(seen, SizeComparison):
        return seen.sizes
    if not job.signature.free_dims or isinstance(model_of(job).module, ScriptModule):
        return ()
    return compare_sizes(None, job).sizes


def compare_sizes(made: Callable[..., object] | None, job: Job, *beside: Sizes) -> SizeComparison:
    """Try what was captured where forward goes another way by sizes, until it is wrong.

    Forward is run with symbols for sizes, again at sizes at which it goes another way: an arm may
    ask for more.

    Args:
        made: what was captured; None only finds the sizes.
        job: its example is where the first way begins.
        beside: sizes at which other ways are known to begin.
    """
    at = feed_sizes(job.signature, job.example)
    search = _BranchSearch(made=made, job=job, waiting=[at, *beside])
    wrong = search.run()
    notes, lost = search.notes(), bool(search.lost)
    return SizeComparison(sizes=tuple(search.tried), wrong=wrong, notes=notes, lost=lost)


@dataclass(kw_only=True)
class _BranchSearch:
    """Ways through forward by sizes, each followed from the first size that takes it.

    `between` is a dim and the least and greatest of its sizes that are looked for; of further ways
    only those are followed that were before.
    """

    made: Callable[..., object] | None
    job: Job
    waiting: list[Sizes]
    between: tuple[str, int, int] | None = None
    tried: list[Sizes] = field(default_factory=list)
    begun: list[Sizes] = field(default_factory=list)  # where ways begin that are followed
    met: dict[str, SizeConstraint] = field(default_factory=dict)  # by its text
    lost: dict[str, None] = field(default_factory=dict)
    ended: dict[str, None] = field(default_factory=dict)
    unread: dict[str, None] = field(default_factory=dict)
    answered: bool = False

    def run(self) -> Sizes | None:
        """Follow what waits, then what goes another way; the first size that is wrong."""
        for _ in range(_PATHS):
            if not self.waiting:
                break
            at = self.waiting.pop(0)
            if self.between is not None and self.met and _sizes_key(at) not in self._traces_from():
                continue
            for constraint, sizes in self._other_ways(at):
                unseen = [one for one in sizes if not self._is_fed(constraint, one)]
                wrong = self._wrong_at(unseen)
                self.tried += sizes
                if wrong is not None:
                    return wrong
                self.waiting.append(sizes[0])
                self.begun.append(sizes[0])
        of_bytes = reads_storage(self.job)
        if of_bytes:
            self.unread["it reads how many bytes a tensor takes"] = None
        if not (self.lost or self.ended or self.unread or self.answered or self.waiting):
            return None
        # Symbols did not show all that sizes decide; bytes follow from all of them together.
        turning = find_branch_sizes(self.job, at_least_too=of_bytes)
        self.tried += turning
        return self._wrong_at(turning)

    def _wrong_at(self, sizes: Iterable[Sizes]) -> Sizes | None:
        return None if self.made is None else first_mismatch(self.made, self.job, sizes, off=_OFF)

    def _is_fed(self, constraint: SizeConstraint, sizes: Sizes) -> bool:
        """Whether a feed has these sizes: there the verdict judges."""
        signature = self.job.signature
        fed = [feed_sizes(signature, feed) for feed in self.job.feeds]
        return sizes in fed or is_at_range_end(constraint, [sizes], signature)

    def _other_ways(self, at: Sizes) -> Iterator[tuple[SizeConstraint, list[Sizes]]]:
        """For each condition of the way at these sizes, some at which it turns out otherwise.

        They are such that the conditions before it turn out as they did: then it is asked.
        """
        signature = self.job.signature
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they were shown when the trace ran
            found = self._follow(at)
        constraints, unread = parse_constraints(found.guards, signature)
        self.met.update({one.guard: one for one in constraints})
        self.lost.update(found.lost)
        self.ended.update(dict.fromkeys(filter(None, [found.ended])))
        self.unread.update(dict.fromkeys(unread))
        self.answered = self.answered or found.answered
        for place, constraint in enumerate(constraints):
            broken = list(_break_constraint(constraint, signature, at))
            if constraint.is_assumed and is_at_range_end(constraint, broken, signature):
                continue
            if self.between is not None:
                name, low, high = self.between
                broken = [one for one in broken if low <= one[name] <= high]
            reached = (one for one in broken if are_satisfied(constraints[:place], signature, one))
            sizes = list(itertools.islice(reached, _KEPT)) or broken[:_KEPT]
            ways = map(self._way, [*self.begun, feed_sizes(signature, self.job.example)])
            if sizes and self._way(sizes[0]) not in list(ways):
                yield constraint, sizes

    def _way(self, sizes: Sizes) -> tuple[bool, ...]:
        """How the conditions that were met turn out at these sizes."""
        return tuple(is_satisfied(one, self.job.signature, sizes) for one in self.met.values())

    def _follow(self, at: Sizes) -> ShapeTrace:
        """Forward with symbols for sizes, from these sizes; once in a run."""
        job, seen = self.job, self._traces_from()
        if _sizes_key(at) not in seen:
            seen[_sizes_key(at)] = trace_symbolic_shapes(
                model_of(job).flat, tuple(resize_example(job, at)), job.signature
            )
        return seen[_sizes_key(at)]

    def _traces_from(self) -> dict[_Key, ShapeTrace]:
        """What was seen in this run, by the sizes that it began at."""
        seen = self.job.programs.setdefault(_FOLLOWED, {})
        if not isinstance(seen, dict):
            raise TypeError(f"{type(seen).__name__} holds no ways through forward")
        return seen

    def notes(self) -> tuple[str, ...]:
        """What could not be followed, and is judged at the sizes of the feeds alone."""
        judged = "only feeds judge what sizes decide"
        notes = [f"{judged} after {text}" for text in self.ended]
        notes += [f"a condition on sizes could not be looked at: {text}" for text in self.unread]
        if self.lost:
            notes.append(
                f"sizes become plain numbers at {_join_sizes(self.lost)}: {judged} from there"
            )
        if self.waiting:
            more = len(self.waiting)
            notes.append(f"{more} more ways through forward by sizes: {judged} in them")
        return tuple(notes)


def _sizes_key(sizes: Sizes) -> _Key:
    return tuple(sorted(sizes.items()))


def _join_sizes(places: Iterable[str]) -> str:
    named = list(places)
    more = f" and {len(named) - _TOLD} more" if len(named) > _TOLD else ""
    return f"{', '.join(named[:_TOLD])}{more}"


def _break_constraint(
    constraint: SizeConstraint, signature: Signature, at: Sizes
) -> Iterator[Sizes]:
    """Sizes in range at which a condition does not hold, the least first, each once.

    Those that need a search of their own are looked for where all others let it hold.
    """
    each: tuple[Iterable[Sizes], ...] = (
        sample_points(signature, at),
        boundary_sizes(constraint, signature, at),
    )
    for looked_at in (
        each,
        (_pair_sizes(constraint, signature, at), _distant_sizes(constraint, signature, at)),
    ):
        found = {
            _sizes_key(sizes): sizes
            for sizes in itertools.chain.from_iterable(looked_at)
            if not is_satisfied(constraint, signature, sizes)
        }
        yield from sorted(found.values(), key=lambda sizes: sum(sizes.values()))
        if found:
            return


def _pair_sizes(constraint: SizeConstraint, signature: Signature, at: Sizes) -> Iterator[Sizes]:
    """Sizes of two dims, the second made of the first and the numbers that the condition names."""
    dims, named = signature.free_dims, constraint.dims(signature)
    for one, other in itertools.permutations(named, 2):
        low, high = dims[one].low, dims[one].high
        for size in {*sample_sizes(dims[one]), *range(low, min(high, low + _PAIRED) + 1)}:
            for second in _combine_sizes(size, constraint.numbers):
                if dims[other].low <= second <= dims[other].high:
                    yield {**at, one: size, other: second}


def _distant_sizes(constraint: SizeConstraint, signature: Signature, at: Sizes) -> Iterator[Sizes]:
    """Sizes of a dim made of any two numbers: `n // 2 == 15000` is so far out at 30000."""
    numbers = constraint.numbers
    for name in constraint.dims(signature):
        dim = signature.free_dims[name]
        for size in {size for number in numbers for size in _combine_sizes(number, numbers)}:
            if dim.low <= size and (size <= dim.high or not dim.bounded):
                yield {**at, name: size}


def _combine_sizes(size: int, numbers: Iterable[int]) -> Iterator[int]:
    yield from (size - 1, size, size + 1)
    for number in numbers:
        yield from (size * number, size // (number or 1), number // (size or 1), number - size,
                    size + number, size - number)  # fmt: skip
