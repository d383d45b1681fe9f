"""Orders from options as users write them: flags of commands and keys of modelc.toml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..calibration.calibration_options import SAMPLES, CalibrationOptions, LabelledOptions
from ..calibration.preprocess import Preprocess
from ..converters.registry import target_for, target_named
from ..core.contract import EAGER, Target
from ..core.errors import ErrorCode, Hint, Option, UsageError
from ..core.kinds import Precision
from ..core.verdict import Limits
from .branch_coverage import accept_recorded
from .limit_text import DEFAULT_METRIC, Measuring, parse_drop
from .order import Judging, Lowering, Order, Source, Wanted
from .recorded_run import Moved, record_beside, source_from_record

NO_LIMITS: tuple[Limits, Mapping[str, Limits]] = (Limits(), {})


def make_source(  # noqa: PLR0913 - the options of the eager side
    checkpoint: Path,
    *,
    model: str | None = None,
    model_args: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    samples: Path | None = None,
    strict: bool = True,
    allow_pickle: bool = False,
    method: str | None = None,
    static: Sequence[str] | None = None,
    drop_outputs: Sequence[str] | None = None,
    weights_key: str | None = None,
    trust: bool = False,
) -> Source:
    """The eager side of an order.

    Raises:
        UsageError: an argument of the factory is not KEY=VALUE.
    """
    return Source(
        checkpoint=checkpoint,
        model=model,
        model_args=parse_model_args(model_args or ()),
        strict=strict,
        allow_pickle=allow_pickle,
        inputs=tuple(inputs or ()),
        samples=samples,
        method=method,
        static=tuple(static or ()),
        drop_outputs=tuple(drop_outputs or ()),
        weights_key=weights_key,
        trust=trust,
    )


def parse_model_args(texts: Sequence[str]) -> dict[str, str]:
    """`depth=50`, as a mapping.

    Raises:
        UsageError: a text is not of this form.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise UsageError(
                f"--model-arg {text!r} is not KEY=VALUE",
                hint=Hint("for example ", Option("model-arg", "depth=50")),
                option="model-arg",
            )
        pairs[key] = value
    return pairs


def make_judging(  # noqa: PLR0913 - the options of validation
    *,
    feeds: int | None = None,
    seed: int | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    min_sqnr: float | None = None,
    limits: tuple[Limits, Mapping[str, Limits]] = NO_LIMITS,
    device: str | None = None,
    search: float | None = None,
    accept: Sequence[str] | None = None,
    sensitivity: int | None = None,
) -> Judging:
    """How to judge. `limits` are those for all outputs, and by output.

    Raises:
        UsageError: a value that it cannot have.
    """
    shared, by_output = limits
    return Judging(
        feeds=feeds,
        seed=seed,
        atol=shared.atol if atol is None else atol,
        rtol=shared.rtol if rtol is None else rtol,
        min_sqnr=shared.min_sqnr if min_sqnr is None else min_sqnr,
        floor_factor=shared.floor_factor,
        min_cosine=shared.min_cosine,
        min_agreement=shared.min_agreement,
        by_output=by_output,
        device=None if device is None else str(device),
        search=search,
        accept=tuple(accept or ()),
        sensitivity=sensitivity,
    )


def make_lowering(  # noqa: PLR0913 - the options of precision
    calib: str | None,
    *,
    calib_samples: int | None = None,
    calib_select: str | None = None,
    calib_seed: int | None = None,
    calib_method: str | None = None,
    preprocess: str | None = None,
    quantizer: str | None = None,
    keep_fp: Sequence[str] | None = None,
    half_io: bool = False,
    max_trials: int | None = None,
) -> Lowering:
    """How precision is lowered.

    Raises:
        UsageError: a value that it cannot have, or one that has no effect without `--calib`.
    """
    about = {
        "--calib-samples": calib_samples, "--calib-select": calib_select,
        "--calib-seed": calib_seed, "--calib-method": calib_method, "--preprocess": preprocess,
    }  # fmt: skip
    given = [name for name, value in about.items() if value is not None]
    if calib is None and given:
        raise UsageError(
            f"{given[0]} has no effect without --calib",
            hint=Hint("add ", Option("calib", "DIR")),
            option=given[0].removeprefix("--"),
            code=ErrorCode.NO_EFFECT,
        )
    return Lowering(
        calibration=None
        if calib is None
        else make_calibration(calib, calib_samples, calib_select, calib_seed, preprocess),
        quantizer=None if quantizer == "auto" else quantizer,
        method=calib_method,
        keep=tuple(keep_fp or ()),
        half_io=half_io,
        max_trials=max_trials,
    )


def make_calibration(
    source: str,
    samples: int | None,
    select: str | None,
    seed: int | None,
    preprocess: str | None,
) -> CalibrationOptions:
    """What calibration data to use; None is the default.

    Raises:
        UsageError: a value that it cannot have.
    """
    return CalibrationOptions(
        source=source,
        samples=SAMPLES if samples is None else samples,
        selection=select or "",
        seed=0 if seed is None else seed,
        preprocess=None if preprocess is None else Preprocess.parse(preprocess),
    )


