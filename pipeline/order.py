"""The Order: what was asked, frozen and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from ..calibration.calibration_options import CalibrationOptions
from ..core.contract import Target
from ..core.errors import ErrorCode, Hint, Option, UsageError, unknown_name_error
from ..core.hub_ids import HubOrigin, name_checkpoint
from ..core.kinds import QUANTIZED, Precision
from ..core.manifest import Failure
from ..core.signature import Signature
from ..core.target_extensions import WideFloor
from ..core.verdict import Limits, Tolerance
from ..validators.tolerance import TOLERANCES, drop_floor, override_limits
from .limit_text import Measuring
from .option_spec import check_numbers, summarize
from .option_table import (
    ConversionOptions,
    JudgingOptions,
    LoweringOptions,
    SourceOptions,
)
from .option_values import check_branch, parse_precision

GROUP_SIZES = (16, 32, 64, 128, 256)  # of weights with one scale
MAX_TRIALS = 32  # of accuracy-aware INT8, unless --max-trials says otherwise


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One artifact that was asked for: a format and a precision."""

    target: str
    precision: Precision = Precision.FP32

    @classmethod
    def parse(cls, text: str, precision: Precision = Precision.FP32) -> Wanted:
        """Read `NAME` or `NAME:PRECISION`, as `openvino:fp16`; `precision` is the default."""
        name, colon, given = text.partition(":")
        return cls(target=name, precision=parse_precision(given) if colon else precision)

    @property
    def name(self) -> str:
        """The artifact's name: the target's, with the precision unless it is fp32."""
        if self.precision is Precision.FP32:
            return self.target
        return f"{self.target}-{self.precision}"


@dataclass(frozen=True, kw_only=True)
class Source(SourceOptions):
    """The eager side of an order: the checkpoint, and the options that build and feed the module.

    A checkpoint whose digest is `recorded` was opened before, and needs no consent. `preprocess`
    are the steps to include before the model, which make its input `preprocess_input`. `hub` is
    where a checkpoint in the hub's cache is from. It may be an `artifact`: a converted model that
    its own runtime runs as the reference.
    """

    checkpoint: Path
    recorded: str = ""
    preprocess: str = ""
    preprocess_input: str = ""
    hub: HubOrigin | None = None
    artifact: bool = False

    @property
    def name(self) -> str:
        """The checkpoint as typed, for messages."""
        return name_checkpoint(self.checkpoint) if self.hub is None else self.hub.id


def _format_limits(output: str, limits: Limits) -> str:
    """As `--tolerance` reads it: `logits:min-sqnr=60,rtol=0.01`."""
    given = (
        f"{key.replace('_', '-')}={value:g}"
        for key, value in vars(limits).items()
        if value is not None
    )
    text = ",".join(given)
    return f"{output}:{text}" if text and output else text


