"""The order of one model from its settings, by the builders that the commands use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..core.capture import Capture
from ..core.contract import CAPTURE_TIMEOUT
from ..core.verdict import Limits
from ..pipeline import make_order as asked
from ..pipeline.order import Judging, Order, Source, Wanted
from .keys import TOLERANCE
from .records import KeyPath, Setting
from .typed import SettingReader


def make_model_order(
    said: Mapping[KeyPath, Setting], wanted: tuple[Wanted, ...], out: Path, *, cache: Path | None
) -> Order:
    """The order that settings of a model say, as `modelc export` makes it of its options.

    Raises:
        UsageError: they do not go together.
    """
    of = SettingReader(said)
    capture = of.text("capture") or "auto"
    data, calib, preprocess = of.text("data"), of.text("calib"), of.text("preprocess")
    return Order(
        source=_make_source(of),
        wanted=wanted,
        out=out,
        judging=_make_judging(of, said),
        measuring=asked.make_measuring(
            data, of.text("metric"), of.text("max-drop"), label=of.text("label"),
            output=of.text("metric-output"), preprocess=preprocess,
        ),
        capture=None if capture == "auto" else Capture(capture),
        opset=of.whole("opset"),
        external_data=of.truth("external-data"),
        narrow=of.truth("narrow"),
        guard=of.truth("guard"),
        capture_timeout=of.number("capture-timeout") or CAPTURE_TIMEOUT,
        lowering=asked.make_lowering(
            calib, calib_samples=of.whole("calib-samples"), calib_select=of.text("calib-select"),
            calib_seed=of.whole("calib-seed"), calib_method=of.text("calib-method"),
            preprocess=asked.calibration_preprocess(preprocess, data, calib),
            quantizer=of.text("quantizer"), keep_fp=of.texts("keep-fp"),
            half_io=of.truth("half-io"), max_trials=of.whole("max-trials"),
        ),
        settings=_engine_settings(of),
        cache=None if of.truth("no-cache") else cache,
        patches=of.texts("patch"),
        depends=of.texts("depends"),
        custom_ops=asked.parse_custom_ops(of.texts("custom-op")),
        runtimes=of.texts("for"),
    )  # fmt: skip


def _make_source(of: SettingReader) -> Source:
    return asked.make_source(
        of.path("checkpoint") or Path(), model=of.text("model"), model_args=of.texts("model-arg"),
        inputs=of.texts("input"), samples=of.path("samples"), strict=not of.truth("no-strict"),
        allow_pickle=of.truth("allow-pickle"), method=of.text("method"), static=of.texts("static"),
        drop_outputs=of.texts("drop-output"), trust=of.truth("trust"),
        weights_key=of.text("weights-key"),
    )  # fmt: skip


def _make_judging(of: SettingReader, said: Mapping[KeyPath, Setting]) -> Judging:
    return asked.make_judging(
        feeds=of.whole("feeds"), seed=of.whole("seed"), atol=of.number("atol"),
        rtol=of.number("rtol"), min_sqnr=of.number("min-sqnr"), limits=_make_limits(said),
        device=of.text("device"), search=of.number("search"), accept=of.texts("accept-branch"),
        sensitivity=of.whole("sensitivity"),
    )  # fmt: skip


def _make_limits(said: Mapping[KeyPath, Setting]) -> tuple[Limits, dict[str, Limits]]:
    """The limits of `tolerance`, for all outputs and by output."""
    found: dict[str, dict[str, float]] = {}
    for path, one in said.items():
        if path[0] == TOLERANCE and isinstance(one.value, int | float):
            output = path[1] if len(path) > 2 else ""  # noqa: PLR2004 - tolerance.OUTPUT.LIMIT
            found.setdefault(output, {})[path[-1].replace("-", "_")] = float(one.value)
    shared = Limits(**found.pop("", {}))
    return shared, {output: Limits(**limits) for output, limits in found.items()}


def _engine_settings(of: SettingReader) -> dict[str, str]:
    return asked.make_settings(
        tf32=not of.truth("no-tf32"), profiles=of.texts("profile"), plugins=of.texts("plugins"),
        workspace=of.text("workspace"), optimization_level=of.whole("optimization-level"),
        timing_cache=of.text("timing-cache"), version_compatible=of.truth("version-compatible"),
        hardware_compatible=of.text("hardware-compatible"), refittable=of.truth("refittable"),
        strip_weights=of.truth("strip-weights"), weight_streaming=of.truth("weight-streaming"),
        trust_engine=of.truth("trust-engine"), builder=of.text("builder"),
    )  # fmt: skip
