"""Relax guards of torch.export if the program is verified to be right without them."""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ..checkpoints.source_positions import is_user_file
from ..core.contract import Job
from ..core.domain import Sizes, sample_points, sample_sizes
from ..core.errors import join_some
from ..core.signature import Signature
from .captured_program import ExportCapture
from .size_branches import compare_sizes
from .size_checks import first_mismatch
from .size_constraints import (
    ConstraintCheck,
    SizeConstraint,
    boundary_sizes,
    check_constraints,
    is_satisfied,
)

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger(__name__)
_TOLERANCE = 1e-4  # relative, as for a trace
_BROKEN, _HOLDING = 4, 2  # sizes to try on either side of each condition
_LISTED = 2  # conditions that the note lists
_TWO = 2  # torch's minimum of every range, also for 0 and 1


def _drop_guards(
    program: torch.export.ExportedProgram, broken: Sequence[SizeConstraint], signature: Signature
) -> None:
    """Remove these conditions from the program, and restore the ranges that they narrowed.

    The program checks its ranges; `fix_guards` adds a minimum size of 1.
    """
    from torch.utils._sympy.value_ranges import ValueRanges

    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    keys = program.graph_signature.user_inputs
    for key, spec in zip(keys, signature.inputs, strict=True):
        for size, dim in zip(getattr(values.get(str(key)), "shape", ()), spec.dims, strict=False):
            symbol = None if isinstance(size, int) else size.node.expr
            found = program.range_constraints.get(symbol)
            if found is None or not dim.dynamic or not dim.bounded:
                continue
            low, high = min(int(found.lower), max(dim.low, _TWO)), max(int(found.upper), dim.high)
            program.range_constraints[symbol] = ValueRanges(low, high)
    dropped = {one.guard for one in broken}
    program._guards_code = [one for one in program._guards_code if one not in dropped]


def relax_guards(
    program: torch.export.ExportedProgram, checked: ConstraintCheck, job: Job, example: Sizes
) -> ExportCapture | None:
    """Return the program for all sizes, if it is right on both sides of each broken condition.

    Otherwise it is tried without unread writes, such as caches that are filled and not returned.

    Args:
        program: the program of torch.export; its conditions and ranges are changed.
        checked: the conditions that do not hold in all requested ranges.
        job: provides the example to resize.
        example: the captured sizes.
    """
    found = _verify_program(program, checked.broken, job, example)
    if found is not None or not _has_unread_writes(program):
        return found
    bare = _functionalize(program)
    if bare is None:
        return None
    more = check_constraints(bare, job.signature, example)
    return _verify_program(bare, (*checked.broken, *more.broken), job, example)


def _verify_program(
    program: torch.export.ExportedProgram,
    broken: Sequence[SizeConstraint],
    job: Job,
    example: Sizes,
) -> ExportCapture | None:
    """Verify the program without its broken conditions; None if it may be wrong.

    Sizes that eager rejects mean that the condition is the model's own. Further branches behind the
    conditions are compared as well; a size that became a Python number rules verification out.
    """
    places = _sizes_to_verify(broken, job.signature, example)
    if not places:
        return None
    _drop_guards(program, broken, job.signature)
    made = program.module(check_guards=False)
    answered = []

    def count_answers(*tensors: torch.Tensor) -> object:
        """Count sizes that eager accepts."""
        answered.append(True)
        return made(*tensors)

    wrong = first_mismatch(count_answers, job, places, tolerance=_TOLERANCE)
    if wrong is not None or len(answered) < len(places):
        return None
    around = compare_sizes(made, job, places[-1])
    if around.wrong is not None or around.lost:
        return None
    return ExportCapture(
        program=program, places=places, notes=(_relaxation_note(broken, places), *around.notes)
    )


def _has_unread_writes(program: torch.export.ExportedProgram) -> bool:
    """Whether it mutates tensors by operators whose results nothing reads."""
    schemas = (
        getattr(node.target, "_schema", None) for node in program.graph.nodes if not node.users
    )
    return any(schema is not None and schema.is_mutable for schema in schemas)


