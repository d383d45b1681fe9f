"""Order + table of targets -> Plan. Pure: nothing is read, nothing is run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..capture.refusals import hint_for
from ..converters.quantizers.quantizer_registry import find_quantizer, quantizers_for
from ..converters.registry import TARGETS, as_deferred, target_for, target_named
from ..core.contract import EAGER, Lowered, Quantizer, Readiness, Target
from ..core.errors import (
    ErrorCode,
    Hint,
    MissingError,
    Option,
    UsageError,
    encodable,
    unknown_name_error,
)
from ..core.grammar import parse_input
from ..core.kinds import Capture, Precision
from ..core.manifest import Failure, Manifest, Pending
from ..core.records import REJECTED_FOLDER
from ..core.target_extensions import FloatEnds
from .order import Order, Wanted

if TYPE_CHECKING:
    from ..core.errors import ModelcError
    from ..core.records import Attempt


MODEL_STEM = "model"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One artifact to make and prove.

    `captures` are tried in order, `quantizers` are all tried and the best is kept; both are empty
    where there is nothing to choose. `pending` is why this host cannot make it but only prepare.
    `origin` is the target of the parent, where that is a step. `loads_in` says what is written for
    the runtimes that were named. `variant` tells an artifact
    from the one that the plan has of its format and precision.
    """

    target: Target
    wanted: Wanted
    captures: tuple[Capture, ...]
    parent: str | None  # the step's name, None when made from eager or from the order's parent
    asked: bool = True
    quantizers: tuple[Quantizer, ...] = ()
    pending: Readiness | None = None
    loads_in: str = ""
    variant: str = ""
    origin: Target | None = None

    @property
    def name(self) -> str:
        """The artifact's name."""
        return f"{self.wanted.name}-{self.variant}" if self.variant else self.wanted.name

    @property
    def is_derived(self) -> bool:
        """Whether it is made from another artifact without a choice of captures or quantizers."""
        return not self.captures and not self.quantizers

    @property
    def stem(self) -> str:
        """The file name without the format's suffix."""
        precision = self.wanted.precision
        own = "" if precision is Precision.FP32 else f".{precision}"
        return f"{MODEL_STEM}{own}.{self.variant}" if self.variant else f"{MODEL_STEM}{own}"

    @property
    def file(self) -> str:
        """The model file that this step makes."""
        return self.stem + self.target.SUFFIX


def make_plan(order: Order, targets: tuple[Target, ...] = TARGETS) -> tuple[Step, ...]:
    """The steps of an order, parents first.

    Raises:
        UsageError: an unknown target, a precision, capture or quantizer that it does not have,
            INT8 without calibration data, or an input that cannot be read.
        MissingError: a target or a quantizer is not ready here.
    """
    for text in order.source.inputs:
        parse_input(text)
    planner = _Planner(order, targets)
    for wanted in order.wanted:
        planner.add(wanted)
    steps = tuple(planner.steps.values())
    _check_lowering(order, steps)
    _check_capture(order, steps)
    return _assign_runtimes(order, steps)


def plan_pending(
    pending: Iterable[Pending], targets: tuple[Target, ...] = TARGETS
) -> tuple[Step, ...]:
    """The steps that a record has as pending, in its order.

    Raises:
        UsageError: one is of an unknown target.
        MissingError: its target can here neither be made nor prepared.
    """
    return tuple(_make_pending_step(one, target_named(one.target, targets)) for one in pending)


def _make_pending_step(pending: Pending, target: Target) -> Step:
    return Step(
        target=target,
        wanted=Wanted(target=target.NAME, precision=pending.precision),
        captures=(),
        parent=pending.made_from,
        pending=why_pending(target),
    )