def make_measuring(  # noqa: PLR0913 - the options of labelled data
    data: str | None,
    metric: str | None,
    max_drop: str | None,
    *,
    label: str | None = None,
    output: str | None = None,
    preprocess: str | None = None,
    calibrates: bool = True,
) -> Measuring | None:
    """What to measure; None without `--data`.

    `--preprocess` may be of calibration as well where the command `calibrates`.

    Raises:
        UsageError: an option has no effect without `--data`, or is not what it has to be.
    """
    about = {
        "--metric": metric, "--max-drop": max_drop, "--label": label, "--metric-output": output,
        "--preprocess": None if calibrates else preprocess,
    }  # fmt: skip
    given = [name for name, value in about.items() if value is not None]
    if data is None and given:
        raise UsageError(
            f"{given[0]} has no effect without --data",
            hint=Hint("add ", Option("data", "DIR")),
            option=given[0].removeprefix("--"),
            code=ErrorCode.NO_EFFECT,
        )
    if data is None:
        return None
    return Measuring(
        data=LabelledOptions(
            source=data,
            label=label,
            preprocess=None if preprocess is None else Preprocess.parse(preprocess),
        ),
        metric=metric or DEFAULT_METRIC,
        output=output,
        max_drop=None if max_drop is None else parse_drop(max_drop),
    )


def calibration_preprocess(
    preprocess: str | None, data: str | None, calib: str | None
) -> str | None:
    """`--preprocess` as calibration has it: with labelled data alone it is of these."""
    return None if data is not None and calib is None else preprocess


def parse_custom_ops(texts: Sequence[str] | None) -> dict[str, str]:
    """`ns::op=package.module:fn`, as a mapping.

    Raises:
        UsageError: a text is not of this form, or an operator is given twice.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        name, sign, function = text.partition("=")
        if not sign or not name.partition("::")[2] or not function:
            raise UsageError(
                f"--custom-op {text!r} is not NS::OP=PKG.MOD:FN",
                hint=Hint("for example ", Option("custom-op", "mylib::swish=mylib.onnx_ops:swish")),
                option="custom-op",
            )
        if name in found:
            raise UsageError(
                f"--custom-op {name} is given twice", hint="give it once", option="custom-op"
            )
        found[name] = function
    return found


def make_settings(
    *, tf32: bool, profiles: Sequence[str] | None, plugins: Sequence[str] | None, **plain: object
) -> dict[str, str]:
    """An engine's settings as text, only what differs from its defaults; checked.

    Raises:
        UsageError: a value that they cannot have.
    """
    from ..converters.trt.engine_options import SEPARATOR, parse_options

    settings = {
        name: "true" if value is True else str(value)
        for name, value in plain.items()
        if value is not None and value is not False
    }
    if not tf32:
        settings["tf32"] = "false"
    for name, values in (("profiles", profiles), ("plugins", plugins)):
        if values:
            settings[name] = SEPARATOR.join(values)
    parse_options(settings)
    return settings


def build_order(path: Path, order: Order) -> Order:
    """What to carry out for `modelc build-...`.

    Args:
        path: a checkpoint, or a model that the wanted artifact is made from, at once or by way
            of others.
        order: as the command line says it; its source's checkpoint is `path` itself where no
            other was named.

    Raises:
        UsageError: `path` is a converted model and nothing says what eager is.
    """
    if not _is_parent_model(path, order.wanted[0]):
        return order
    beside = record_beside(path)
    if order.source.checkpoint != path:
        precision = _assume_precision(path) if beside is None else beside[1].precision
        return replace(order, parent=path, parent_precision=precision)
    if beside is None:
        raise UsageError(
            f"no manifest beside {path} knows it, so there is no eager reference to prove against",
            hint=Hint(
                "add --against CHECKPOINT ",
                Option("model", "PKG.MOD:FACTORY"),
                " ",
                Option("input", "…"),
            ),
            option="model",
            code=ErrorCode.NO_MANIFEST,
        )
    manifest, artifact = beside
    moved = Moved(allow_pickle=order.source.allow_pickle, trust=order.source.trust)
    return replace(
        order,
        source=source_from_record(manifest, path.parent, moved),
        parent=path,
        parent_precision=artifact.precision,
        signature=manifest.signature,
        judging=accept_recorded(order.judging, manifest),
    )


def _assume_precision(path: Path) -> Precision:
    """INT8 where the model is quantized already; else it is taken for full precision."""
    quantized = target_for(path).inspect(path).quantized
    return Precision.INT8 if quantized else Precision.FP32


def _is_parent_model(path: Path, wanted: Wanted) -> bool:
    """Whether the path is a model that `wanted` can start from, not a checkpoint."""
    origins = {target.NAME: target for target in _iter_origins(wanted)}
    if not path.is_file() or not any(path.name.endswith(t.SUFFIX) for t in origins.values()):
        return False
    return target_for(path).NAME in origins


def _iter_origins(wanted: Wanted) -> Iterator[Target]:
    """The targets that `wanted` is made from, the nearest first."""
    target = target_named(wanted.target)
    origin = target.MADE_FROM.get(wanted.precision, EAGER)
    if origin != EAGER:
        parent = Wanted.parse(origin)
        yield target_named(parent.target)
        yield from _iter_origins(parent)
