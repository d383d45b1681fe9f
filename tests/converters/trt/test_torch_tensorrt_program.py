"""The target torch-tensorrt, against the recorded surface of the package."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from modelc.converters import aoti_package, exported_program
from modelc.converters import torch_tensorrt_program as target
from modelc.converters.archive_records import INSIDE, read_targets
from modelc.converters.registry import target_for
from modelc.converters.trt.engine_options import EngineOptions, check_libraries, parse_options
from modelc.converters.trt.trt_installation import TrtLibrary
from modelc.core.contract import RECORD, Job
from modelc.core.errors import ConversionError, ErrorCode, RunnerError, UsageError
from modelc.core.grammar import parse_input
from modelc.core.kinds import Precision
from modelc.core.signature import Signature, merge_inputs

from ...nets.segment_nets import Middle, Whole, export_net, export_related
from ...reasons import has_code

SURFACE: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data" / "torch_tensorrt" / "2.13.json").read_text("utf-8")
)
DEPRECATED = {"use_python_runtime", "refit", "make_refittable", "debug", "truncate_long_and_double"}
SETTINGS = [
    {}, {"workspace": "1G"}, {"tf32": "false"}, {"refittable": "true"}, {"min_block_size": "2"},
    {"hardware_compatible": "ampere-plus"}, {"optimization_level": "5"}, {"torch_ops": "aten.sin"},
]  # fmt: skip


def signature_of(*specs: str) -> Signature:
    return merge_inputs([parse_input(one) for one in specs], {})


@pytest.mark.parametrize("precision", list(target.MADE_FROM))
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_keywords_are_those_of_the_package(
    precision: Precision, settings: dict[str, str]
) -> None:
    program = export_net(Middle, dynamic=True)
    given = target.compile_keywords(parse_options(settings), precision, program)
    known = {*SURFACE["functions"]["torch_tensorrt.dynamo.compile"]}
    assert not set(given) - known
    assert not set(given) & DEPRECATED


def test_half_precision_is_the_autocast_of_the_package() -> None:
    program = export_net(Whole, dynamic=False)
    half = target.compile_keywords(EngineOptions(), Precision.BF16, program)
    assert half["enable_autocast"]
    assert half["autocast_low_precision_type"] is torch.bfloat16
    assert "enable_autocast" not in target.compile_keywords(
        EngineOptions(), Precision.FP32, program
    )


def test_an_operator_stands_for_its_overloads() -> None:
    options = parse_options({"torch_ops": "aten.sin,aten.convolution.default"})
    given = target.compile_keywords(options, Precision.FP32, export_net(Middle, dynamic=True))
    assert given["torch_executed_ops"] == {
        "torch.ops.aten.sin.default", "torch.ops.aten.convolution.default",
    }  # fmt: skip


def test_an_operator_that_the_program_lacks_is_an_error() -> None:
    options = parse_options({"torch_ops": "aten.cosine"})
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_FOUND, naming="torch-ops")):
        target.compile_keywords(options, Precision.FP32, export_net(Middle, dynamic=True))


def test_a_dim_without_bounds_is_refused() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.MISSING_DIMS, naming="n")):
        target.check_settings(signature_of("x:float32[n,8]"), {})


def test_engines_for_the_same_capability_are_refused() -> None:
    given = {"hardware_compatible": "same-compute-capability"}
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED)):
        target.check_settings(signature_of("x:float32[2,8]"), given)


def job_for(folder: Path, program: torch.export.ExportedProgram, **settings: str) -> Job:
    path = folder / "model.pt2"
    torch.export.save(program, path)
    return Job(
        signature=signature_of("x:float32[batch=1..8,1,8,8]"), precision=Precision.FP32,
        folder=folder, stem="model", example={}, parent=path, settings=settings,
    )  # fmt: skip


def test_the_preflight_names_what_stays_in_torch(tmp_path: Path) -> None:
    found = target.preflight(job_for(tmp_path, export_net(Middle, dynamic=True)))
    assert not found.blockers
    assert any("aten.searchsorted.Tensor" in one for one in found.warnings)
    assert not found.memory  # the weights alone are no estimate


def test_a_program_that_tensorrt_takes_whole_has_no_warnings(tmp_path: Path) -> None:
    assert target.preflight(job_for(tmp_path, export_net(Whole, dynamic=False))).warnings == ()


def test_a_program_without_engines_is_a_blocker(tmp_path: Path) -> None:
    found = target.preflight(job_for(tmp_path, export_net(Middle, dynamic=True),
                                     min_block_size="50"))  # fmt: skip
    assert len(found.blockers) == 1


def test_a_program_with_a_size_that_follows_from_another_is_planned(tmp_path: Path) -> None:
    job = job_for(tmp_path, export_related(), min_block_size="1")
    assert not target.preflight(job).blockers
    program, _ = exported_program.load_program(tmp_path / "model.pt2")
    assert any("*" in str(size) for size in program.range_constraints)  # still checked


def test_a_program_that_torch_cannot_lower_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a bug of torch")

    monkeypatch.setattr(exported_program, "plan_segments", fail)
    with pytest.raises(ConversionError):
        target.preflight(job_for(tmp_path, export_net(Whole, dynamic=False)))


@pytest.mark.parametrize(
    ("setting", "option"),
    [("profiles", "profile"), ("strip_weights", "strip-weights"), ("plugins", "plugins")],
)
def test_an_option_that_it_lacks_is_named_as_it_is_typed(setting: str, option: str) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED, option=option)):
        check_libraries({setting: "a"}, [TrtLibrary.TORCH])


def with_engine(folder: Path, record: str = "") -> Path:
    """A program that calls an engine, as far as its graph says, and a record of how to call it."""
    plain, path = folder / "plain.pt2", folder / "model.trt.pt2"
    torch.export.save(export_net(Middle, dynamic=True), plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(path, "w") as new:
        for one in old.infolist():
            data = old.read(one)
            if one.filename.endswith("/models/model.json"):
                data = data.replace(b"torch.ops.aten.relu.default",
                                    b"torch.ops.tensorrt.execute_engine.default")  # fmt: skip
            new.writestr(one.filename, data)
        if record:
            new.writestr(f"model/extra/{RECORD}", record)
    return path


def test_a_program_with_engines_is_of_this_target_alone(tmp_path: Path) -> None:
    path = with_engine(tmp_path)
    assert target_for(path) is target
    assert not exported_program.claims(path)
    assert not aoti_package.claims(path)
    assert target_for(tmp_path / "plain.pt2") is exported_program


def test_engines_of_any_program_in_an_archive_are_found(tmp_path: Path) -> None:
    path = with_engine(tmp_path)
    plain = tmp_path / "plain.pt2"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(plain) as harmless:
        members = {one.filename: old.read(one) for one in old.infolist()}
        graph = next(name for name in members if name.endswith("/models/model.json"))
        first = {graph.replace("model.json", "first.json"): harmless.read(f"plain/{graph[6:]}")}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in {**first, **members}.items():
            new.writestr(name, data)
    assert target.claims(path)
    assert not exported_program.claims(path)


def test_a_damaged_archive_has_no_targets(tmp_path: Path) -> None:
    path = tmp_path / "model.trt.pt2"
    path.write_bytes(with_engine(tmp_path).read_bytes()[:2000])
    assert read_targets(path) == ()
    assert not target.claims(path)


def test_a_file_of_another_maker_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "_load_package", lambda: None)
    with pytest.raises(RunnerError, check=has_code(ErrorCode.CONSENT_REQUIRED)):
        target.open_runner(with_engine(tmp_path), "cuda", signature_of("x:float32[1,1,8,8]"))


def test_inspect_counts_engines_without_opening_them(tmp_path: Path) -> None:
    found = target.inspect(with_engine(tmp_path))
    assert found.facts["engines"] == "1"
    assert int(found.facts["operators in torch"]) > 5


@pytest.mark.parametrize(
    "inside",
    [
        [1], {"inputs": [{"name": 1}]}, {"outputs": 5}, {"weights": {"float32": "many"}},
        {"weights": {"float32": float("inf")}}, {"operators": {"a": None}}, {"operators": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_a_record_with_other_types_is_an_error(tmp_path: Path, inside: object) -> None:
    with pytest.raises(RunnerError, check=has_code(ErrorCode.CORRUPT_FILE)):
        target.inspect(with_engine(tmp_path, json.dumps({INSIDE: inside})))


def test_a_record_that_is_nested_too_deeply_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunnerError):
        target.inspect(with_engine(tmp_path, "[" * 200_000 + "]" * 200_000))
