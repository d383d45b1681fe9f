"""Find sizes at which forward takes other branches, and compare a trace with eager there."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from ..core.contract import Job
from ..core.domain import Sizes, sample_points, sample_sizes
from ..core.errors import join_some
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

_SEEN = "compared"  # key in a job's programs: the result for a trace
_FOLLOWED = "followed"  # key in a job's programs: paths through forward by sizes
_TOLERANCE = 1e-4  # relative: a trace calls the same operators as eager
_KEPT = 2  # sizes to try at which a condition breaks
_PATHS = 6  # paths through forward to follow
_PAIRED = 256  # sizes of a dim to pair with those of another
_LISTED = 4  # lines that a note lists
_Key: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class SizeComparison:
    """The sizes that were tried in order, the first wrong one, and notes on the rest.

    `lost` says that a size became a Python number in forward.
    """

    sizes: tuple[Sizes, ...] = ()
    wrong: Sizes | None = None
    notes: tuple[str, ...] = ()
    lost: bool = False


def find_wrong_size(
    program: Callable[..., object], job: Job
) -> tuple[Sizes | None, tuple[str, ...]]:
    """Return the first size at which a trace differs from eager, and notes.

    Sizes are tried at which conditions in forward have another outcome than in the example: none if
    torch.export has a program for all sizes, first those which its conditions exclude.
    """
    from torch.jit import ScriptModule

    known = job.programs.get(OUTSIDE)
    if isinstance(known, Sequence):
        wrong = first_mismatch(program, job, known, tolerance=_TOLERANCE)
        if wrong is not None or not known:
            return wrong, ()
    seen = job.programs.get(_SEEN)
    if isinstance(seen, SizeComparison):
        return first_mismatch(program, job, seen.sizes, tolerance=_TOLERANCE), seen.notes
    if not job.signature.free_dims or isinstance(model_of(job).module, ScriptModule):
        return None, ()
    found = compare_sizes(program, job)
    job.programs[_SEEN] = found
    return found.wrong, found.notes


def find_right_interval(
    program: Callable[..., object], job: Job, wrong: Sizes
) -> tuple[str, int, int] | None:
    """Return the interval of a dim, around the captured size, in which a trace is right.

    The dim makes the trace wrong by itself; the end is found by bisection between the captured and
    the wrong size. None if there is no such dim, or the interval is empty.
    """
    example = feed_sizes(job.signature, job.example)
    for name, dim in job.signature.free_dims.items():
        right, bad = example[name], wrong[name]
        if right == bad or _is_right(program, job, name, bad):
            continue
        while abs(right - bad) > 1:
            middle = (right + bad) // 2
            if _is_right(program, job, name, middle):
                right = middle
            else:
                bad = middle
        low, high = (right, dim.high) if bad < right else (dim.low, right)
        low, high = _interval_between_branches(program, job, name, (low, high))
        return (name, low, high) if low < high else None
    return None


def _is_right(program: Callable[..., object], job: Job, name: str, size: int) -> bool:
    """Whether a trace is right at a size of one dim, the others as captured."""
    sizes = {**feed_sizes(job.signature, job.example), name: size}
    return first_mismatch(program, job, [sizes], tolerance=_TOLERANCE) is None


def _interval_between_branches(
    program: Callable[..., object], job: Job, name: str, ends: tuple[int, int]
) -> tuple[int, int]:
    """Return the part of an interval around the captured size without wrong branch sizes."""
    example = feed_sizes(job.signature, job.example)
    low, high = ends
    search = _BranchSearch(program=None, job=job, waiting=[example], between=(name, *ends))
    search.run()
    others = {one[name] for one in search.tried if one[name] != example[name]}
    for size in sorted(others, key=lambda one: abs(one - example[name])):
        if low <= size <= high and not _is_right(program, job, name, size):
            low, high = (size + 1, high) if size < example[name] else (low, size - 1)
    return low, high


def branch_sizes(job: Job) -> tuple[Sizes, ...]:
    """Return known sizes at which forward takes other branches than in the example.

    They come from the job's trace if there is one.
    """
    from torch.jit import ScriptModule

    seen = job.programs.get(_SEEN)
    if isinstance(seen, SizeComparison):
        return seen.sizes
    if not job.signature.free_dims or isinstance(model_of(job).module, ScriptModule):
        return ()
    return compare_sizes(None, job).sizes


def compare_sizes(
    program: Callable[..., object] | None, job: Job, *beside: Sizes
) -> SizeComparison:
    """Compare a program with eager at sizes of other branches, until it is wrong.

    Forward runs with symbolic sizes, again at sizes of other branches, which may contain further
    conditions.

    Args:
        program: the captured program; None only finds the sizes.
        job: its example is the first size.
        beside: further sizes to start from.
    """
    at = feed_sizes(job.signature, job.example)
    search = _BranchSearch(program=program, job=job, waiting=[at, *beside])
    wrong = search.run()
    notes, lost = search.notes(), bool(search.lost)
    return SizeComparison(sizes=tuple(search.tried), wrong=wrong, notes=notes, lost=lost)


@dataclass(kw_only=True)
class _BranchSearch:
    """Searches paths through forward by sizes, each from its first size.

    `between` limits the search to an interval of one dim, and to paths that were followed before.
    """

    program: Callable[..., object] | None
    job: Job
    waiting: list[Sizes]
    between: tuple[str, int, int] | None = None
    tried: list[Sizes] = field(default_factory=list)
    starts: list[Sizes] = field(default_factory=list)  # where followed paths start
    met: dict[str, SizeConstraint] = field(default_factory=dict)  # by its text
    lost: dict[str, None] = field(default_factory=dict)
    stopped: dict[str, None] = field(default_factory=dict)
    unread: dict[str, None] = field(default_factory=dict)
    answered: bool = False

    def run(self) -> Sizes | None:
        """Follow waiting and new paths; return the first wrong size."""
        for _ in range(_PATHS):
            if not self.waiting:
                break
            at = self.waiting.pop(0)
            if self.between is not None and self.met and _sizes_key(at) not in self._traces_from():
                continue
            for constraint, sizes in self._other_outcomes(at):
                unseen = [one for one in sizes if not self._is_fed(constraint, one)]
                wrong = self._wrong_at(unseen)
                self.tried += sizes
                if wrong is not None:
                    return wrong
                self.waiting.append(sizes[0])
                self.starts.append(sizes[0])
        by_bytes = reads_storage(self.job)
        if by_bytes:
            self.unread["it reads the bytes of a tensor"] = None
        if not (self.lost or self.stopped or self.unread or self.answered or self.waiting):
            return None
        # Symbols do not show all dependencies on sizes; bytes depend on all sizes.
        further = find_branch_sizes(self.job, at_least_too=by_bytes)
        self.tried += further
        return self._wrong_at(further)

    def _wrong_at(self, sizes: Iterable[Sizes]) -> Sizes | None:
        return (
            None
            if self.program is None
            else first_mismatch(self.program, self.job, sizes, tolerance=_TOLERANCE)
        )

    def _is_fed(self, constraint: SizeConstraint, sizes: Sizes) -> bool:
        """Whether a feed has these sizes, so that the verdict covers them."""
        signature = self.job.signature
        fed = [feed_sizes(signature, feed) for feed in self.job.feeds]
        return sizes in fed or is_at_range_end(constraint, [sizes], signature)

    def _other_outcomes(self, at: Sizes) -> Iterator[tuple[SizeConstraint, list[Sizes]]]:
        """Yield, for each condition on the path at these sizes, sizes with another outcome.

        Conditions before it keep their outcomes, so that the condition is evaluated.
        """
        signature = self.job.signature
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # shown already by the trace
            found = self._follow(at)
        constraints, unread = parse_constraints(found.guards, signature)
        self.met.update({one.guard: one for one in constraints})
        self.lost.update(found.lost)
        self.stopped.update(dict.fromkeys(filter(None, [found.ended])))
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
            known_outcomes = map(
                self._outcomes, [*self.starts, feed_sizes(signature, self.job.example)]
            )
            if sizes and self._outcomes(sizes[0]) not in list(known_outcomes):
                yield constraint, sizes

    def _outcomes(self, sizes: Sizes) -> tuple[bool, ...]:
        """Return the outcomes of all known conditions at these sizes."""
        return tuple(is_satisfied(one, self.job.signature, sizes) for one in self.met.values())

    def _follow(self, at: Sizes) -> ShapeTrace:
        """Run forward with symbolic sizes from these sizes, once in a run."""
        job, seen = self.job, self._traces_from()
        if _sizes_key(at) not in seen:
            seen[_sizes_key(at)] = trace_symbolic_shapes(
                model_of(job).flat, tuple(resize_example(job, at)), job.signature
            )
        return seen[_sizes_key(at)]

    def _traces_from(self) -> dict[_Key, ShapeTrace]:
        """Return the symbolic runs by their sizes."""
        seen = self.job.programs.setdefault(_FOLLOWED, {})
        if not isinstance(seen, dict):
            raise TypeError(f"{type(seen).__name__} is not a dict of symbolic runs")
        return seen

    def notes(self) -> tuple[str, ...]:
        """Return notes on dependencies on sizes that only feeds test."""
        judged = "only feeds test the dependency on sizes"
        notes = [f"{judged} after {text}" for text in self.stopped]
        notes += [f"a condition on sizes is unreadable: {text}" for text in self.unread]
        if self.lost:
            lines = join_some([*self.lost], _LISTED)
            notes.append(f"sizes become Python numbers at {lines}: {judged} from there")
        if self.waiting:
            notes.append(f"{len(self.waiting)} more paths through forward by sizes: {judged} there")
        return tuple(notes)


def _sizes_key(sizes: Sizes) -> _Key:
    return tuple(sorted(sizes.items()))


def _break_constraint(
    constraint: SizeConstraint, signature: Signature, at: Sizes
) -> Iterator[Sizes]:
    """Yield sizes in range at which a condition does not hold, smallest first.

    Pairs and distant sizes are searched only if no others break it.
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
    """Yield sizes of two dims, the second computed from the first and numbers of the condition."""
    dims, named = signature.free_dims, constraint.dims(signature)
    for one, other in itertools.permutations(named, 2):
        low, high = dims[one].low, dims[one].high
        for size in {*sample_sizes(dims[one]), *range(low, min(high, low + _PAIRED) + 1)}:
            for second in _combine_sizes(size, constraint.numbers):
                if dims[other].low <= second <= dims[other].high:
                    yield {**at, one: size, other: second}


def _distant_sizes(constraint: SizeConstraint, signature: Signature, at: Sizes) -> Iterator[Sizes]:
    """Yield sizes of a dim computed from two numbers: `n // 2 == 15000` changes at 30000."""
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