class _Planner:
    """Adds steps, each after what it is made from."""

    def __init__(self, order: Order, targets: tuple[Target, ...]) -> None:
        self.order = order
        self.targets = targets
        self.steps: dict[str, Step] = {}
        self.given: str | None = None
        if order.parent is not None:
            target = target_for(order.parent, targets)
            self.given = Wanted(target=target.NAME, precision=order.parent_precision).name

    def add(self, wanted: Wanted) -> None:
        """Add the step for `wanted`, and before it those that it needs."""
        target = target_named(wanted.target, self.targets)
        _check_wanted(target, wanted, self.order)
        origin = target.MADE_FROM[wanted.precision]
        ready_made = self._is_ready_made(origin, wanted)
        parent = None if ready_made else self._parent(target, wanted)
        step = Step(
            target=target,
            wanted=wanted,
            captures=_choose_captures(target, wanted, self.order),
            parent=parent,
            quantizers=() if ready_made else self._quantizers(target, wanted),
            pending=why_pending(target),
            origin=None if parent is None else self._origin(origin),
        )
        self.steps.setdefault(wanted.name, step)

    def _origin(self, origin: str) -> Target:
        return target_named(Wanted.parse(origin).target, self.targets)

    def _is_ready_made(self, origin: str, wanted: Wanted) -> bool:
        """Whether the order's parent is quantized already, or is what is wanted and is taken in."""
        if origin == EAGER or self.given is None:
            return False
        if self.given == wanted.name:
            return True
        return (
            wanted.precision is Precision.INT8
            and self.given == _same_precision(origin, wanted).name
        )

    def _parent(self, target: Target, wanted: Wanted) -> str | None:
        """The step to start from; None for eager or the order's parent."""
        origin = target.MADE_FROM[wanted.precision]
        if origin == EAGER:
            if self.given is None:
                return None
            asked = wanted in self.order.wanted
            origin = "a checkpoint" if asked else wanted.name
            what = wanted.name if asked else self.order.wanted[0].name
            raise UsageError(
                f"{what} is made from {origin}, not from {self.given}",
                hint="give the checkpoint, or the fp32 model",
                code=ErrorCode.UNSUPPORTED,
            )
        needed = Wanted.parse(origin)
        if needed.name == self.given and not self._to_take_in(target):
            return None
        if needed.name not in self.steps:
            self.add(needed)
            if needed not in self.order.wanted:
                self.steps[needed.name] = replace(self.steps[needed.name], asked=False)
        return needed.name

    def _to_take_in(self, target: Target) -> bool:
        """Whether the order's parent must be in the folder: another host is to build from it."""
        parent = self.order.parent
        elsewhere = parent is not None and parent.resolve().parent != self.order.out.resolve()
        return elsewhere and as_deferred(target) is not None

    def _quantizers(self, target: Target, wanted: Wanted) -> tuple[Quantizer, ...]:
        """Those that quantize for this step: none where its parent is quantized already."""
        if wanted.precision is not Precision.INT8:
            return ()
        able = quantizers_for(target.NAME)
        if not able:
            return ()
        if self.order.lowering.calibration is None:
            raise UsageError(
                f"{wanted.name} needs calibration data, and none was given",
                hint=Hint(
                    "give real samples with ",
                    Option("calib", "DIR"),
                    " (or ",
                    Option("calib", "random"),
                    ", which is marked)",
                ),
                option="calib",
                code=ErrorCode.NO_SAMPLES,
            )
        chosen = _choose_quantizers(able, target, self.order)
        return tuple(one for one in chosen if _offers_method(one, target, self.order))


def _check_lowering(order: Order, steps: Sequence[Step]) -> None:
    """That no option of precision is without effect in silence."""
    lowering = order.lowering
    quantizes = any(step.quantizers for step in steps)
    searches = quantizes and order.has_accuracy_budget
    half_steps = [s for s in steps if s.wanted.precision in (Precision.FP16, Precision.BF16)]
    halves, ends = bool(half_steps), any(not isinstance(s.target, FloatEnds) for s in half_steps)
    no_ends = "nothing becomes half: add --fp16 or --bf16"
    if halves:
        no_ends = f"{half_steps[0].name} keeps float32 inputs and outputs: add --to onnx:fp16"
    asked = {
        "--calib": (lowering.calibration, quantizes, "nothing is quantized by it: add --int8"),
        "--quantizer": (lowering.quantizer, quantizes, "nothing is quantized: add --int8"),
        "--calib-method": (lowering.method, quantizes, "nothing is quantized: add --int8"),
        "--half-io": (lowering.half_io, ends, no_ends),
        "--max-trials": (lowering.max_trials, searches, "no search: add --int8 and --min-sqnr"),
        "--keep-fp": (lowering.keep, quantizes or halves, "nothing leaves fp32: add --fp16"),
    }
    for option, (given, of_use, why) in asked.items():
        if given and not of_use:
            what, _, mend = why.partition(": ")
            raise UsageError(
                f"{option} has no effect: {what}",
                hint=f"{mend}, or leave it out",
                code=ErrorCode.NO_EFFECT,
                option=option.removeprefix("--"),
            )


def _check_capture(order: Order, steps: Sequence[Step]) -> None:
    """That there is a model to patch, and an ONNX to write operators in."""
    if order.patches and not any(step.captures for step in steps):
        raise UsageError(
            f"--patch {' '.join(order.patches)} has no effect: no model is captured here",
            hint="give the checkpoint, or leave it out",
            option="patch",
            code=ErrorCode.NO_EFFECT,
        )
    captured = any(isinstance(step.target, Lowered) and step.captures for step in steps)
    if order.custom_ops and not captured:
        raise UsageError(
            f"--custom-op {' '.join(order.custom_ops)} has no effect: nothing here is made ONNX",
            hint=Hint("add ", Option("to", "onnx"), ", or leave it out"),
            option="custom-op",
            code=ErrorCode.NO_EFFECT,
        )


