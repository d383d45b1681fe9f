"""Whether engines can be built here: driver and builder, without an import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from modelc.converters import tensorrt_engine
from modelc.converters.trt.trt_installation import (
    CudaDevice,
    CudaDriver,
    TensorrtInstallation,
    find_tensorrt,
    load_tensorrt,
    query_driver,
    tensorrt_readiness,
)
from modelc.core.errors import ErrorCode, MissingError
from modelc.core.signature import Signature

from ...reasons import has_code

NONE = CudaDriver(version=None, devices=(), reason="no CUDA driver: libcuda.so.1 is not there")
ONE = CudaDriver(
    version=13010,
    devices=(CudaDevice(index=0, name="NVIDIA L4", capability=(8, 9), memory=24 << 30),),
)


def test_without_a_device_the_reason_is_the_drivers() -> None:
    found = tensorrt_readiness(
        NONE, TensorrtInstallation(importable=True, package="11.4.0", program="/t")
    )
    assert not found.ready
    assert found.reason == NONE.reason
    assert "NVIDIA GPU" in found.mend


def test_with_a_device_and_no_tensorrt_the_fix_installs_it() -> None:
    found = tensorrt_readiness(ONE, TensorrtInstallation())
    assert not found.ready
    assert {"tensorrt", "trtexec"} <= set(found.reason.split())
    assert found.mend == "pip install 'tensorrt>=10.13'"


@pytest.mark.parametrize("version", ["10.12.0.36", "8.6.1", "10"])
def test_a_package_below_the_floor_is_too_old(version: str) -> None:
    found = tensorrt_readiness(ONE, TensorrtInstallation(importable=True, package=version))
    assert not found.ready
    assert {version, "10.13"} <= set(found.reason.split())


@pytest.mark.parametrize(
    ("installed", "version"),
    [
        (TensorrtInstallation(importable=True, package="10.13.0.35"), "10.13.0.35"),
        (TensorrtInstallation(importable=True, package="11.4.0.106"), "11.4.0.106"),
        (TensorrtInstallation(importable=False, program="/usr/bin/trtexec"), "trtexec"),
    ],
)
def test_a_device_and_a_builder_are_ready(installed: TensorrtInstallation, version: str) -> None:
    found = tensorrt_readiness(ONE, installed)
    assert (found.ready, found.version) == (True, version)


def test_trtexec_is_found_on_the_path() -> None:
    assert find_tensorrt(which=lambda name: f"/bin/{name}").program == "/bin/trtexec"


def test_readiness_imports_nothing_of_the_frameworks() -> None:
    asked = (
        "import sys\n"
        "from modelc.converters import tensorrt_engine\n"
        "tensorrt_engine.readiness()\n"
        "print([n for n in ('tensorrt', 'torch', 'numpy', 'onnx', 'msgspec') if n in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_tensorrt_is_not_imported_without_a_device() -> None:
    with pytest.raises(MissingError, check=has_code(ErrorCode.NO_DEVICE, naming=NONE.reason)):
        load_tensorrt(asked=lambda: NONE)


def test_a_package_that_cannot_be_imported_is_missing() -> None:
    if find_tensorrt().importable:
        pytest.skip("tensorrt is installed")
    with pytest.raises(MissingError, check=has_code(ErrorCode.NOT_INSTALLED, naming="tensorrt")):
        load_tensorrt(asked=lambda: ONE)


def test_a_runner_without_a_device_is_missing(tmp_path: Path) -> None:
    if query_driver().devices:
        pytest.skip("this host has a device")
    with pytest.raises(MissingError, check=has_code(ErrorCode.NO_DEVICE)):
        tensorrt_engine.open_runner(tmp_path / "e.engine", "cuda", Signature(inputs=()))


def test_a_runner_on_the_cpu_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        MissingError, check=has_code(ErrorCode.UNSUPPORTED, option="device", naming="cpu")
    ):
        tensorrt_engine.open_runner(tmp_path / "e.engine", "cpu", Signature(inputs=()))


@pytest.mark.parametrize(
    ("name", "content", "claimed"),
    [
        ("m.engine", b"ftrt\0\0", True),
        ("m.engine", b"{json}", False),
        ("m.engine", b"", False),
        ("m.plan", b"ftrt\0\0", False),
    ],
)
def test_an_engine_is_claimed_by_suffix_and_first_bytes(
    tmp_path: Path, name: str, content: bytes, claimed: bool
) -> None:
    (tmp_path / name).write_bytes(content)
    assert tensorrt_engine.claims(tmp_path / name) is claimed
    assert not tensorrt_engine.claims(tmp_path)
