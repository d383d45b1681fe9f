"""`convert` as the pipeline calls it, on a host with a fake GPU; the builder is a double."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from modelc.converters import tensorrt_engine
from modelc.converters.trt.build_launcher import BuildFunction, BuildHost
from modelc.converters.trt.engine_build import build_in_child
from modelc.converters.trt.engine_inspection import InspectFunction, inspect_in_child
from modelc.converters.trt.engine_records import read_sidecar, write_sidecar
from modelc.converters.trt.trt_installation import CudaDevice, CudaDriver, TensorrtInstallation
from modelc.core.contract import Job
from modelc.core.errors import ErrorCode, MissingError, UsageError
from modelc.core.grammar import parse_input
from modelc.core.kinds import Precision
from modelc.core.records import record_of
from modelc.core.signature import merge_inputs
from modelc.pipeline.order import Judging

from ...reasons import has_code

Children = Callable[..., BuildFunction]
Inspectors = Callable[..., InspectFunction]
DRIVER = CudaDriver(
    version=13010,
    devices=(CudaDevice(index=0, name="NVIDIA L4", capability=(8, 9), memory=24 << 30),),
)
SIGNATURE = merge_inputs([parse_input("x:float32[batch=1..8,3]")], {}).with_outputs(("y",))


def job_in(folder: Path, **settings: str) -> Job:
    parent = folder / "model.fp16.trt.onnx"
    text = '<ir_version: 10, opset_import: ["": 20]> g (float[4] x) => (float[4] y) { y = Abs(x) }'
    onnx.save(parser.parse_model(text), parent)
    (folder / "work").mkdir()
    return Job(
        signature=SIGNATURE,
        precision=Precision.FP16,
        folder=folder / "work",
        stem="model.fp16",
        example={"x": np.zeros((4, 3), np.float32)},
        parent=parent,
        settings=settings,
    )


def host(
    child: BuildFunction | None = None,
    inspector: InspectFunction = inspect_in_child,
    program: str | None = None,
) -> BuildHost:
    found = TensorrtInstallation(
        importable=child is not None, package="11.4.0.106", program=program
    )
    return BuildHost(
        driver=lambda: DRIVER,
        installed=lambda _: found,
        build=child or build_in_child,
        inspect=inspector,
    )


def test_convert_writes_the_engine_and_its_sidecar(
    tmp_path: Path, child: Children, inspector: Inspectors
) -> None:
    job = job_in(tmp_path, refittable="true", profiles="x=1x3:1x3:1x3")
    made = tensorrt_engine.convert(job, host(child(), inspector()))
    assert made.files == (("model.fp16.engine", "model"), ("model.fp16.engine.json", "config"))
    assert made.versions == {"tensorrt": "11.4.0.106"}
    assert made.notes == ()
    assert made.options == {
        "gpu": "NVIDIA L4 (compute capability 8.9)",
        "cuda driver": "13.1",
        "builder": "python",
        "profiles": "x=1x3:4x3:8x3; x=1x3:1x3:1x3",
        "refittable": "True",
    }
    engine = job.folder / "model.fp16.engine"
    assert tensorrt_engine.claims(engine)
    assert read_sidecar(engine).onnx.name == "model.fp16.trt.onnx"
    found = tensorrt_engine.coverage(engine, job.example, "cpu")
    assert found is not None
    assert found.layers == {"fp16": 1}
    assert sorted(path.name for path in job.folder.iterdir()) == [
        "model.fp16.engine",
        "model.fp16.engine.json",
    ]


@pytest.mark.parametrize(
    "stage",
    [
        {"layers": "nonsense"},
        {"layers": ""},
        {"loads": False},
        {"before": "os.abort()"},
        {"before": "1 / 0"},
        {"before": "os._exit(0)"},
    ],
    ids=["nonsense", "empty", "not loaded", "crash", "exception", "no answer"],
)
def test_an_engine_whose_layers_cannot_be_read_is_kept_with_a_note(
    tmp_path: Path, child: Children, inspector: Inspectors, stage: dict[str, object]
) -> None:
    job = job_in(tmp_path)
    made = tensorrt_engine.convert(job, host(child(), inspector(**stage)))
    assert len(made.notes) == 1
    assert (job.folder / made.files[0][0]).read_bytes() == b"ftrt-engine"
    assert read_sidecar(job.folder / made.files[0][0]).layers == ()
    assert tensorrt_engine.coverage(job.folder / made.files[0][0], job.example, "cpu") is None


def test_the_timing_cache_is_named_after_gpu_and_version(tmp_path: Path, child: Children) -> None:
    job = replace(job_in(tmp_path), cache=tmp_path / "cache")
    tensorrt_engine.convert(job, host(child()))
    (file,) = (tmp_path / "cache" / "tensorrt").glob("*.timing")
    assert file.name == "nvidia-l4-sm89-tensorrt-11.4.0.106.timing"


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")
def test_trtexec_builds_where_the_package_is_not_installed(tmp_path: Path) -> None:
    program = tmp_path / "trtexec"
    program.write_text(
        "#!/bin/sh\necho '[TensorRT v110400]'\n"
        'for a in "$@"; do case "$a" in --saveEngine=*) printf ftrt > "${a#*=}";; esac; done\n'
    )
    program.chmod(0o755)
    job = job_in(tmp_path)
    assert job.parent is not None
    text = (
        '<ir_version: 10, opset_import: ["" : 20]> g (float[n,3] x) => (float[n,3] y) {y = Abs(x)}'
    )
    onnx.save(parser.parse_model(text), str(job.parent))
    made = tensorrt_engine.convert(job, host(program=str(program)))
    assert (made.versions, made.options["builder"]) == ({"tensorrt": "11.4.0"}, "trtexec")
    assert len(made.notes) == 1


@pytest.mark.parametrize(
    ("builder", "name"), [("python", "python"), ("trtexec", "trtexec"), ("auto", "tensorrt")]
)
def test_a_builder_that_is_not_installed_is_missing(
    tmp_path: Path, builder: str, name: str
) -> None:
    missing = has_code(ErrorCode.NOT_INSTALLED, option="builder", naming=name)
    with pytest.raises(MissingError, check=missing):
        tensorrt_engine.convert(job_in(tmp_path, builder=builder), host())


def test_a_host_without_a_device_is_an_error_with_the_drivers_reason(tmp_path: Path) -> None:
    bare = BuildHost(driver=lambda: CudaDriver(version=None, devices=(), reason="no CUDA driver"))
    with pytest.raises(MissingError, check=has_code(ErrorCode.NO_DEVICE, naming="no CUDA driver")):
        tensorrt_engine.convert(job_in(tmp_path), bare)


def test_an_invalid_setting_is_an_error(tmp_path: Path) -> None:
    invalid = has_code(ErrorCode.INVALID_VALUE, option="optimization-level", naming="'9'")
    with pytest.raises(UsageError, check=invalid):
        tensorrt_engine.convert(job_in(tmp_path, optimization_level="9"), host())


@pytest.mark.parametrize("error", [AttributeError("no layer_times"), RuntimeError("CUDA error")])
def test_an_engine_that_cannot_be_timed_is_covered_by_layers(
    tmp_path: Path,
    child: Children,
    inspector: Inspectors,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise error

    job = job_in(tmp_path)
    made = tensorrt_engine.convert(job, host(child(), inspector()))
    monkeypatch.setattr(tensorrt_engine, "open_runner", breaks)
    found = tensorrt_engine.coverage(job.folder / made.files[0][0], job.example, "cuda")
    assert found is not None
    assert (found.work, found.layers) == ("layers", {"fp16": 1})


@pytest.mark.parametrize(
    ("options", "device", "package", "fits"),
    [
        ({}, DRIVER.devices, "11.4.0.106", True),
        ({}, DRIVER.devices, "11.4.0.106.post1", True),
        ({}, DRIVER.devices, "11.5.0.1", False),
        ({}, (), "11.4.0.106", False),
        ({}, (replace(DRIVER.devices[0], name="NVIDIA T4"),), "11.4.0.106", False),
        ({"version_compatible": "True"}, DRIVER.devices, "11.5.0.1", True),
        ({"hardware_compatible": "ampere-plus"}, (), "11.4.0.106", True),
    ],
)
def test_an_engine_is_for_the_host_whose_gpu_and_version_it_names(
    tmp_path: Path,
    child: Children,
    inspector: Inspectors,
    options: dict[str, str],
    device: tuple[CudaDevice, ...],
    package: str,
    fits: bool,
) -> None:
    job = job_in(tmp_path)
    engine = job.folder / tensorrt_engine.convert(job, host(child(), inspector())).files[0][0]
    write_sidecar(replace(read_sidecar(engine), options=options), engine)
    found = TensorrtInstallation(importable=True, package=package)
    here = BuildHost(driver=lambda: replace(DRIVER, devices=device), installed=lambda _: found)
    assert tensorrt_engine.is_for_host(engine, here) is fits


def test_the_sidecar_of_a_stripped_engine_has_the_digests_of_external_weights(
    tmp_path: Path, child: Children, inspector: Inspectors
) -> None:
    weight = numpy_helper.from_array(np.ones(256, np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [256])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [256])
    node = helper.make_node("Add", ["x", "w"], ["y"])
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], [weight]))
    job = job_in(tmp_path, strip_weights="true")
    assert job.parent is not None
    data = f"{job.parent.name}.data"
    onnx.save(model, str(job.parent), save_as_external_data=True, location=data, size_threshold=0)
    made = tensorrt_engine.convert(job, host(child(), inspector()))
    sidecar = read_sidecar(job.folder / made.files[0][0])
    assert sidecar.external == (record_of(tmp_path / data),)


def test_the_noise_floor_of_an_engine_is_wider_in_fp32_alone() -> None:
    judging = Judging()
    engine = judging.tolerance_for(Precision.FP32, tensorrt_engine).floor_factor
    other = judging.tolerance_for(Precision.FP32).floor_factor
    assert engine is not None
    assert other is not None
    assert engine == 2 * other
    assert judging.tolerance_for(Precision.FP16, tensorrt_engine).floor_factor is None