@dataclass(frozen=True, kw_only=True)
class Judging(JudgingOptions):
    """How artifacts are judged: on how many feeds, within which limits, on which device.

    An option that is None has its default (`LEAST_FEEDS`, 0, the tolerance of the precision, the
    first device of the target), or the value that a manifest recorded. `by_output` holds other
    limits for single outputs; `recorded` is the tolerance of an earlier run, which replaces the
    precision's own. Without `trusts_record` no limit and no accepted branch is read from a
    manifest: an unsigned manifest must not say how it is judged before it is signed. `shared` are
    options that several models have, of which a model without use for one notes that.
    """

    floor_factor: float | None = None
    min_cosine: float | None = None
    by_output: Mapping[str, Limits] = field(default_factory=dict)
    recorded: Tolerance | None = None
    trusts_record: bool = True
    shared: frozenset[str] = frozenset()

    def summary(self) -> dict[str, str]:
        """What a manifest keeps of it beside feeds and seed: limits, search, accepted branches."""
        names = ("atol", "rtol", "min_sqnr", "search", "sensitivity")
        values = {name: getattr(self, name) for name in names}
        others = replace(self.limits, atol=None, rtol=None, min_sqnr=None)
        named = {"": others, **self.by_output}
        tolerances = (_format_limits(name, limits) for name, limits in named.items())
        return {
            **{name: "" if value is None else f"{value:g}" for name, value in values.items()},
            "tolerance": " ".join(filter(None, tolerances)),
            "accept_branch": " ".join(self.accept),
        }

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.device not in (None, "cpu", "cuda"):
            raise unknown_name_error("device", str(self.device), ["cpu", "cuda"])
        override_limits(TOLERANCES[Precision.FP32], self.limits, self.by_output)  # it checks them
        for place in self.accept:
            check_branch(place)

    @property
    def limits(self) -> Limits:
        """The limits for all outputs that were asked for."""
        return Limits(**{one.name: getattr(self, one.name) for one in fields(Limits)})

    @property
    def limits_by_output(self) -> dict[str, Limits]:
        """The limits that were asked for, by output, with those for all under `""`."""
        found = {"": self.limits, **self.by_output}
        return {name: limits for name, limits in found.items() if limits != Limits()}

    def use_limits(self, then: Mapping[str, Limits]) -> Judging:
        """Return it with limits that were asked for before, where none are asked for now.

        An untrusted record adds none.
        """
        if not then or self.limits_by_output or not self.trusts_record:
            return self
        overall = {one.name: getattr(then.get("", Limits()), one.name) for one in fields(Limits)}
        by_output = {name: limits for name, limits in then.items() if name}
        return replace(self, **overall, by_output=by_output)

    def tolerance_for(self, precision: Precision, target: Target | None = None) -> Tolerance:
        """What is asked for, in place of what is recorded, in place of the precision's own.

        The noise floor is FP32's alone: less precision errs by more than float32's roundoff. Its
        factor may be the target's.
        """
        own = TOLERANCES[precision]
        if own.floor_factor is not None and isinstance(target, WideFloor):
            own = replace(own, floor_factor=target.FLOOR_FACTOR)
        usual = self.recorded or own
        if precision is Precision.FP32:
            return override_limits(usual, self.limits, self.by_output)
        by_output = {name: drop_floor(limits) for name, limits in self.by_output.items()}
        kept = {name: drop_floor(limits) for name, limits in usual.by_output.items()}
        usual = replace(usual, floor_factor=None, by_output=kept)
        return override_limits(usual, drop_floor(self.limits), by_output)

    def device_for(self, target: Target) -> str:
        """The device that was asked for, where the target runs on it; else the target's first."""
        return self.device if self.device in target.DEVICES else target.DEVICES[0]


@dataclass(frozen=True, kw_only=True)
class Lowering(LoweringOptions):
    """How precision is lowered.

    Without a `quantizer` all that suit are tried; `max_trials` None is `MAX_TRIALS`.
    """

    calibration: CalibrationOptions | None = None

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.group_size is not None and self.group_size not in GROUP_SIZES:
            raise UsageError(
                f"--group-size must be a power of 2 from 16 to 256, not {self.group_size}",
                hint=Hint("for example ", Option("group-size", "64")),
                option="group-size",
                code=ErrorCode.INVALID_VALUE,
            )

    def summary(self) -> dict[str, str]:
        """What the manifest keeps of it; what was not asked for is empty."""
        return {
            "calibration": "" if self.calibration is None else self.calibration.source,
            **summarize(self),
            **({} if self.calibration is None else _samples_summary(self.calibration)),
        }


def _samples_summary(options: CalibrationOptions) -> dict[str, str]:
    """Which samples, and how images become inputs, where that is not the default."""
    usual = CalibrationOptions(source=options.source)
    return {
        "calib_samples": "" if options.samples == usual.samples else str(options.samples),
        "calib_select": "" if options.selection == usual.selection else options.selection,
        "calib_seed": "" if options.seed == usual.seed else str(options.seed),
        "preprocess": "" if options.preprocess is None else str(options.preprocess),
    }


