"""What a benchmark measures: points of the domain, and rows of the folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from modelc.converters.registry import is_stage, target_named
from modelc.core.compile_records import compile_settings
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.grammar import parse_input
from modelc.core.signature import Signature, merge_inputs
from modelc.pipeline.benchmark.benchmark_plan import (
    BenchmarkOptions,
    default_targets,
    plan_points,
    plan_rows,
    read_variants,
)
from modelc.pipeline.order import Source
from modelc.pipeline.recorded_run import load_manifest

from ...reasons import has_code


def signature(*inputs: str) -> Signature:
    return merge_inputs([parse_input(text) for text in inputs], {})


IDS = signature("ids:int64[batch=1..8,seq=4..64]", "h:float32[2,batch,4]")


def test_the_opt_sizes_are_the_only_point_by_default() -> None:
    (point,) = plan_points(IDS, BenchmarkOptions())
    assert dict(point.sizes) == IDS.opt_sizes
    assert point.samples == IDS.opt_sizes["batch"]


def test_sizes_are_combined() -> None:
    points = plan_points(IDS, BenchmarkOptions(batch=(1, 8), sizes={"seq": (4, 64)}))
    found = [(one.sizes["batch"], one.sizes["seq"], one.samples) for one in points]
    assert sorted(found) == [(1, 4, 1), (1, 64, 1), (8, 4, 8), (8, 64, 8)]


def test_batch_and_size_of_one_dim_are_put_together() -> None:
    points = plan_points(IDS, BenchmarkOptions(batch=(2, 4), sizes={"batch": (3, 4)}))
    assert [one.sizes["batch"] for one in points] == [3, 4, 2]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (BenchmarkOptions(batch=(9,)), ErrorCode.INVALID_VALUE),
        (BenchmarkOptions(sizes={"sec": (8,)}), ErrorCode.UNKNOWN_NAME),
    ],
)
def test_a_size_outside_of_the_domain_is_an_error(
    options: BenchmarkOptions, code: ErrorCode
) -> None:
    with pytest.raises(UsageError, check=has_code(code)):
        plan_points(IDS, options)


def test_the_batch_need_not_be_the_first_dim() -> None:
    given = signature("x:float32[seq=1..16,batch=1..8,4]")
    points = plan_points(given, BenchmarkOptions(batch=(2, 8)))
    assert [(one.sizes["batch"], one.samples) for one in points] == [(2, 2), (8, 8)]
    assert {one.sizes["seq"] for one in points} == {given.opt_sizes["seq"]}


def test_a_fixed_batch_cannot_be_swept() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_EFFECT, option="batch")):
        plan_points(signature("x:float32[4,3]"), BenchmarkOptions(batch=(4,)))


def test_rows_are_eager_its_compiled_forms_and_what_passed(
    exported_digits: Path, digits_source: Source
) -> None:
    manifest = load_manifest(exported_digits)
    rows, skipped = plan_rows(manifest, digits_source, BenchmarkOptions())
    names = [row.name for row in rows]
    assert names[:2] == ["eager", "torch.compile"]
    assert {"onnx", "torchscript"} <= set(names)
    assert "tensorrt-onnx" not in names
    assert not {"onnx", "torchscript"} & set(skipped)
    assert {row.verdict for row in rows if row.name == "onnx"} == {"passed"}
    rejected = tuple(replace(one, rejected=one.name == "onnx") for one in manifest.artifacts)
    rows, skipped = plan_rows(
        replace(manifest, artifacts=rejected), digits_source, BenchmarkOptions()
    )
    assert "onnx" not in {row.name for row in rows}
    assert "onnx" in skipped


def test_a_reference_that_torch_does_not_run_has_no_row(exported_digits: Path) -> None:
    manifest = load_manifest(exported_digits)
    foreign = Source(checkpoint=exported_digits / "model.onnx", artifact=True)
    rows, skipped = plan_rows(manifest, foreign, BenchmarkOptions())
    assert "onnx" in {row.name for row in rows}
    assert {"eager", "torch.compile"} <= set(skipped)


def test_rows_are_selected_by_pattern(exported_digits: Path, digits_source: Source) -> None:
    manifest = load_manifest(exported_digits)
    options = BenchmarkOptions(only=("eager", "onn?"))
    rows, _ = plan_rows(manifest, digits_source, options)
    assert [row.name for row in rows] == ["eager", "onnx"]
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_NAME, option="row")):
        plan_rows(manifest, digits_source, BenchmarkOptions(only=("tensorrt",)))


def test_of_several_models_one_may_lack_a_row(exported_digits: Path, digits_source: Source) -> None:
    manifest = load_manifest(exported_digits)
    options = BenchmarkOptions(only=("eager", "tensorrt"), any_row=True)
    rows, _ = plan_rows(manifest, digits_source, options)
    assert [row.name for row in rows] == ["eager"]
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_NAME, option="row")):
        plan_rows(manifest, digits_source, replace(options, only=("tensorrt",)))


def test_the_error_says_why_a_wanted_row_is_left_out(
    exported_digits: Path, digits_source: Source
) -> None:
    unusable = {"onnx": "model.onnx is missing"}
    options = BenchmarkOptions(only=("onnx",))
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_NAME, naming="model.onnx")):
        plan_rows(load_manifest(exported_digits), digits_source, options, unusable=unusable)


def test_the_error_finds_a_rejected_artifact_by_its_plain_name(
    exported_digits: Path, digits_source: Source
) -> None:
    manifest = load_manifest(exported_digits)
    artifacts = tuple(
        replace(one, name=f"rejected/{one.name}", rejected=True) if one.name == "onnx" else one
        for one in manifest.artifacts
    )
    changed = replace(manifest, artifacts=artifacts)
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_NAME, naming="--rejected")):
        plan_rows(changed, digits_source, BenchmarkOptions(only=("onnx",)))


def test_a_program_is_deployed_though_others_are_made_from_it() -> None:
    assert not is_stage(target_named("pt2"))
    assert is_stage(target_named("tensorrt-onnx"))
    assert "pt2" in default_targets()


def test_every_deployment_of_a_file_is_a_row_without_a_verdict(
    exported_digits: Path, digits_source: Source
) -> None:
    rows, _ = plan_rows(load_manifest(exported_digits), digits_source, BenchmarkOptions())
    found = {row.name: row for row in rows if row.target == "openvino"}
    assert {row.variant for row in found.values()} == {"", "default", "throughput"}
    assert {row.verdict for row in found.values() if row.variant} == {"not judged"}


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("default", {"mode": None}),
        ("max-autotune", {"mode": "max-autotune"}),
        ("dynamic", {"mode": None, "dynamic": True}),
        ("reduce-overhead+fullgraph", {"mode": "reduce-overhead", "fullgraph": True}),
    ],
)
def test_variants_are_settings_of_torch_compile(text: str, settings: dict[str, object]) -> None:
    assert compile_settings(text) == settings


@pytest.mark.parametrize("text", ["fastest", "default+max-autotune", "default,", ""])
def test_a_variant_that_torch_does_not_have_is_an_error(text: str) -> None:
    with pytest.raises(UsageError):
        read_variants(text)


def test_a_variant_has_one_spelling() -> None:
    found = read_variants("dynamic+default, default+dynamic, dynamic+fullgraph, fullgraph+dynamic")
    assert found == ("default+dynamic", "default+fullgraph+dynamic")


def test_no_variant_is_none() -> None:
    assert read_variants("none") == ()


@pytest.mark.parametrize("options", [{"seconds": 0.0}, {"threads": 0}])
def test_a_number_outside_of_its_range_is_an_error(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE)):
        BenchmarkOptions(**options)  # type: ignore[arg-type]  # one of both
