"""`to` times `precision`: which artifacts are wanted, and which combinations there are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..converters.registry import TARGETS, target_named
from ..core.contract import Target
from ..core.errors import UsageError
from ..core.precision import Precision
from ..pipeline.order import Wanted


@dataclass(frozen=True, kw_only=True)
class WantedArtifacts:
    """What is wanted, each once, and what was left out of it, in words."""

    wanted: tuple[Wanted, ...]
    left_out: tuple[str, ...] = ()


def cross_formats(
    to: Sequence[str], precisions: Sequence[str], targets: tuple[Target, ...] = TARGETS
) -> WantedArtifacts:
    """Every format at every precision that it has; `NAME:PRECISION` is that alone.

    Raises:
        UsageError: an unknown format, or a precision that none of them has.
    """
    wanted: dict[str, Wanted] = {}
    left_out: dict[str, str] = {}
    crossed = [target_named(text, targets) for text in to if ":" not in text]
    asked = [Precision(text) for text in precisions]
    _check_precisions(crossed, asked)
    for text in to:
        single = ":" in text
        for precision in asked if not single else [Precision.FP32]:
            one = Wanted.parse(text, precision)
            if single or precision in target_named(one.target, targets).MADE_FROM:
                wanted.setdefault(one.name, one)
            else:
                left_out[f"{one.target}:{precision}"] = f"{one.target} has no {precision}"
    return WantedArtifacts(wanted=tuple(wanted.values()), left_out=tuple(left_out.values()))


def _check_precisions(crossed: Sequence[Target], precisions: Sequence[Precision]) -> None:
    """That some format has each precision; without a format to cross them with, none is used."""
    for precision in precisions if crossed else ():
        if not any(precision in target.MADE_FROM for target in crossed):
            names = " or ".join(target.NAME for target in crossed)
            has = dict.fromkeys(str(one) for target in crossed for one in target.MADE_FROM)
            raise UsageError(
                f"there is no {names} in {precision}", hint=f"there is {', '.join(has)}"
            )
