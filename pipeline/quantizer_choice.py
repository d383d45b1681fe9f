"""Choose the quantizers of a step, and check the options of precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.contract import Quantizer, Target
from ..core.errors import ErrorCode, Hint, MissingError, Option, UsageError
from ..core.kinds import QUANTIZED, Precision
from ..core.target_extensions import FloatEnds, RestLowered
from .order import Lowering, Order, Wanted

if TYPE_CHECKING:
    from .plan import Step


def choose_quantizers(target: Target, wanted: Wanted, order: Order) -> tuple[Quantizer, ...]:
    """Return the quantizers to try for an artifact; empty unless its precision is quantized.

    Raises:
        UsageError: it requires samples and there are none, or an option fits no quantizer.
        MissingError: none of them is installed.
    """
    if wanted.precision not in QUANTIZED:
        return ()
    from ..converters.quantizers.quantizer_registry import quantizers_for

    able = quantizers_for(target.NAME, wanted.precision)
    if not able:
        return ()
    way, method = (target.NAME, wanted.precision), order.lowering.method
    free = all(way in q.DATA_FREE and method not in q.SAMPLE_METHODS.get(way, ()) for q in able)
    if order.lowering.calibration is None and not free:
        raise UsageError(
            f"{wanted.name} requires calibration data",
            hint=Hint("give real samples: ", Option("calib", "DIR"), ", or ",
                      Option("calib", "random")),
            option="calib", code=ErrorCode.NO_SAMPLES,
        )  # fmt: skip
    chosen = _select_quantizers(able, wanted, order)
    return tuple(one for one in chosen if _offers_method(one, able, wanted, order))


def uses_optional_samples(
    quantizers: Sequence[Quantizer], wanted: Wanted, lowering: Lowering
) -> bool:
    """Return whether these use the samples that were given, although they need none."""
    way = wanted.target, wanted.precision
    methods = {name for one in quantizers for name in one.SAMPLE_METHODS.get(way, ())}
    asked = lowering.method is None or lowering.method in methods
    return lowering.calibration is not None and bool(methods) and asked


def check_lowering(order: Order, steps: Sequence[Step]) -> None:
    """Raise UsageError if a precision option has no effect."""
    lowering = order.lowering
    quantizes = any(step.quantizers for step in steps)
    made = [step for step in steps if step.quantizers]
    calibrates = any(step.uses_samples for step in made)
    groups = any(not step.searches for step in made)
    searches = order.has_accuracy_budget and any(step.searches for step in made)
    halves = {Precision.FP16, Precision.BF16} - {order.parent_precision}  # that is not converted
    half_steps = [s for s in steps if s.wanted.precision in halves]
    quantized = [step for step in steps if step.wanted.precision in QUANTIZED]
    rests = [step for step in quantized if isinstance(step.target, RestLowered)]
    ends = any(not isinstance(s.target, FloatEnds) for s in half_steps)
    if lowering.rest is not Precision.FP32:
        ends = ends or any(step.quantizers or lowering.rest for step in rests)
    no_ends = "no artifact is converted to half precision: add --fp16 or --bf16"
    if half_steps:
        no_ends = f"{half_steps[0].name} keeps float32 inputs and outputs: add --to onnx:fp16"
    instead = f" in place of --{half_steps[0].wanted.precision}" if half_steps else ""
    no_int8 = f"no artifact is quantized: give --int8{instead}"
    no_rest = "no artifact is quantized for TensorRT: add --int8"
    no_data = f"no artifact is calibrated: give --int8{instead}" if groups else no_int8
    if any(step.wanted.precision is Precision.INT4 for step in made):
        no_data = "only INT4 for OpenVINO and TensorRT is calibrated: add --to openvino:int4"
    no_group = "no artifact has weights in groups: add --to onnx:int4"
    if quantized and not quantizes:
        no_rest = "the quantized model is built as it is: give the one before its rest was lowered"
    asked = {
        "--calib": (lowering.calibration, calibrates, no_data),
        "--quantizer": (lowering.quantizer, quantizes, no_int8),
        "--calib-method": (lowering.method, quantizes, no_int8),
        "--group-size": (lowering.group_size, groups, no_group),
        "--rest": (lowering.rest, rests, no_rest),
        "--half-io": (lowering.half_io, ends, no_ends),
        "--max-trials": (lowering.max_trials, searches, "no search: add --int8 and --min-sqnr"),
        "--keep-fp": (lowering.keep, quantizes or half_steps, "all artifacts are fp32: add --fp16"),
    }
    for option, (given, has_effect, why) in asked.items():
        if given and not has_effect:
            what, _, fix = why.partition(": ")
            raise UsageError(
                f"{option} has no effect: {what}",
                hint=f"{fix}, or leave it out",
                code=ErrorCode.NO_EFFECT,
                option=option.removeprefix("--"),
            )


def _select_quantizers(
    able: Sequence[Quantizer], wanted: Wanted, order: Order
) -> Sequence[Quantizer]:
    """Return the requested quantizer, or all available ones."""
    if order.lowering.quantizer is not None:
        from ..converters.quantizers.quantizer_registry import find_quantizer

        named = find_quantizer(order.lowering.quantizer)
        if named not in able:
            raise UsageError(
                f"{named.NAME} does not quantize {wanted.name}",
                hint=f"give {' or '.join(one.NAME for one in able)}",
                option="quantizer", code=ErrorCode.UNSUPPORTED,
            )  # fmt: skip
        able = [named]
    ready = [one for one in able if one.readiness().ready]
    if not ready:
        readiness = able[0].readiness()
        raise MissingError(
            f"{able[0].NAME}: {readiness.reason}", hint=readiness.mend, code=ErrorCode.NOT_INSTALLED
        )
    return ready


def _offers_method(
    quantizer: Quantizer, able: Sequence[Quantizer], wanted: Wanted, order: Order
) -> bool:
    """Return whether the quantizer offers the requested calibration method, as one of all does."""
    way = (wanted.target, wanted.precision)
    methods = quantizer.METHODS[way]
    if order.lowering.method is None or order.lowering.method in methods:
        return True
    if order.lowering.quantizer is None and any(
        order.lowering.method in one.METHODS[way] for one in able
    ):
        return False
    raise UsageError(
        f"{quantizer.NAME} has no calibration method {order.lowering.method!r} for {wanted.name}",
        hint=f"give {' or '.join(methods)}",
        option="calib-method",
        code=ErrorCode.UNSUPPORTED,
    )
