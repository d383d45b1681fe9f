"""Select the artifacts of a project: formats by precisions, and `--only`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..converters.quantizers.quantizer_registry import needs_no_samples
from ..converters.registry import TARGETS, target_named
from ..core.contract import EAGER, Target
from ..core.errors import ErrorCode, UsageError
from ..core.kinds import QUANTIZED, Precision
from ..core.target_extensions import FloatEnds, RestLowered
from ..pipeline.order import Lowering, Order, Wanted
from ..pipeline.plan import make_plan
from .project_records import ModelOrder


@dataclass(frozen=True, kw_only=True)
class WantedArtifacts:
    """The requested artifacts without duplicates, and descriptions of the omitted combinations."""

    wanted: tuple[Wanted, ...]
    left_out: tuple[str, ...] = ()


def cross_formats(to: Sequence[str], precisions: Sequence[str]) -> WantedArtifacts:
    """Combine every format with every precision it supports; `NAME:PRECISION` is used as is.

    Raises:
        UsageError: a format is unknown, or no format supports a precision.
    """
    wanted: dict[str, Wanted] = {}
    left_out: dict[str, str] = {}
    crossed = [target_named(text) for text in to if ":" not in text]
    asked = [Precision(text) for text in precisions]
    _check_precisions(crossed, asked)
    for text in to:
        single = ":" in text
        for precision in asked if not single else [Precision.FP32]:
            one = Wanted.parse(text, precision)
            if single or precision in target_named(one.target).MADE_FROM:
                wanted.setdefault(one.name, one)
            else:
                left_out[f"{one.target}:{precision}"] = f"{one.target} does not support {precision}"
    return WantedArtifacts(wanted=tuple(wanted.values()), left_out=tuple(left_out.values()))


def _check_precisions(crossed: Sequence[Target], precisions: Sequence[Precision]) -> None:
    """Check that some format supports each precision; skip the check without formats."""
    for precision in precisions if crossed else ():
        if not any(precision in target.MADE_FROM for target in crossed):
            names = " or ".join(target.NAME for target in crossed)
            has = dict.fromkeys(str(one) for target in crossed for one in target.MADE_FROM)
            raise UsageError(
                f"{names} does not support {precision}",
                hint=f"use one of {', '.join(has)}",
                code=ErrorCode.UNSUPPORTED,
            )


def select_models(models: Sequence[ModelOrder], words: Sequence[str]) -> tuple[ModelOrder, ...]:
    """Return the models restricted to the named formats, precisions and artifacts; empty: all.

    A format and a precision must both match: `onnx,int8` is ONNX in INT8. Of two formats, either
    matches.

    Raises:
        UsageError: a word matches nothing, or nothing is left.
    """
    if not words:
        return tuple(models)
    wanted = [one for model in models for one in model.order.wanted]
    names = {one.name for one in wanted}
    formats = {one.target for one in wanted}
    precisions = {precision.value for precision in Precision}
    for word in words:
        known = sorted({*names, *formats, *precisions})
        if word not in known:
            near = difflib.get_close_matches(word, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose from: {', '.join(known)}"
            raise UsageError(
                f"--only {word} matches no artifact of the project",
                hint=hint,
                option="only",
                code=ErrorCode.UNKNOWN_NAME,
            )
    asked = _Selection(
        formats=formats.intersection(words),
        precisions=precisions.intersection(words),
        names=names.intersection(words) - formats,
    )
    left = tuple(filter(None, (_narrow_model(model, asked) for model in models)))
    if not left:
        raise UsageError(
            f"--only {','.join(words)} matches no artifact",
            hint=f"choose from: {', '.join(sorted(names))}",
            option="only",
            code=ErrorCode.NOTHING_TO_DO,
        )
    return left


@dataclass(frozen=True, kw_only=True)
class _Selection:
    """The selected words, by kind."""

    formats: set[str]
    precisions: set[str]
    names: set[str]

    def takes(self, one: Wanted) -> bool:
        """Whether the artifact is named, or its format and precision are selected."""
        if one.name in self.names:
            return True
        if not self.formats and not self.precisions:
            return False
        format_fits = not self.formats or one.target in self.formats
        return format_fits and (not self.precisions or one.precision.value in self.precisions)


def _narrow_model(model: ModelOrder, asked: _Selection) -> ModelOrder | None:
    """Restrict a model's order to the selection; None if nothing is left."""
    wanted = tuple(one for one in model.order.wanted if asked.takes(one))
    if not wanted:
        return None
    order = _drop_useless_options(replace(model.order, wanted=wanted))
    return replace(model, order=order, plan=make_plan(order))


def _drop_useless_options(order: Order) -> Order:
    """Drop precision options from the order that no remaining artifact uses."""
    lowers = {one.precision for one in order.wanted} - {Precision.FP32}
    lowering = order.lowering
    if QUANTIZED.isdisjoint(lowers):
        kept = lowering.keep if lowers else ()
        lowering = Lowering(keep=kept, half_io=lowering.half_io)
    free = [needs_no_samples(one.target, one.precision) for one in order.wanted]
    if not any(free):
        lowering = replace(lowering, group_size=None)
    if all(free):
        lowering = replace(lowering, calibration=None, max_trials=None)
    keep_ends = {target.NAME for target in TARGETS if isinstance(target, FloatEnds)}
    if not {w.precision for w in order.wanted if w.target not in keep_ends} & {
        Precision.FP16,
        Precision.BF16,
    }:
        lowering = replace(lowering, half_io=False)
    if not any(map(_has_rest, order.wanted)):
        lowering = replace(lowering, rest=None)
    return replace(order, lowering=lowering)


def _has_rest(wanted: Wanted) -> bool:
    """Return whether `--rest` has an effect on an artifact, or on what it is made from."""
    if wanted.precision not in QUANTIZED:
        return False
    target = target_named(wanted.target)
    origin = target.MADE_FROM[wanted.precision].partition(":")[0]
    return isinstance(target, RestLowered) or (
        origin != EAGER and isinstance(target_named(origin), RestLowered)
    )
