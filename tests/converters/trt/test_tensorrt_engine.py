"""`convert` as the pipeline calls it, on a host with a fake GPU; the builder is a double."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from modelc.converters import tensorrt_engine
from modelc.converters.trt.build_launcher import BuildFunction, BuildHost
from modelc.converters.trt.engine_build import build_in_child
from modelc.converters.trt.engine_records import read_sidecar
from modelc.converters.trt.trt_installation import CudaDevice, CudaDriver, TensorrtInstallation
from modelc.core.contract import Job
from modelc.core.errors import ErrorCode, MissingError, UsageError
from modelc.core.grammar import parse_input
from modelc.core.kinds import Precision
from modelc.core.signature import merge_inputs

from ...reasons import has_code

Children = Callable[..., BuildFunction]
DRIVER = CudaDriver(
    version=13010,
    devices=(CudaDevice(index=0, name="NVIDIA L4", capability=(8, 9), memory=24 << 30),),
)
SIGNATURE = merge_inputs([parse_input("x:float32[batch=1..8,3]")], {}).with_outputs(("y",))


def job_in(folder: Path, **settings: str) -> Job:
    parent = folder / "model.fp16.trt.onnx"
    save_parent(parent)
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


def save_parent(path: Path, kind: int = onnx.TensorProto.FLOAT16) -> None:
    tensors = [onnx.helper.make_tensor_value_info(name, kind, ["batch", 3]) for name in "xy"]
    graph = onnx.helper.make_graph([], "net", tensors[:1], tensors[1:])
    onnx.save_model(onnx.helper.make_model(graph), str(path))


def host(child: BuildFunction | None = None, program: str | None = None) -> BuildHost:
    found = TensorrtInstallation(
        importable=child is not None, package="11.4.0.106", program=program
    )
    return BuildHost(
        driver=lambda: DRIVER, installed=lambda _: found, build=child or build_in_child
    )


def test_the_sidecar_names_what_is_float64_in_the_model(tmp_path: Path, child: Children) -> None:
    job = job_in(tmp_path)
    assert job.parent is not None
    save_parent(job.parent, onnx.TensorProto.DOUBLE)
    made = tensorrt_engine.convert(job, host(child()))
    assert read_sidecar(job.folder / "model.fp16.engine").doubles == ("x", "y")
    assert len(made.notes) == 1


def test_convert_writes_the_engine_and_its_sidecar(tmp_path: Path, child: Children) -> None:
    job = job_in(tmp_path, refittable="true", profiles="x=1x3:1x3:1x3")
    made = tensorrt_engine.convert(job, host(child()))
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


def test_an_engine_whose_layers_cannot_be_read_is_kept_with_a_note(
    tmp_path: Path, child: Children
) -> None:
    job = job_in(tmp_path)
    made = tensorrt_engine.convert(job, host(child(layers="nonsense")))
    assert len(made.notes) == 1
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
    made = tensorrt_engine.convert(job_in(tmp_path), host(program=str(program)))
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