def _functionalize(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram | None:
    """Return the program without mutation, and so without computations for unread writes."""
    try:
        with oblivious_sizes(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations in torch's own code
            made: torch.export.ExportedProgram = program.run_decompositions({})
            return made
    except Exception as error:  # noqa: BLE001 - torch raises anything
        _LOG.warning("without writes into tensors: %s", error)
        return None


def _relaxation_note(broken: Sequence[SizeConstraint], places: Sequence[Sizes]) -> str:
    """Return a note on the assumed conditions, and the sizes of verification."""
    texts = sorted({one.text for one in broken}, key=len)
    shown = join_some(texts, _LISTED, "; ")
    return (
        f"torch.export took for granted: {shown}; judged at {len(places)} sizes on both"
        " sides of that"
    )


def _sizes_to_verify(
    broken: Sequence[SizeConstraint], signature: Signature, example: Sizes
) -> tuple[Sizes, ...]:
    """Return sizes at which each condition breaks and holds; empty if one has not both.

    Sizes at which a condition flips come first, the one with most broken conditions last.
    """
    chosen: list[Sizes] = []
    drawn = [one for one in sample_points(signature, example) if _is_drawable(one, signature)]
    for constraint in broken:
        near = [
            *_flip_sizes(constraint, signature, example),
            *_spread_sizes(drawn, constraint, signature),
        ]
        near += [
            one
            for one in boundary_sizes(constraint, signature, example)
            if _is_drawable(one, signature)
        ]
        for side, wanted in ((False, _BROKEN), (True, _HOLDING)):
            mine = [one for one in near if is_satisfied(constraint, signature, one) is side]
            known = sum(is_satisfied(constraint, signature, one) is side for one in chosen)
            fresh = _unique_sizes(mine, known_sizes=chosen)[: max(wanted - known, 0)]
            if not known and not fresh:
                return ()
            chosen += fresh
    most = max(drawn, key=lambda one: sum(not is_satisfied(c, signature, one) for c in broken))
    return (*chosen, *_unique_sizes([most], known_sizes=chosen))


def _flip_sizes(
    constraint: SizeConstraint, signature: Signature, example: Sizes
) -> Iterator[Sizes]:
    """Yield the first and last neighbouring sizes of each dim between which the condition flips."""
    for name, dim in signature.free_dims.items():
        sizes = [size for size in sample_sizes(dim) if size <= dim.high]
        pairs = [
            (one, other)
            for one, other in pairwise({**example, name: size} for size in sizes)
            if is_satisfied(constraint, signature, one)
            is not is_satisfied(constraint, signature, other)
        ]
        for pair in (*pairs[:1], *pairs[-1:]):
            yield from pair


def _spread_sizes(
    drawn: Sequence[Sizes], constraint: SizeConstraint, signature: Signature
) -> Iterator[Sizes]:
    """Yield the last, the first and some sizes between, on each side of the condition."""
    for side in (False, True):
        found = [one for one in drawn if is_satisfied(constraint, signature, one) is side]
        yield from found[-1:]
        yield from found[:: max(len(found) // _BROKEN, 1)]


def _is_drawable(sizes: Sizes, signature: Signature) -> bool:
    """Whether feeds of these sizes are drawn."""
    return all(sizes[name] <= dim.high for name, dim in signature.free_dims.items())


def _unique_sizes(found: Iterable[Sizes], *, known_sizes: Iterable[Sizes]) -> list[Sizes]:
    """Return the sizes once, without known ones."""
    known = [dict(one) for one in known_sizes]
    fresh: list[Sizes] = []
    for one in found:
        if dict(one) not in [*known, *map(dict, fresh)]:
            fresh.append(one)
    return fresh


_LOGGER = "torch.fx.experimental.symbolic_shapes"
_FIXED = re.compile(r"eval Eq\(\w+, \d+\) \[guard added\]")


class _SpecializationHandler(logging.Handler):
    """Collects the user's lines that fix a size, from torch's log messages."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        place = _user_place() if _FIXED.search(record.getMessage()) else ""
        if place:
            self.found.append(place)


def _user_place() -> str:
    """Return `file:line` of the user's innermost frame; empty without one.

    Frames above this package started the export, and are not the model's.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_user_file(name):
            return f"{name}:{frame.f_lineno}"
        if name != __file__ and Path(name).parent == Path(__file__).parent:
            return ""
        frame = frame.f_back
    return ""


@contextmanager
def specialization_places() -> Iterator[list[str]]:
    """Collect the lines, `file:line`, at which sizes become numbers within the context.

    Torch only logs that, and looks up the line of each guard, so use it for a second run only.
    """
    logger, places = logging.getLogger(_LOGGER), _SpecializationHandler()
    before = logger.level, logger.propagate
    logger.addHandler(places)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # other messages of that level are for torch's developers
    try:
        yield places.found
    finally:
        logger.removeHandler(places)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def oblivious_sizes() -> AbstractContextManager[object]:
    """Return torch's context in which 0 and 1 are not special sizes."""
    from torch.fx.experimental import _config

    if not hasattr(_config, "backed_size_oblivious"):
        return nullcontext()
    return _config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined,no-any-return]
