"""Capture with torch.export: dynamic dims, TorchScript models, and a limit on solver time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.contract import EagerModel, Job
from ..core.domain import Sizes
from ..core.errors import ConversionError, Hint, Option
from ..core.signature import Dim, Signature
from .captured_program import ExportCapture, example_tensors, model_of
from .evidence import Symptom, evidence_in_error, evidence_of
from .framework_errors import call_framework
from .guard_relaxation import oblivious_sizes, relax_guards, specialization_places
from .refusals import RefusedError
from .size_branches import SizeComparison, compare_sizes
from .size_checks import OUTSIDE, feed_sizes, first_mismatch
from .size_constraints import ConstraintCheck, check_constraints, constraint_error, fix_guards
from .symbolic_shapes import watch_size_text

if TYPE_CHECKING:
    import torch

AS_TEXT = (
    "as text"  # key in a job's programs: a line at which the user's code formats a size as text
)


def capture_export(job: Job, *, strict: bool = False) -> ExportCapture:
    """Capture the model with `torch.export`, with the signature's dynamic dims and ranges."""
    import torch

    model = model_of(job)
    tensors = example_tensors(job)
    what = f"torch.export{' (strict)' if strict else ''}"
    flat = model.flat
    if isinstance(model.module, torch.jit.ScriptModule):  # torch.export would fix its sizes
        flat = call_framework(what, lambda: module_from_script(model, tensors))

    def export(shapes: DynamicShapes) -> torch.export.ExportedProgram:
        return call_framework(
            what,
            lambda: torch.export.export(flat, tensors, dynamic_shapes=(shapes,), strict=strict),
            job.signature,
        )

    texts = watch_size_text(lambda place: job.programs.update({AS_TEXT: place}))
    with torch.no_grad(), limit_solver(job.capture_timeout), texts:
        return export_in_ranges(job, export)


def capture_export_strict(job: Job) -> ExportCapture:
    """Capture the model with `torch.export` from bytecode, without running forward."""
    return capture_export(job, strict=True)


DynamicShapes: TypeAlias = tuple[dict[int, object], ...]  # by input, by axis
ExportCall: TypeAlias = Callable[[DynamicShapes], "torch.export.ExportedProgram"]

_LOG = logging.getLogger(__name__)


def dynamic_shapes(signature: Signature) -> DynamicShapes:
    """Return `dynamic_shapes` for the flat forward's one argument.

    A dim that others depend on is a named torch Dim, and theirs derive from it. The others are
    hints with ranges, also sums, for which torch has no dims: it finds their relation itself.
    """
    follow = (dim for dim in signature.dims_with_names() if dim.relation and not dim.is_sum)
    related = {dim.bases[0] for dim in follow}
    bases = {name: _new_dim(dim) for name, dim in signature.free_dims.items() if name in related}
    return tuple(
        {axis: _torch_dim(dim, bases) for axis, dim in enumerate(spec.dims) if dim.dynamic}
        for spec in signature.inputs
    )


def _torch_dim(dim: Dim, bases: dict[str, object]) -> object:
    import torch

    base = None if dim.is_sum else bases.get(dim.bases[0])
    if base is None and dim.bounded:
        return torch.export.Dim.DYNAMIC(min=dim.low, max=dim.high)
    if base is None:
        return torch.export.Dim.DYNAMIC
    made = base
    if dim.relation is not None and dim.relation.times != 1:
        made = dim.relation.times * made  # type: ignore[operator]  # torch's own dims compute
    if dim.relation is not None and dim.relation.plus:
        made = made + dim.relation.plus  # type: ignore[operator]  # as above
    return made


def _new_dim(dim: Dim) -> object:
    import torch

    if not dim.bounded:
        return torch.export.Dim(dim.name or "")
    return torch.export.Dim(dim.name or "", min=dim.low, max=dim.high)


def export_in_ranges(
    job: Job, export: Callable[[DynamicShapes], torch.export.ExportedProgram]
) -> ExportCapture:
    """Export the program for all sizes of the signature, with notes on assumptions.

    Torch treats size 1 as special. If that, or a guard, narrows a range, the export is repeated
    with 1 as any other size.

    Args:
        job: its signature has the requested ranges.
        export: calls torch.export with these dynamic shapes; raises ConversionError.

    Raises:
        ConversionError: the program does not hold for the requested sizes.
    """
    shapes, example = dynamic_shapes(job.signature), feed_sizes(job.signature, job.example)
    try:
        program = export(shapes)
        checked = check_constraints(program, job.signature, example)
    except ConversionError as error:
        if Symptom.SPECIAL_SIZE not in evidence_in_error(error).symptoms:
            raise
        return _export_oblivious(job, export, error)
    if checked.broken:
        again = _try_export(lambda: _export_any_size(export, shapes))
        other = None if again is None else check_constraints(again, job.signature, example)
        if again is not None and other is not None and len(other.broken) < len(checked.broken):
            program, checked = again, other
    return _accept_program(program, checked, job, example)


def _export_oblivious(job: Job, export: ExportCall, error: ConversionError) -> ExportCapture:
    """Export with 1 as any other size; raise `error` if that fails as well."""
    shapes, example = dynamic_shapes(job.signature), feed_sizes(job.signature, job.example)
    with specialization_places() as places:
        program = _try_export(lambda: _export_any_size(export, shapes))
    if program is None:
        raise _add_location(error, places) from error
    checked = check_constraints(program, job.signature, example)
    try:
        return _accept_program(program, checked, job, example)
    except ConversionError:
        if checked.fit is not None:
            raise
        raise error from None  # it names a dim; the new error is less readable


