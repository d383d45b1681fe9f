"""The plan of an order: steps from the table of targets, without running anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.calibration.calibration_options import CalibrationOptions
from modelc.core.contract import Readiness, Target
from modelc.core.errors import ErrorCode, MissingError, UsageError
from modelc.core.kinds import Capture, Precision
from modelc.pipeline.order import Judging, Lowering, Order, Source, Wanted
from modelc.pipeline.plan import make_plan

from ..reasons import has_code

Fakes = Callable[..., Target]
Orders = Callable[..., Order]


@pytest.fixture
def table(fake: Fakes) -> tuple[Target, ...]:
    """Three generations: seed, its child sprout (two precisions), and its child leaf."""
    both = (Precision.FP32, Precision.FP16)
    return (
        fake(NAME="seed", SUFFIX=".seed", CAPTURES=(Capture.EXPORT, Capture.TRACE)),
        fake(NAME="sprout", SUFFIX=".sprout", origin="seed", CAPTURES=(), precisions=both),
        fake(NAME="leaf", SUFFIX=".leaf", origin="sprout", CAPTURES=()),
        fake(NAME="other", SUFFIX=".other", DEVICES=("cpu", "cuda")),
    )


@pytest.mark.parametrize("text", ["x:float32[", "x:floaty[2]", "x[3,32..224", ":[2]"])
def test_an_invalid_input_is_an_error(
    order: Orders, table: tuple[Target, ...], gate_source: Source, text: str
) -> None:
    with pytest.raises(UsageError):
        make_plan(order("seed", source=replace(gate_source, inputs=(text,))), table)


@pytest.mark.parametrize(
    ("wanted", "steps"),
    [
        (("leaf",), ["seed", "sprout", "leaf"]),
        (("sprout:fp16", "other", "seed"), ["seed", "sprout-fp16", "other"]),
        (("seed", "seed", "sprout", "sprout:fp32"), ["seed", "sprout"]),  # each once
    ],
)
def test_parents_are_first(
    order: Orders, table: tuple[Target, ...], wanted: tuple[str, ...], steps: list[str]
) -> None:
    assert [step.name for step in make_plan(order(*wanted), table)] == steps


def test_parents_that_were_not_requested_are_marked(
    order: Orders, table: tuple[Target, ...]
) -> None:
    steps = make_plan(order("leaf", "seed"), table)
    assert {step.name: step.asked for step in steps} == {
        "seed": True,
        "sprout": False,
        "leaf": True,
    }


def test_a_parent_has_full_precision(order: Orders, table: tuple[Target, ...]) -> None:
    steps = {step.name: step for step in make_plan(order("sprout:fp16"), table)}
    assert steps["sprout-fp16"].parent == "seed"
    assert steps["seed"].wanted.precision is Precision.FP32


def test_two_precisions_are_two_files(order: Orders, table: tuple[Target, ...]) -> None:
    steps = make_plan(order("sprout", "sprout:fp16"), table)
    assert [step.file for step in steps] == ["model.seed", "model.sprout", "model.fp16.sprout"]


def test_a_requested_capture_is_the_only_one(order: Orders, table: tuple[Target, ...]) -> None:
    (step,) = make_plan(order("seed"), table)
    assert step.captures == (Capture.EXPORT, Capture.TRACE)
    steps = make_plan(order("sprout", capture=Capture.TRACE), table)
    assert [step.captures for step in steps] == [(Capture.TRACE,), ()]


def test_nothing_is_read_or_written(order: Orders, table: tuple[Target, ...]) -> None:
    nowhere = order("leaf", source=Source(checkpoint=Path("/nowhere")), out=Path("/nowhere/out"))
    assert len(make_plan(nowhere, table)) == 3


def test_an_unknown_target_gives_the_nearest(order: Orders, table: tuple[Target, ...]) -> None:
    with pytest.raises(
        UsageError, check=has_code(ErrorCode.UNKNOWN_NAME, naming="'sprut'")
    ) as caught:
        make_plan(order("sprut"), table)
    assert "'sprout'" in caught.value.hint


@pytest.mark.parametrize("name", ["half", ""])
def test_an_unknown_precision_gives_the_known_ones(name: str) -> None:
    with pytest.raises(
        UsageError, check=has_code(ErrorCode.UNKNOWN_NAME, naming=repr(name))
    ) as caught:
        Wanted.parse(f"onnx:{name}")
    assert "fp16" in caught.value.hint


def test_a_precision_that_the_target_lacks_is_an_error(
    order: Orders, table: tuple[Target, ...]
) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED, naming="fp16")):
        make_plan(order("seed:fp16"), table)


@pytest.mark.parametrize("target", ["seed", "leaf"])
def test_a_capture_that_the_target_or_its_parent_lacks_is_an_error(
    order: Orders, table: tuple[Target, ...], target: str
) -> None:
    with pytest.raises(
        UsageError, check=has_code(ErrorCode.UNSUPPORTED, option="capture")
    ) as caught:
        make_plan(order(target, capture=Capture.SCRIPT), table)
    assert "trace" in caught.value.hint


def test_a_device_that_the_target_lacks_is_an_error(
    order: Orders, table: tuple[Target, ...]
) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED, naming="cuda")):
        make_plan(order("other", "seed", judging=Judging(device="cuda")), table)


def test_an_unknown_device_is_an_error() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_NAME, naming="'gpu'")):
        Judging(device="gpu")


def test_an_order_without_targets_is_an_error(order: Orders) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOTHING_TO_DO)):
        order()


def test_a_target_that_is_not_ready_is_an_error_with_its_own_hint(
    order: Orders, fake: Fakes
) -> None:
    absent = Readiness(ready=False, reason="text is not installed", mend="install text")
    with pytest.raises(MissingError, check=has_code(ErrorCode.NOT_INSTALLED)) as caught:
        make_plan(order("fake"), (fake(ready=absent),))
    assert caught.value.hint == "install text"


def test_a_parent_that_is_not_ready_is_an_error(order: Orders, fake: Fakes) -> None:
    absent = Readiness(ready=False, reason="no", mend="yes")
    child = fake(NAME="child", SUFFIX=".child", origin="fake", CAPTURES=())
    with pytest.raises(MissingError, check=has_code(ErrorCode.NOT_INSTALLED, naming="fake")):
        make_plan(order("child"), (fake(ready=absent), child))


def test_a_converted_model_replaces_the_step_of_its_format(
    order: Orders, table: tuple[Target, ...], tmp_path: Path
) -> None:
    (tmp_path / "mine.seed").write_text("")
    steps = make_plan(order("leaf", parent=tmp_path / "mine.seed"), table)
    assert [(step.name, step.parent) for step in steps] == [("sprout", None), ("leaf", "sprout")]


def test_a_converted_model_of_another_format_is_an_error(
    order: Orders, table: tuple[Target, ...], tmp_path: Path
) -> None:
    (tmp_path / "mine.seed").write_text("")
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED, naming="seed")):
        make_plan(order("other", parent=tmp_path / "mine.seed"), table)


@pytest.mark.parametrize(
    ("lowering", "option"),
    [
        (Lowering(calibration=CalibrationOptions(source="random")), "--calib"),
        (Lowering(quantizer="onnxruntime"), "--quantizer"),
        (Lowering(method="entropy"), "--calib-method"),
        (Lowering(group_size=64), "--group-size"),
        (Lowering(half_io=True), "--half-io"),
        (Lowering(keep=("head",)), "--keep-fp"),
    ],
)
def test_a_precision_option_without_effect_is_an_error(
    order: Orders, table: tuple[Target, ...], lowering: Lowering, option: str
) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_EFFECT, option=option.lstrip("-"))):
        make_plan(order("leaf", lowering=lowering), table)