@dataclass(frozen=True, kw_only=True)
class ResumeState:
    """What a run reuses of earlier runs in the same folder.

    `keys` are the cache keys of the steps by artifact name, which the manifest records; `inputs`
    has the stat data of the files in them. The artifacts in `kept` are in the folder with these
    keys, judged, and are not built again; the steps in `failures` are not tried again.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    failures: tuple[Failure, ...] = ()

    @property
    def done(self) -> frozenset[str]:
        """The steps that are not executed again."""
        return self.kept | {failure.step for failure in self.failures}


@dataclass(frozen=True, kw_only=True)
class Order(ConversionOptions):
    """One run: a source, what to make of it, and where.

    Attributes:
        source: the eager side.
        wanted: the artifacts to make.
        out: the output folder.
        judging: how artifacts are judged.
        parent: a converted model to start from instead of the eager one.
        discards: remove artifacts of another model from `out`, in place of moving them: the folder
            belongs to the project.
        signature: the signature that a manifest recorded for `parent`.
        parent_precision: the precision of `parent`.
        lowering: how precision is lowered.
        settings: options of one target alone, as text.
        cache: a folder of results for later runs; None keeps none.
        cache_limit: the size of the cache in bytes; None is the default.
        measuring: what is measured on labelled data.
        resume: what an earlier run has done of this order.
        timed: measure the latency of every lower precision, not only of calibrated ones.
    """

    source: Source
    wanted: tuple[Wanted, ...]
    out: Path
    judging: Judging = field(default_factory=Judging)
    parent: Path | None = None
    discards: bool = False
    signature: Signature | None = None
    parent_precision: Precision = Precision.FP32
    lowering: Lowering = field(default_factory=Lowering)
    settings: Mapping[str, str] = field(default_factory=dict)
    cache: Path | None = None
    cache_limit: int | None = None
    measuring: Measuring | None = None
    resume: ResumeState = field(default_factory=ResumeState)
    timed: bool = False

    def __post_init__(self) -> None:
        check_numbers(self)
        if not self.wanted:
            raise UsageError(
                "no target is given",
                hint=Hint("name a target: ", Option("to", "onnx")),
                option="to",
                code=ErrorCode.NOTHING_TO_DO,
            )
        for one in self.wanted:
            if not isinstance(one, Wanted):
                raise UsageError(
                    f"wanted must contain Wanted records, not {one!r}",
                    hint=f"write Wanted.parse({str(one)!r})",
                    code=ErrorCode.INVALID_VALUE,
                )

    @property
    def has_accuracy_budget(self) -> bool:
        """Whether INT8 is to keep what was asked for, and not only what its precision must."""
        gate = None if self.measuring is None else self.measuring.max_drop
        return self.judging.min_sqnr is not None or gate is not None

    def select_judging(self, wanted: Wanted) -> Judging:
        """How an artifact is judged: `--min-sqnr` beside INT8 is a budget of what is INT8 alone.

        What INT8 is made from must not pass with the noise that INT8 may have.
        """
        quantizes = any(one.precision in QUANTIZED for one in self.wanted)
        if not quantizes or wanted.precision in QUANTIZED or wanted in self.wanted:
            return self.judging
        return replace(self.judging, min_sqnr=None)

    def summary(self) -> dict[str, str]:
        """What the manifest keeps of the order."""
        entries = {
            "to": " ".join(f"{w.target}:{w.precision}" for w in self.wanted),
            **summarize(self),
            "meta": "",  # the manifest holds it as a record
            "capture": str(self.capture or "auto"),
            "opset": str(self.opset or "default"),
            "external_data": str(self.external_data).lower(),
            "inputs": " ".join(self.source.inputs),
            "static": " ".join(self.source.static),
            "device": self.judging.device or "",
            **self.judging.summary(),
            **self.lowering.summary(),
            **({} if self.measuring is None else self.measuring.summary()),
            **self.settings,
        }
        return {key: value for key, value in entries.items() if value}
