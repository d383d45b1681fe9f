"""Check the size constraints of torch.export against the requested sizes."""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import CodeType, SimpleNamespace
from typing import TYPE_CHECKING, TypeAlias

from ..core.domain import DimFit, Sizes, fit_dims, sample_points
from ..core.errors import ConversionError, Hint, Option
from ..core.signature import Signature
from .evidence import RefusalEvidence, Symptom, find_symptoms

if TYPE_CHECKING:
    import torch

_Shapes: TypeAlias = defaultdict[str, list[SimpleNamespace]]  # by name, by argument
_NAME = re.compile(r"[A-Za-z_]\w*")
_WORDS = (  # words in conditions that are not dims
    "and", "or", "not", "max", "min", "math", "float", "int", "torch", "sym_float", "trunc",
    "floor", "ceil", "sym_int", "sym_max", "sym_min", "sym_not", "abs",
)  # fmt: skip
_ASSUMED = 2  # the least size that torch assumes for every dim
_SIZE = re.compile(r"L\['\w+'\]\[(\d+)\]\.size\(\)\[(\d+)\]")
_NUMBER = re.compile(r"\b\d+\b")
_ALL = 1 << 12  # sizes to test of a dim in a constraint on this dim only
_KEPT = 4  # sizes to try at which a constraint breaks
_NOT_ONE = re.compile(r" != \d+$|^\d+ != ")
_NOT_SPECIAL = re.compile(r" != [01]$|^[01] != ")
_TORCH = SimpleNamespace(
    sym_float=float, sym_int=int, sym_max=max, sym_min=min, sym_not=operator.not_
)
_BUILTINS = {
    "abs": abs, "float": float, "int": int, "max": max, "min": min, "math": math, "torch": _TORCH,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SizeConstraint:
    """One condition on sizes: torch's text, the same in the user's names, and its compiled code.

    `code` reads sizes as `L['tensors'][0].size()[1]`.
    """

    guard: str
    text: str
    code: CodeType

    @property
    def excludes_one(self) -> bool:
        """Whether it only excludes one size, as torch does for 0 and 1."""
        return bool(_NOT_ONE.search(self.guard))

    @property
    def is_assumed(self) -> bool:
        """Whether it only excludes 0 or 1, as torch does for nearly every size."""
        return bool(_NOT_SPECIAL.search(self.guard))

    @property
    def numbers(self) -> set[int]:
        """The numbers in it, except indices of sizes."""
        return {int(text) for text in _NUMBER.findall(_SIZE.sub("", self.guard))}

    def dims(self, signature: Signature) -> set[str]:
        """Return the free dims in it."""
        places = {(int(m[1]), int(m[2])) for m in _SIZE.finditer(self.guard)}
        named = {n for one, axis in places for n in signature.inputs[one].dims[axis].bases}
        return named & signature.free_dims.keys()


@dataclass(frozen=True, kw_only=True)
class ConstraintCheck:
    """Constraints that do not hold for all sizes of the signature, and unreadable ones.

    `fit` is their effect on the dims, if known. `outside` are sizes at which they break.
    """

    broken: tuple[SizeConstraint, ...]
    unread: tuple[str, ...]
    fit: DimFit | None = None
    outside: tuple[Sizes, ...] = ()


def check_constraints(
    program: torch.export.ExportedProgram, signature: Signature, example: Sizes
) -> ConstraintCheck:
    """Check the program's guards at sizes of the whole range.

    Args:
        program: the program of torch.export.
        signature: the requested sizes.
        example: the captured sizes of free dims, where every guard holds.
    """
    constraints, unread = parse_constraints(program._guards_code, signature)
    if not signature.free_dims or not constraints:
        return ConstraintCheck(broken=(), unread=tuple(unread))
    looked_at = list(sample_points(signature, example))
    broken, outside = [], []
    for constraint in constraints:
        at = [*looked_at, *boundary_sizes(constraint, signature, example)]
        found = [sizes for sizes in at if not is_satisfied(constraint, signature, sizes)]
        if found and not (constraint.is_assumed and is_at_range_end(constraint, found, signature)):
            broken.append(constraint)
            outside += found[:_KEPT]
    wrong = tuple(broken)
    return ConstraintCheck(
        broken=wrong,
        unread=tuple(unread),
        fit=fit_dims(partial(are_satisfied, wrong, signature), signature, example)
        if wrong
        else None,
        outside=tuple(outside),
    )


def boundary_sizes(
    constraint: SizeConstraint, signature: Signature, example: Sizes
) -> Iterator[Sizes]:
    """Yield sizes at and around numbers in the constraint: `seq != 300` breaks at only one.

    Of a constraint on one dim, yield all sizes, up to a number.
    """
    dims, named, numbers = signature.free_dims, constraint.dims(signature), constraint.numbers
    near = {
        max(one // (other or 1) + by, 1) for one in numbers for other in {1, *numbers}
        for by in (-1, 0, 1)
    }  # fmt: skip
    for name in named:
        dim = dims[name]
        high = dim.high if dim.bounded else max(dim.high, _ALL)
        every = range(dim.low, min(high, dim.low + _ALL) + 1) if len(named) == 1 else ()
        for size in {*every, *(one for one in near if dim.low <= one <= high)}:
            yield {**example, name: size}


def parse_constraints(
    guards: Iterable[str], signature: Signature
) -> tuple[list[SizeConstraint], list[str]]:
    """Parse torch's conditions; return constraints, and unreadable ones in the user's names."""
    constraints: list[SizeConstraint] = []
    unread: list[str] = []
    shapes = _input_shapes(signature, {})
    for guard in guards:
        rest = _SIZE.sub("1", guard)
        try:
            code = compile(guard, "guard", "eval")
            _evaluate(code, shapes)
        except (SyntaxError, NameError, AttributeError, TypeError, LookupError, ArithmeticError):
            unread.append(to_user_names(guard, signature))
            continue
        if rest != guard:
            text = to_user_names(guard, signature)
            constraints.append(SizeConstraint(guard=guard, text=text, code=code))
    return constraints, unread


def _input_shapes(signature: Signature, sizes: Sizes) -> _Shapes:
    """Return the shapes of the flat forward's arguments, under any name."""
    shapes = [
        SimpleNamespace(size=partial(tuple, [dim.size(sizes) for dim in spec.dims]))
        for spec in signature.inputs
    ]
    return defaultdict(lambda: shapes)


def _evaluate(code: CodeType, shapes: _Shapes) -> bool:
    names = {"__builtins__": _BUILTINS, "L": shapes, **_BUILTINS}
    return bool(eval(code, names))  # conditions on sizes, written by torch


def is_satisfied(constraint: SizeConstraint, signature: Signature, sizes: Sizes) -> bool:
    """Whether a condition holds at these sizes."""
    try:
        return _evaluate(constraint.code, _input_shapes(signature, sizes))
    except ArithmeticError:  # a division by size 0
        return False


def are_satisfied(
    constraints: Iterable[SizeConstraint], signature: Signature, sizes: Sizes
) -> bool:
    """Whether all conditions hold at these sizes."""
    return all(is_satisfied(one, signature, sizes) for one in constraints)


def is_at_range_end(
    constraint: SizeConstraint, broken: Iterable[Sizes], signature: Signature
) -> bool:
    """Whether each of these sizes has a feed: all dims at their low or all at their high end."""
    dims = [(name, signature.free_dims[name]) for name in constraint.dims(signature)]
    return all(
        all(sizes[name] == dim.low for name, dim in dims)
        or all(sizes[name] == dim.high for name, dim in dims)
        for sizes in broken
    )


def fix_guards(program: torch.export.ExportedProgram, signature: Signature, example: Sizes) -> None:
    """Make the program accept exactly the requested minimum sizes.

    Torch assumes that sizes are not 1, with guards where that matters, and that a sum of two sizes
    is at least 4. Feeds at the minimum sizes test the program without these guards.
    """
    _restore_sums(program, signature)
    constraints, _ = parse_constraints(program._guards_code, signature)
    looked_at = list(sample_points(signature, example))
    dropped = {
        one.guard
        for one in constraints
        if one.excludes_one and any(not is_satisfied(one, signature, sizes) for sizes in looked_at)
    }
    kept = [one for one in program._guards_code if one not in dropped]
    program._guards_code = [
        *kept,
        *(one for one in _lower_bound_guards(signature) if one not in kept),
    ]


def _restore_sums(program: torch.export.ExportedProgram, signature: Signature) -> None:
    """Give sums of dims the requested ranges."""
    from torch.utils._sympy.value_ranges import ValueRanges

    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    for key, spec in zip(program.graph_signature.user_inputs, signature.inputs, strict=True):
        for size, dim in zip(getattr(values.get(str(key)), "shape", ()), spec.dims, strict=False):
            node = getattr(size, "node", None) if dim.is_sum and dim.bounded else None
            if node is not None and node.expr in program.range_constraints:
                program.range_constraints[node.expr] = ValueRanges(dim.low, dim.high)


def _lower_bound_guards(signature: Signature) -> list[str]:
    """Return guards for ranges from 1 or 2, which torch omits.

    The arguments of the flat forward are `tensors`.
    """
    return [
        f"L['tensors'][{place}].size()[{axis}] >= {dim.low}"
        for place, spec in enumerate(signature.inputs)
        for axis, dim in enumerate(spec.dims)
        if dim.dynamic and dim.bounded and dim.low <= _ASSUMED
    ]


def to_user_names(text: str, signature: Signature) -> str:
    """Replace `L['tensors'][0].size()[1] % 8` by `seq % 8`; fixed dims by their sizes."""

    def name(match: re.Match[str]) -> str:
        dim = signature.inputs[int(match.group(1))].dims[int(match.group(2))]
        return str(dim.opt) if dim.name is None else dim.name

    return _SIZE.sub(name, text)


class SizeConstraintError(ConversionError):
    """A capture assumes a condition that does not hold at all requested sizes."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | Hint,
        option: str = "",
        symptoms: frozenset[Symptom] = frozenset(),
        interval: tuple[str, int, int] | None = None,
    ) -> None:
        super().__init__(message, hint=hint, option=option)
        self.evidence = RefusalEvidence(symptoms=symptoms)
        self.interval = interval


class NarrowError(SizeConstraintError):
    """A capture holds in a part of the requested sizes: an `interval` of one free dim.

    It counts as a rejection unless the smaller domain is accepted. The interval is None if no part
    around the captured sizes is known.
    """

    exit_code = 1
    lasting = True


def constraint_error(checked: ConstraintCheck, wrong: Sizes | None = None) -> SizeConstraintError:
    """Return the error for constraints that the signature breaks, with a fix.

    `wrong` are sizes at which the program differs from eager.
    """
    texts = list(dict.fromkeys(one.text for one in checked.broken))
    symptoms = find_symptoms("\n".join(one.guard for one in checked.broken))
    shown = "; ".join(texts[:3]) + (f"; and {len(texts) - 3} more" if len(texts) > 3 else "")  # noqa: PLR2004 - three are enough
    if checked.fit is None:
        named = [name for text in texts for name in _NAME.findall(text) if name not in _WORDS]
        dims = " ".join(f"--static {name}" for name in dict.fromkeys(named))
        return SizeConstraintError(
            f"torch.export requires {shown}, which --input does not guarantee",
            hint=Hint(
                f"if one size suffices, add {dims}; state a relation of dims in ",
                Option("input"),
            ),
            option="input",
            symptoms=symptoms,
        )
    symptoms |= {Symptom.ASSUMED_SIZE}
    at = ", ".join(f"{name}={size}" for name, size in (wrong or {}).items())
    differs = f"; at {at} the program differs from eager" if at else ""
    message = f"torch.export: {checked.fit.said} (it took for granted: {shown}){differs}"
    if checked.fit.interval is None:
        return SizeConstraintError(message, hint=checked.fit.write, symptoms=symptoms)
    return NarrowError(
        message,
        hint=Hint(f"{checked.fit.write}, or accept the smaller domain with ", Option("narrow")),
        interval=checked.fit.interval,
        option="narrow",
        symptoms=symptoms,
    )
