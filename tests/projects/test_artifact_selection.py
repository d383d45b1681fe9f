"""`to` times `precision`, and `--only`."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelc.converters.registry import TARGETS
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.kinds import Precision
from modelc.projects.artifact_selection import cross_formats, select_models
from modelc.projects.model_orders import plan_project
from modelc.projects.project_records import ModelOrder

from ..reasons import has_code

SAMPLE_MODELS = Path(__file__).parents[2] / "sample_models"
TEXT = f"""\
[defaults]
to = ["torchscript", "onnx", "openvino"]

[models.digits]
checkpoint = "{SAMPLE_MODELS / "digits.safetensors"}"
model = "modelc.sample_models.digits:build"
input = "x:float32[batch=1..8,1,8,8]"
precision = ["fp32", "fp16", "int8"]
half-io = true
calib = "{SAMPLE_MODELS / "digits_calib"}"

[models.plain]
checkpoint = "{SAMPLE_MODELS / "digits.safetensors"}"
model = "modelc.sample_models.digits:build"
input = "x:float32[batch=1..8,1,8,8]"
"""


@pytest.fixture
def models(tmp_path: Path) -> tuple[ModelOrder, ...]:
    (tmp_path / "modelc.toml").write_text(TEXT)
    return plan_project(tmp_path / "modelc.toml").models


def asked(models: tuple[ModelOrder, ...]) -> dict[str, list[str]]:
    return {model.name: [one.name for one in model.order.wanted] for model in models}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["onnx", "int8"], {"digits": ["onnx-int8"]}),
        (["int8"], {"digits": ["onnx-int8", "openvino-int8"]}),
        (["torchscript"], {"digits": ["torchscript"], "plain": ["torchscript"]}),
        (["openvino-fp16"], {"digits": ["openvino-fp16"]}),
        (["openvino-fp16", "torchscript"],
         {"digits": ["torchscript", "openvino-fp16"], "plain": ["torchscript"]}),
    ],
)  # fmt: skip
def test_words_of_one_kind_mean_either_and_of_two_kinds_both(
    models: tuple[ModelOrder, ...], words: list[str], found: dict[str, list[str]]
) -> None:
    narrowed = select_models(models, words)
    assert {k: sorted(v) for k, v in asked(narrowed).items()} == {
        k: sorted(v) for k, v in found.items()
    }


def test_what_is_named_is_planned_with_what_it_is_made_from(
    models: tuple[ModelOrder, ...],
) -> None:
    (digits,) = select_models(models, ["openvino-int8"])
    assert [(step.name, step.asked) for step in digits.plan] == [
        ("onnx", False),
        ("openvino-int8", True),
    ]


def test_options_of_int8_are_no_fault_where_only_fp32_is_left(
    models: tuple[ModelOrder, ...],
) -> None:
    digits = next(one for one in select_models(models, ["fp32"]) if one.name == "digits")
    assert digits.order.lowering.calibration is None
    assert not digits.order.lowering.half_io


def test_no_word_takes_all(models: tuple[ModelOrder, ...]) -> None:
    assert select_models(models, []) == models


def test_a_word_that_names_nothing_is_told_with_the_nearest(
    models: tuple[ModelOrder, ...],
) -> None:
    check = has_code(ErrorCode.UNKNOWN_NAME, option="only", naming="onx")
    with pytest.raises(UsageError, check=check) as caught:
        select_models(models, ["onx"])
    assert "onnx" in caught.value.hint


def test_words_that_leave_nothing_are_told(models: tuple[ModelOrder, ...]) -> None:
    with pytest.raises(
        UsageError,
        check=has_code(ErrorCode.NOTHING_TO_DO, option="only", naming="torchscript,int8"),
    ):
        select_models(models, ["torchscript", "int8"])


def test_every_format_is_wanted_at_every_precision_that_it_has() -> None:
    names = [target.NAME for target in TARGETS]
    precisions = list(Precision)
    matrix = cross_formats(names, precisions)
    has = {(t.NAME, p) for t in TARGETS for p in t.MADE_FROM}
    assert {(one.target, one.precision) for one in matrix.wanted} == has
    assert len(matrix.left_out) == len(names) * len(precisions) - len(has)


def test_what_a_format_lacks_is_left_out_and_said() -> None:
    matrix = cross_formats(["torchscript", "onnx"], ["fp32", "fp16"])
    assert [one.name for one in matrix.wanted] == ["torchscript", "onnx", "onnx-fp16"]
    (left_out,) = matrix.left_out
    assert {"torchscript", "fp16"} <= set(left_out.split())


def test_a_format_with_its_own_precision_is_that_alone() -> None:
    matrix = cross_formats(["onnx", "openvino:fp16"], ["int8"])
    assert [one.name for one in matrix.wanted] == ["onnx-int8", "openvino-fp16"]


def test_what_is_named_twice_is_wanted_once() -> None:
    assert [one.name for one in cross_formats(["onnx", "onnx:fp32", "onnx"], ["fp32"]).wanted] == [
        "onnx"
    ]


def test_a_precision_that_no_format_has_is_an_error() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED, naming="fp16")):
        cross_formats(["torchscript"], ["fp32", "fp16"])