def _add_location(error: ConversionError, places: Sequence[str]) -> ConversionError:
    """Add the line that fixed a size to the refusal, if torch logged one."""
    if not places or (isinstance(error, RefusedError) and error.source):
        return error
    cause = error.cause if isinstance(error, RefusedError) else None
    text = f"{error.message} (at {places[0]})"
    return RefusedError(
        text,
        hint=error.advice,
        cause=cause,
        source=places[0],
        evidence=evidence_in_error(error) | evidence_of(place=places[0]),
    )


def _accept_program(
    program: torch.export.ExportedProgram, checked: ConstraintCheck, job: Job, example: Sizes
) -> ExportCapture:
    """Return the program with the requested guards and ranges.

    Raises:
        ConversionError: a broken condition changes results, or is the model's own.
    """
    broken, signature = checked.broken, job.signature
    job.programs[OUTSIDE] = checked.outside  # a later trace assumes the same
    notes = [f"a condition on sizes is unreadable: {text}" for text in checked.unread]
    places: tuple[Sizes, ...] = ()
    if all(one.excludes_one for one in broken):
        made = program.module(check_guards=False) if broken else None
        if made is not None and first_mismatch(made, job, checked.outside) is not None:
            raise constraint_error(checked)
        around = compare_sizes(made, job) if made is not None else SizeComparison()
        if around.wrong is not None:
            raise constraint_error(checked)
        notes += around.notes
        notes += [f"torch.export took for granted: {one.text}" for one in broken]
    else:
        relaxed = relax_guards(program, checked, job, example)
        if relaxed is None:
            made = program.module(check_guards=False)
            raise constraint_error(checked, first_mismatch(made, job, checked.outside))
        program, places = relaxed.program, relaxed.places
        notes += relaxed.notes
    fix_guards(program, signature, example)
    return ExportCapture(program=program, notes=tuple(notes), places=places)


def _export_any_size(export: ExportCall, shapes: DynamicShapes) -> torch.export.ExportedProgram:
    with oblivious_sizes():
        return export(shapes)


def _try_export(
    make: Callable[[], torch.export.ExportedProgram],
) -> torch.export.ExportedProgram | None:
    try:
        return make()
    except ConversionError as error:
        _LOG.warning("again, with 1 as any other size: %s", error.message)
        return None


def module_from_script(model: EagerModel, tensors: tuple[torch.Tensor, ...]) -> torch.nn.Module:
    """Translate the flat module from its TorchScript graph with torch's converter."""
    import torch
    from torch._export.converter import TS2EPConverter

    traced = torch.jit.trace(  # type: ignore[no-untyped-call]  # torch's own
        model.flat, tensors, check_trace=False, strict=False
    )
    translated = TS2EPConverter(traced, tensors).convert().module(check_guards=False)

    class Flat(torch.nn.Module):
        """Takes tensors in the signature's order."""

        def __init__(self) -> None:
            super().__init__()
            self.model = translated
            self.training = False  # set directly: an exported program's module rejects eval()

        def forward(self, *tensors: torch.Tensor) -> object:
            """Call the translated module."""
            return self.model(*tensors)

    return Flat()


# Functions of the solver that every condition passes through.
_WORKER = "_maybe_evaluate_static_worker"
_METHODS = ("simplify", "_maybe_evaluate_static")


class SolverTimeoutError(RefusedError):
    """The solver exceeded its time limit; more time may help."""


@contextmanager
def limit_solver(seconds: float) -> Iterator[None]:
    """Stop a capture in the block when torch's solver exceeds a time limit over all calls.

    Raises:
        SolverTimeoutError: it did; torch may wrap it as the cause of its own error.
    """
    from torch.fx.experimental import symbolic_shapes

    clock = _SolverClock(seconds)
    owners: list[tuple[Any, str]] = [(symbolic_shapes, _WORKER)]
    owners += [(symbolic_shapes.ShapeEnv, name) for name in _METHODS]
    kept = [(owner, name, getattr(owner, name)) for owner, name in owners]
    try:
        for owner, name, function in kept:
            setattr(owner, name, clock.time_calls(function))
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


class _SolverClock:
    """Measures the solver's time; nested calls count once."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._spent = 0.0
        self._since: float | None = None

    def time_calls(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time measured; it raises at the limit."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._check()
            if self._since is not None:
                return function(*args, **kwargs)
            self._since = time.monotonic()
            try:
                return function(*args, **kwargs)
            finally:
                self._spent += time.monotonic() - self._since
                self._since = None

        for name in ("cache_clear", "cache_info"):  # torch uses these of its cached functions
            if hasattr(function, name):
                setattr(call, name, getattr(function, name))
        return call

    def _check(self) -> None:
        running = 0.0 if self._since is None else time.monotonic() - self._since
        if self._spent + running > self._limit:
            raise SolverTimeoutError(
                f"torch's symbolic solver was stopped after {self._limit:g} s",
                hint=Hint(
                    "give it more time with ",
                    Option("capture-timeout"),
                    ", state narrower or fixed sizes, or ",
                    Option("capture", "trace"),
                ),
                passing=True,
                option="capture-timeout",
            )
