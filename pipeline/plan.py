"""Turn an order into a plan of steps, by the table of targets, without running anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..capture.refusals import hint_for
from ..converters.registry import TARGETS, target_for, target_named
from ..core.contract import EAGER, Deferred, Lowered, Quantizer, Readiness, Target
from ..core.errors import ErrorCode, Hint, MissingError, Option, UsageError, encodable
from ..core.grammar import parse_input
from ..core.kinds import QUANTIZED, Capture, Precision
from ..core.manifest import Failure, Pending
from ..core.target_extensions import Stateful
from ..core.weights import PrecisionAdvising
from .order import Order, Wanted
from .quantizer_choice import check_lowering, choose_quantizers, uses_optional_samples

if TYPE_CHECKING:
    from ..core.errors import ModelcError
    from ..core.records import Attempt


MODEL_STEM = "model"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One artifact to build and judge.

    Attributes:
        target: the format.
        wanted: target and precision.
        captures: captures to try in order; empty if the step captures nothing.
        parent: name of the parent step; None for eager or the order's own parent.
        asked: whether the user requested the artifact, rather than another step.
        quantizers: quantizers to try, of which the best is kept; empty if the step needs none.
        uses_calib: whether they use samples that they do not need.
        pending: why this host can only prepare the artifact; None if it can build it.
        built: the pending step whose files another host built; None if they are built here.
        loads_in: the runtimes (`--for`) that the artifact is written for.
        variant: distinguishes the artifact from another one of the same format and precision.
        origin: the target of the parent step.
    """

    target: Target
    wanted: Wanted
    captures: tuple[Capture, ...]
    parent: str | None
    asked: bool = True
    quantizers: tuple[Quantizer, ...] = ()
    uses_calib: bool = False
    pending: Readiness | None = None
    built: Pending | None = None
    loads_in: str = ""
    variant: str = ""
    origin: Target | None = None

    @property
    def name(self) -> str:
        """Name of the artifact."""
        return f"{self.wanted.name}-{self.variant}" if self.variant else self.wanted.name

    @property
    def uses_samples(self) -> bool:
        """Whether one of its quantizers, or that of what it is made from, needs samples."""
        way = self.target.NAME, self.wanted.precision
        if self.quantizers:
            return self.uses_calib or any(way not in one.DATA_FREE for one in self.quantizers)
        return self.wanted.precision in QUANTIZED

    @property
    def searches(self) -> bool:
        """Whether its quantizers need samples, with which layers to keep are searched."""
        return self.uses_samples and not self.uses_calib

    @property
    def is_derived(self) -> bool:
        """Whether the step has neither captures nor quantizers to choose from."""
        return not self.captures and not self.quantizers

    @property
    def stem(self) -> str:
        """File name without the suffix of the format."""
        precision = self.wanted.precision
        own = "" if precision is Precision.FP32 else f".{precision}"
        return f"{MODEL_STEM}{own}.{self.variant}" if self.variant else f"{MODEL_STEM}{own}"

    @property
    def file(self) -> str:
        """Name of the model file."""
        return self.stem + self.target.SUFFIX


def make_plan(order: Order, targets: tuple[Target, ...] = TARGETS) -> tuple[Step, ...]:
    """Return the steps of an order, parents first.

    Raises:
        UsageError: a target is unknown; it lacks the precision, capture or quantizer; INT8 has no
            calibration data; an input cannot be parsed; or an option has no effect.
        MissingError: a target or a quantizer is not available on this host.
    """
    for text in order.source.inputs:
        parse_input(text)
    planner = _Planner(order, targets)
    for wanted in order.wanted:
        planner.add(wanted)
    steps = tuple(planner.steps.values())
    check_lowering(order, steps)
    _check_capture(order, steps)
    return _assign_runtimes(order, steps)


def plan_pending(
    pending: Iterable[Pending], targets: tuple[Target, ...] = TARGETS
) -> tuple[Step, ...]:
    """Return the steps for the pending entries of a manifest; errors as of `make_plan`."""
    steps = []
    for one in pending:
        target = target_named(one.target, targets)
        steps.append(
            Step(
                target=target,
                wanted=Wanted(target=target.NAME, precision=one.precision),
                captures=(),
                parent=one.made_from,
                pending=why_pending(target),
                built=one if one.files else None,
            )
        )
    return tuple(steps)


