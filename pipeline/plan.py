"""Order + table of targets -> Plan. Pure: nothing is read, nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..converters.registry import TARGETS, target_named, target_of
from ..core.capture import Capture
from ..core.contract import EAGER, Target
from ..core.errors import MissingError, UsageError
from ..core.precision import Precision
from .order import Order, Wanted

STEM = "model"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One artifact to make and prove. `captures` are tried in order; empty when none applies."""

    target: Target
    wanted: Wanted
    captures: tuple[Capture, ...]
    parent: str | None  # the step's name, None when made from eager or from the order's parent
    asked: bool = True

    @property
    def name(self) -> str:
        """The artifact's name."""
        return self.wanted.name

    @property
    def stem(self) -> str:
        """The file name without the format's suffix."""
        precision = self.wanted.precision
        return STEM if precision is Precision.FP32 else f"{STEM}.{precision}"

    @property
    def file(self) -> str:
        """The model file that this step makes."""
        return self.stem + self.target.SUFFIX


def make_plan(order: Order, targets: tuple[Target, ...] = TARGETS) -> tuple[Step, ...]:
    """The steps of an order, parents first.

    Raises:
        UsageError: an unknown target, a precision or a capture that it does not have.
        MissingError: a target is not ready here.
    """
    given = _given(order.parent, targets)
    steps: dict[str, Step] = {}
    for wanted in order.wanted:
        _add(wanted, order, steps, targets=targets, given=given)
    return tuple(steps.values())


def _given(parent: Path | None, targets: tuple[Target, ...]) -> str | None:
    return None if parent is None else target_of(parent, targets).NAME


def _add(
    wanted: Wanted,
    order: Order,
    steps: dict[str, Step],
    *,
    targets: tuple[Target, ...],
    given: str | None,
) -> None:
    target = target_named(wanted.target, targets)
    _check(target, wanted, order)
    parent: str | None = None
    if given is not None and given != target.MADE_FROM:
        raise UsageError(
            f"{target.NAME} is made from {_source_name(target)}, not from {given}",
            hint="give the checkpoint instead",
        )
    if given is None and target.MADE_FROM != EAGER:
        needed = Wanted(target=target.MADE_FROM)
        parent = needed.name
        if parent not in steps:
            asked = needed in order.wanted
            _add(needed, order, steps, targets=targets, given=None)
            if not asked:
                steps[parent] = replace(steps[parent], asked=False)
    steps.setdefault(
        wanted.name,
        Step(target=target, wanted=wanted, captures=_captures(target, order), parent=parent),
    )


def _source_name(target: Target) -> str:
    return "a checkpoint" if target.MADE_FROM == EAGER else target.MADE_FROM


def _captures(target: Target, order: Order) -> tuple[Capture, ...]:
    if target.MADE_FROM != EAGER or order.capture is None:
        return target.CAPTURES
    return (order.capture,)


def _check(target: Target, wanted: Wanted, order: Order) -> None:
    if wanted.precision not in target.PRECISIONS:
        raise UsageError(
            f"{target.NAME} has no {wanted.precision}",
            hint=f"it has {_join(target.PRECISIONS)}",
        )
    forced = order.capture
    if forced is not None and target.MADE_FROM == EAGER and forced not in target.CAPTURES:
        raise UsageError(
            f"{target.NAME} cannot be captured by {forced}",
            hint=f"use --capture {' or '.join(map(str, target.CAPTURES))}, or auto",
        )
    device = order.judging.device
    if device not in target.DEVICES:
        raise UsageError(
            f"{target.NAME} does not run on {device}", hint=f"it runs on {_join(target.DEVICES)}"
        )
    readiness = target.readiness()
    if not readiness.ready:
        raise MissingError(f"{target.NAME}: {readiness.reason}", hint=readiness.mend)


def _join(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))