def _assign_runtimes(order: Order, steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps with what they are written for, once all of it is known to be possible."""
    planned = {
        step.name: step.target.plan_opset(order.opset, order.runtimes, step.wanted.precision)
        for step in steps
        if isinstance(step.target, Lowered)
    }
    if order.runtimes and not planned:
        raise UsageError(
            f"--for {' '.join(order.runtimes)} has no effect: nothing here is ONNX",
            hint=Hint("add ", Option("to", "onnx"), ", or leave it out"),
            option="for",
            code=ErrorCode.NO_EFFECT,
        )
    if order.parent is not None:  # whose opset nobody has read yet; the conversion will
        return tuple(steps)
    return tuple(replace(step, loads_in=planned.get(step.name, "")) for step in steps)


def _same_precision(origin: str, wanted: Wanted) -> Wanted:
    """What `wanted` is made from, at the precision of `wanted` already."""
    return replace(Wanted.parse(origin), precision=wanted.precision)


def _choose_quantizers(
    able: Sequence[Quantizer], target: Target, order: Order
) -> Sequence[Quantizer]:
    """The quantizer that was named, or all that are ready."""
    if order.lowering.quantizer is not None:
        named = find_quantizer(order.lowering.quantizer)
        if named not in able:
            raise unknown_name_error(
                f"quantizer for {target.NAME}", named.NAME, [one.NAME for one in able]
            )
        able = [named]
    ready = [one for one in able if one.readiness().ready]
    if not ready:
        readiness = able[0].readiness()
        raise MissingError(
            f"{able[0].NAME}: {readiness.reason}", hint=readiness.mend, code=ErrorCode.NOT_INSTALLED
        )
    return ready


def _offers_method(quantizer: Quantizer, target: Target, order: Order) -> bool:
    """Whether it offers the calibration method that was asked for; a named one must."""
    methods = quantizer.METHODS[target.NAME]
    if order.lowering.method is None or order.lowering.method in methods:
        return True
    if order.lowering.quantizer is None and any(
        order.lowering.method in one.METHODS[target.NAME] for one in quantizers_for(target.NAME)
    ):
        return False
    raise unknown_name_error("calibration method", order.lowering.method, list(methods))


def _choose_captures(target: Target, wanted: Wanted, order: Order) -> tuple[Capture, ...]:
    if target.MADE_FROM[wanted.precision] != EAGER:
        return ()
    return target.CAPTURES if order.capture is None else (order.capture,)


def _check_wanted(target: Target, wanted: Wanted, order: Order) -> None:
    if wanted.precision not in target.MADE_FROM:
        raise UsageError(
            f"{target.NAME} has no {wanted.precision}",
            hint=f"it has {_join_words(target.MADE_FROM)}",
            code=ErrorCode.UNSUPPORTED,
        )
    forced, from_eager = order.capture, target.MADE_FROM[wanted.precision] == EAGER
    if forced is not None and from_eager and forced not in target.CAPTURES:
        raise UsageError(
            f"{target.NAME} cannot be captured by {forced}",
            hint=Hint(
                "use ", Option("capture", f"{' or '.join(map(str, target.CAPTURES))}"), ", or auto"
            ),
            option="capture",
            code=ErrorCode.UNSUPPORTED,
        )
    device = order.judging.device
    if device is not None and wanted in order.wanted and device not in target.DEVICES:
        raise UsageError(
            f"{target.NAME} does not run on {device}",
            hint=f"it runs on {_join_words(target.DEVICES)}",
            code=ErrorCode.UNSUPPORTED,
        )


def why_pending(target: Target) -> Readiness | None:
    """Why the target must wait for another host; None where it can be made here.

    Raises:
        MissingError: it can neither be made nor prepared.
    """
    readiness = target.readiness()
    if readiness.ready:
        return None
    if as_deferred(target) is None:
        raise MissingError(
            f"{target.NAME}: {readiness.reason}", hint=readiness.mend, code=ErrorCode.NOT_INSTALLED
        )
    return readiness


def _join_words(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def make_skipped_failure(step: Step, manifest: Manifest) -> Failure:
    """The record of such a step; its exit code is the parent's."""
    codes = [f.exit_code for f in manifest.failures if f.step == step.parent]
    verdict = manifest.verdict_of(f"{REJECTED_FOLDER}/{step.parent}")
    code = codes[0] if codes else (1 if verdict is None else verdict.exit_code)
    return Failure(
        step=step.name,
        message=f"not made: its parent {step.parent} was refused",
        hint=f"see the verdict of {step.parent}",
        exit_code=code,
        orphan_of=step.parent or "",
    )


def step_failure(step: Step, error: ModelcError, attempts: list[Attempt]) -> Failure:
    """The record of a step that gave no artifact."""
    hint = hint_for(error, set(step.target.CAPTURES).difference(step.captures))
    return Failure(
        step=step.name,
        message=error.message,
        hint=encodable(str(hint)),
        advice=hint.parts,
        exit_code=error.exit_code,
        attempts=tuple(attempts),
    )