class _Planner:
    """Collects steps, each after its parent."""

    def __init__(self, order: Order, targets: tuple[Target, ...]) -> None:
        self.order = order
        self.targets = targets
        self.steps: dict[str, Step] = {}
        self.given: str | None = None
        if order.parent is not None:
            target = target_for(order.parent, targets)
            self.given = Wanted(target=target.NAME, precision=order.parent_precision).name

    def add(self, wanted: Wanted) -> None:
        """Add the step for `wanted` after the steps that it depends on."""
        target = target_named(wanted.target, self.targets)
        _check_wanted(target, wanted, self.order)
        origin = target.MADE_FROM[wanted.precision]
        forced = self.order.capture
        captures = () if origin != EAGER else target.CAPTURES if forced is None else (forced,)
        ready_made = self._is_ready_made(origin, wanted)
        parent = None if ready_made else self._parent(target, wanted)
        quantizers = () if ready_made else choose_quantizers(target, wanted, self.order)
        step = Step(
            target=target,
            wanted=wanted,
            captures=captures,
            parent=parent,
            quantizers=quantizers,
            uses_calib=uses_optional_samples(quantizers, wanted, self.order.lowering),
            pending=why_pending(target),
            origin=None
            if parent is None
            else target_named(Wanted.parse(origin).target, self.targets),
        )
        self.steps.setdefault(wanted.name, step)

    def _is_ready_made(self, origin: str, wanted: Wanted) -> bool:
        """Return whether the order's parent already is the artifact or its quantized origin."""
        if origin == EAGER or self.given is None:
            return False
        if self.given == wanted.name:
            return True
        quantized = replace(Wanted.parse(origin), precision=wanted.precision)
        return wanted.precision in QUANTIZED and self.given == quantized.name

    def _parent(self, target: Target, wanted: Wanted) -> str | None:
        """Return the name of the parent step; None for eager or the order's parent."""
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
        outside = (
            self.order.parent is not None
            and self.order.parent.resolve().parent != self.order.out.resolve()
        )
        if needed.name == self.given and not (outside and isinstance(target, Deferred)):
            return None  # else the order's parent is copied for the build on another host
        if needed.name not in self.steps:
            self.add(needed)
            if needed not in self.order.wanted:
                self.steps[needed.name] = replace(self.steps[needed.name], asked=False)
        return needed.name


def _check_capture(order: Order, steps: Sequence[Step]) -> None:
    """Raise UsageError if `--patch`, `--custom-op` or `--stateful` has no effect."""
    if order.stateful and not any(isinstance(step.target, Stateful) for step in steps):
        raise UsageError(
            "--stateful has no effect: no target is OpenVINO", option="stateful",
            hint=Hint("add ", Option("to", "openvino"), ", or leave it out"),
            code=ErrorCode.NO_EFFECT,
        )  # fmt: skip
    if order.patches and not any(step.captures for step in steps):
        raise UsageError(
            f"--patch {' '.join(order.patches)} has no effect: no target is captured",
            hint="give the checkpoint, or leave it out",
            option="patch", code=ErrorCode.NO_EFFECT,
        )  # fmt: skip
    captured = [step.target for step in steps if step.captures]
    if order.custom_ops and not any(isinstance(one, Lowered) for one in captured):
        raise UsageError(
            f"--custom-op {' '.join(order.custom_ops)} has no effect: nothing is exported to ONNX",
            hint=Hint("add ", Option("to", "onnx"), ", or leave it out"),
            option="custom-op", code=ErrorCode.NO_EFFECT,
        )  # fmt: skip


def _assign_runtimes(order: Order, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Set `loads_in` of the ONNX steps, after checking that the runtimes can load them."""
    planned = {
        step.name: step.target.plan_opset(order.opset, order.runtimes, step.wanted.precision)
        for step in steps
        if isinstance(step.target, Lowered)
    }
    if order.runtimes and not planned:
        raise UsageError(
            f"--for {' '.join(order.runtimes)} has no effect: no target is ONNX", option="for",
            hint=Hint("add ", Option("to", "onnx"), ", or leave it out"),
            code=ErrorCode.NO_EFFECT,
        )  # fmt: skip
    if order.parent is not None:  # its opset is unknown until the conversion reads it
        return tuple(steps)
    return tuple(replace(step, loads_in=planned.get(step.name, "")) for step in steps)


def _check_wanted(target: Target, wanted: Wanted, order: Order) -> None:
    if wanted.precision not in target.MADE_FROM:
        advice = target.PRECISION_ADVICE if isinstance(target, PrecisionAdvising) else {}
        offered = Hint(f"choose one of its precisions: {', '.join(target.MADE_FROM)}")
        raise UsageError(
            f"{target.NAME} cannot be made in {wanted.precision}",
            hint=advice.get(wanted.precision, offered),
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
            hint=f"it runs on {', '.join(target.DEVICES)}",
            code=ErrorCode.UNSUPPORTED,
        )


def why_pending(target: Target) -> Readiness | None:
    """Return why the target is pending on another host; None if this host can build it.

    Raises:
        MissingError: it cannot be prepared here either.
    """
    readiness = target.readiness()
    if readiness.ready:
        return None
    if not isinstance(target, Deferred):
        raise MissingError(
            f"{target.NAME}: {readiness.reason}", hint=readiness.mend, code=ErrorCode.NOT_INSTALLED
        )
    return readiness


def step_failure(step: Step, error: ModelcError, attempts: list[Attempt]) -> Failure:
    """Return the failure record of a step without an artifact."""
    hint = hint_for(error, set(step.target.CAPTURES).difference(step.captures))
    return Failure(
        step=step.name,
        message=error.message,
        hint=encodable(str(hint)),
        advice=hint.parts,
        exit_code=error.exit_code,
        attempts=tuple(attempts),
    )
