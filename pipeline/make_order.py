"""Orders from options as users write them: flags of commands and keys of modelc.toml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..calibration.calibration_options import SAMPLES, CalibrationOptions, LabelledOptions
from ..converters.registry import target_for, target_named
from ..core.contract import EAGER, Target
from ..core.errors import ErrorCode, Hint, Option, UsageError
from ..core.kinds import QUANTIZED, Precision
from ..core.model_meta import ModelMeta
from ..core.preprocess import Preprocess
from ..core.target_extensions import RestLowered
from ..core.verdict import Limits
from .call_options import CallOptions
from .image_samples import check_includable, raw_images
from .limit_text import DEFAULT_METRIC, Measuring, parse_drop
from .model_metadata import join_preprocess, merge_meta
from .option_spec import Given, field_values, read_record, specs_of
from .option_table import (
    ENGINE_OPTIONS,
    AccuracyOptions,
    ArtifactOptions,
    CalibrationChoice,
    ConversionOptions,
    JudgingOptions,
    LoweringOptions,
    SourceOptions,
)
from .order import Judging, Lowering, Order, Source, Wanted
from .recorded_run import Moved, check_not_modelcs, record_beside

NO_LIMITS: tuple[Limits, Mapping[str, Limits]] = (Limits(), {})


def make_order(
    given: Given,
    checkpoint: Path,
    wanted: tuple[Wanted, ...],
    *,
    limits: tuple[Limits, Mapping[str, Limits]] = NO_LIMITS,
    cache: Path | None = None,
) -> Order:
    """The order that options describe, those of a command as those of a model in a project.

    Args:
        given: what the user gave, by the names of the options.
        checkpoint: the eager side.
        wanted: the artifacts.
        limits: those for all outputs, and by output.
        cache: a folder of results for later runs.

    Raises:
        UsageError: a value that an option cannot have, or one that has no effect.
    """
    conversion = field_values(specs_of(ConversionOptions), given)
    meta = join_preprocess(conversion.get("meta"), read_record(CalibrationChoice, given).preprocess)
    source = include_steps(make_source(checkpoint, given), meta)
    if source.preprocess:  # samples are images, and the model does the rest
        given = {**given, "preprocess": None}
    lowering, measuring = make_lowering(given), make_measuring(given)
    order = Order(
        source=source,
        wanted=wanted,
        out=read_record(CallOptions, given).out,
        judging=make_judging(given, limits),
        lowering=lowering,
        measuring=measuring,
        settings=make_settings(given, wanted),
        cache=None if given.get("no-cache") else cache,
        **{**conversion, "meta": meta if source.preprocess else conversion.get("meta")},
    )
    return preprocess_as_declared(order)


def include_steps(source: Source, meta: ModelMeta | None) -> Source:
    """Return the eager side with the declared preprocessing inside, if it is to be included.

    Raises:
        UsageError: none is declared, or it cannot be computed inside a model.
    """
    if not source.include_preprocess or source.preprocess:
        return source
    steps = None if meta is None else meta.preprocess
    if steps is None or meta is None:
        raise UsageError(
            "--include-preprocess: no preprocessing is declared",
            hint=Hint("declare it: ", Option("meta", "preprocess=imagenet")),
            option="include-preprocess",
            code=ErrorCode.NO_EFFECT,
        )
    steps = replace(steps, layout=steps.layout or "NCHW", channels=steps.channels or "rgb")
    check_includable(steps)
    return replace(source, preprocess=str(steps), preprocess_input=meta.preprocess_input)


def preprocess_as_declared(order: Order) -> Order:
    """Return the order whose images are preprocessed as its metadata declares."""
    steps = None if order.meta is None else order.meta.preprocess
    if order.source.preprocess:
        steps = raw_images(order.source.preprocess)
    lowering, measuring = order.lowering, order.measuring
    calibration = lowering.calibration
    if steps is None:
        return order
    if calibration is not None and calibration.preprocess is None:
        lowering = replace(lowering, calibration=replace(calibration, preprocess=steps))
    if measuring is not None and measuring.data.preprocess is None:
        measuring = replace(measuring, data=replace(measuring.data, preprocess=steps))
    return replace(order, lowering=lowering, measuring=measuring)


def choose_precision(options: ArtifactOptions, *, rest: bool = False) -> Precision:
    """The precision that the flags of a command ask for; FP32 without any.

    With `rest`, a quantized precision may have `--fp16` or `--bf16` beside it, for other layers.

    Raises:
        UsageError: they ask for several.
    """
    flags = {
        Precision.FP16: options.fp16, Precision.BF16: options.bf16, Precision.INT8: options.int8,
        Precision.FP8: options.fp8, Precision.INT8_WEIGHTS: options.int8_weights,
        Precision.INT8_DYNAMIC: options.int8_dynamic, Precision.INT4: options.int4,
    }  # fmt: skip
    asked = [precision for precision, given in flags.items() if given]
    quantized = [precision for precision in asked if precision in QUANTIZED]
    if rest and len(quantized) == 1 and len(asked) == 2:  # noqa: PLR2004 - and its rest
        return quantized[0]
    if len(asked) > 1:
        text = " and ".join(f"--{precision}" for precision in asked)
        raise UsageError(
            f"{text} exclude each other", hint="give one, and run twice for both",
            option=str(asked[0]), code=ErrorCode.UNSUPPORTED,
        )  # fmt: skip
    return asked[0] if asked else Precision.FP32


def lowers_rest(wanted: Wanted) -> bool:
    """Return whether what a quantizer leaves in floating point is lowered for this target."""
    quantized = replace(wanted, precision=Precision.INT8)
    made_by = (target_named(wanted.target), *_iter_origins(quantized))
    return any(isinstance(target, RestLowered) for target in made_by)


def make_source(checkpoint: Path, given: Given) -> Source:
    """The eager side of an order.

    Raises:
        UsageError: an argument of the factory is not KEY=VALUE.
    """
    return Source(checkpoint=checkpoint, **field_values(specs_of(SourceOptions), given))


def make_judging(given: Given, limits: tuple[Limits, Mapping[str, Limits]] = NO_LIMITS) -> Judging:
    """How to judge. `limits` are those for all outputs, and by output; an option precedes them.

    Raises:
        UsageError: a value that an option cannot have.
    """
    shared, by_output = limits
    values = {**vars(shared), **field_values(specs_of(JudgingOptions), given)}
    return Judging(by_output=by_output, **values)


def make_lowering(given: Given) -> Lowering:
    """How precision is lowered; with labelled data alone, `--preprocess` is of these.

    Raises:
        UsageError: a value that an option cannot have, or one that has no effect without `--calib`.
    """
    choice = read_record(CalibrationChoice, given)
    if choice.calib is None and given.get("data") is not None:
        choice = replace(choice, preprocess=None)
    lowering = Lowering(**field_values(specs_of(LoweringOptions), given))
    needing = {
        "calib-samples": choice.calib_samples, "calib-select": choice.calib_select,
        "calib-seed": choice.calib_seed, "preprocess": choice.preprocess,
    }  # fmt: skip
    _check_needed("calib", choice.calib, needing)
    if choice.calib is None:
        return lowering
    return replace(lowering, calibration=make_calibration(choice.calib, choice))


def make_calibration(source: str, choice: CalibrationChoice) -> CalibrationOptions:
    """Which samples of the source to calibrate with.

    Raises:
        UsageError: a value that an option cannot have.
    """
    return CalibrationOptions(
        source=source,
        samples=SAMPLES if choice.calib_samples is None else choice.calib_samples,
        selection=choice.calib_select or "",
        seed=choice.calib_seed or 0,
        preprocess=_parse_preprocess(choice.preprocess),
    )


def make_measuring(given: Given, *, calibrates: bool = True) -> Measuring | None:
    """What to measure on labelled data; None without `--data`.

    Where the command `calibrates`, `--preprocess` may be of calibration alone.

    Raises:
        UsageError: an option has no effect without `--data`, or a value that it cannot have.
    """
    options, choice = read_record(AccuracyOptions, given), read_record(CalibrationChoice, given)
    needing = {
        "metric": options.metric, "max-drop": options.max_drop, "label": options.label,
        "metric-output": options.metric_output,
        "preprocess": None if calibrates else choice.preprocess,
    }  # fmt: skip
    _check_needed("data", options.data, needing)
    if options.data is None:
        return None
    return Measuring(
        data=LabelledOptions(
            source=options.data,
            label=options.label,
            preprocess=_parse_preprocess(choice.preprocess),
        ),
        metric=options.metric or DEFAULT_METRIC,
        output=options.metric_output,
        max_drop=None if options.max_drop is None else parse_drop(options.max_drop),
    )


def _parse_preprocess(text: str | None) -> Preprocess | None:
    return None if text is None else Preprocess.parse(text)


def _check_needed(name: str, value: object, needing: Mapping[str, object]) -> None:
    """No option is without effect in silence because the one that it belongs to is not given."""
    given = [other for other, its in needing.items() if its is not None]
    if value is None and given:
        raise UsageError(
            f"--{given[0]} has no effect without --{name}",
            hint=Hint("add ", Option(name, "DIR")),
            option=given[0],
            code=ErrorCode.NO_EFFECT,
        )


def make_settings(given: Given, wanted: Sequence[Wanted] = ()) -> dict[str, str]:
    """An engine's settings as text, only what differs from its defaults; checked.

    Raises:
        UsageError: a value that they cannot have, or one that no wanted engine has.
    """
    values = {one: given.get(one.name) for one in ENGINE_OPTIONS}
    found = {one: v for one, v in values.items() if not (v is None or v is False or v == ())}
    if not found:
        return {}
    from ..converters.trt.engine_options import SEPARATOR, check_libraries, parse_options
    from ..converters.trt.trt_installation import TrtLibrary

    settings = {}
    for one, value in found.items():
        parts = value if isinstance(value, list | tuple) else (value,)
        text = SEPARATOR.join(map(str, parts))
        settings[one.field] = str(not one.negated).lower() if value is True else text
    targets = {one.target for one in wanted}
    check_libraries(settings, [one for one in TrtLibrary if one in targets])
    parse_options(settings)
    return settings


def build_order(path: Path, order: Order) -> Order:
    """The order of `modelc build-...`, with what the manifest beside `path` records.

    A model that neither a manifest nor `--against` gives an eager reference is the reference
    itself, as its own runtime runs it.

    Args:
        path: a checkpoint, or a model that the wanted artifact is made from, directly or not.
        order: as the command line gives it; its source's checkpoint is `path` itself where no
            other is given.

    Raises:
        UsageError: modelc rejected the model, or it changed after modelc made it.
    """
    origins = {target.NAME: target.SUFFIX for target in _iter_origins(order.wanted[0])}
    is_origin = path.is_file() and path.name.endswith(tuple(origins.values()))
    if not is_origin or target_for(path).NAME not in origins:
        return order
    beside = record_beside(path)
    if order.source.checkpoint != path:
        if beside is not None:
            precision = beside[1].precision
        else:
            precision = target_for(path).inspect(path).quantized or Precision.FP32
        recorded = ModelMeta() if beside is None else beside[0].meta
        meta = merge_meta(order.meta, recorded)
        order = preprocess_as_declared(replace(order, meta=meta))
        return replace(order, parent=path, parent_precision=precision)
    if beside is None:
        from ..converters.trt.trt_installation import TrtLibrary

        is_engine = order.wanted[0].target in list(TrtLibrary)
        check_not_modelcs(path, "build-trt" if is_engine else "build-ov")
        precision = target_for(path).inspect(path).quantized or Precision.FP32
        source = replace(order.source, artifact=True)
        return replace(order, source=source, parent=path, parent_precision=precision)
    from .reopen import find_recorded_run  # it imports what judges

    manifest, artifact = beside
    moved = Moved(allow_pickle=order.source.allow_pickle, trust=order.source.trust)
    run = find_recorded_run(manifest, path.parent, moved, order.judging)
    order = preprocess_as_declared(replace(order, meta=merge_meta(order.meta, manifest.meta)))
    return replace(
        order,
        source=run.source,
        parent=path,
        parent_precision=artifact.precision,
        signature=manifest.signature,
        judging=run.judging,
    )


def _iter_origins(wanted: Wanted) -> Iterator[Target]:
    """The targets that `wanted` is made from, the nearest first."""
    target = target_named(wanted.target)
    origin = target.MADE_FROM.get(wanted.precision, EAGER)
    if origin != EAGER:
        parent = Wanted.parse(origin)
        yield target_named(parent.target)
        yield from _iter_origins(parent)
