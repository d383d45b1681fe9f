"""The target `tensorrt-rtx`: what is ready, which files it claims, and which options it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelc.converters import tensorrt_engine, tensorrt_rtx
from modelc.converters.registry import target_for
from modelc.converters.trt.engine_options import (
    EngineOptions,
    check_libraries,
    options_for,
    parse_options,
)
from modelc.converters.trt.trt_installation import (
    CudaDevice,
    CudaDriver,
    TensorrtInstallation,
    TrtLibrary,
    builder_readiness,
    load_tensorrt,
)
from modelc.core.errors import ErrorCode, MissingError, UsageError
from modelc.pipeline.make_order import make_settings
from modelc.pipeline.order import Wanted

from ...reasons import has_code

NO_GPU = CudaDriver(version=None, devices=(), reason="no CUDA driver: libcuda.so.1 not found")
GPU = CudaDriver(
    version=13010,
    devices=(CudaDevice(index=0, name="RTX 4090", capability=(8, 9), memory=24 << 30),),
)
RTX, TENSORRT = TrtLibrary.RTX, TrtLibrary.TENSORRT


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A host with the package, and without a GPU."""
    found = TensorrtInstallation(importable=True, package="1.7.1.116", library=RTX)
    monkeypatch.setattr(tensorrt_rtx, "find_tensorrt", lambda _: found)
    monkeypatch.setattr(tensorrt_rtx, "query_driver", lambda: NO_GPU)
    return monkeypatch


def test_without_a_gpu_it_builds_and_is_not_ready(host: pytest.MonkeyPatch) -> None:
    found = tensorrt_rtx.readiness()
    assert (found.ready, found.builds, found.version) == (False, True, "1.7.1.116")
    assert found.reason == NO_GPU.reason
    host.setattr(tensorrt_rtx, "query_driver", lambda: GPU)
    assert tensorrt_rtx.readiness().ready


@pytest.mark.parametrize("driver", [NO_GPU, GPU])
@pytest.mark.parametrize("version", [None, "1.3.0"])
def test_without_a_package_that_is_new_enough_nothing_is_built(
    host: pytest.MonkeyPatch, version: str | None, driver: CudaDriver
) -> None:
    bare = TensorrtInstallation(importable=version is not None, package=version or "", library=RTX)
    host.setattr(tensorrt_rtx, "find_tensorrt", lambda _: bare)
    host.setattr(tensorrt_rtx, "query_driver", lambda: driver)
    found = tensorrt_rtx.readiness()
    assert (found.ready, found.builds, found.mend) == (False, False, RTX.install)
    assert not builder_readiness(bare).ready


def test_only_the_builder_of_rtx_loads_without_a_gpu() -> None:
    with pytest.raises(MissingError, check=has_code(ErrorCode.NO_DEVICE)):
        load_tensorrt(RTX, lambda: NO_GPU)
    with pytest.raises(MissingError, check=has_code(ErrorCode.NO_DEVICE)):
        load_tensorrt(TENSORRT, lambda: NO_GPU, builds_only=True)


def test_each_library_claims_its_own_engines(tmp_path: Path) -> None:
    rtx, other = tmp_path / "m.rtx.engine", tmp_path / "m.engine"
    rtx.write_bytes(b"vtrt\0")
    other.write_bytes(b"ftrt\0")
    assert target_for(rtx).NAME == "tensorrt-rtx"
    assert target_for(other).NAME == "tensorrt"
    assert not tensorrt_engine.claims(rtx)
    rtx.write_bytes(b"ftrt\0")
    assert not tensorrt_rtx.claims(rtx)


@pytest.mark.parametrize(
    ("library", "setting", "value"),
    [
        (TENSORRT, "compute_capabilities", "8.9"),
        (RTX, "hardware_compatible", "ampere-plus"),
        (RTX, "refittable", "true"),
        (RTX, "strip_weights", "true"),
        (RTX, "plugins", "/a.so"),
        (RTX, "timing_cache", "/a.timing"),
        (RTX, "builder", "python"),
    ],
)
def test_an_option_that_the_library_lacks_is_an_error(
    library: TrtLibrary, setting: str, value: str
) -> None:
    options = parse_options({setting: value})
    name = setting.replace("_", "-")
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED, option=name)):
        check_libraries({setting: value}, [library])
    check_libraries({setting: value}, [*TrtLibrary])
    check_libraries({setting: value}, [])
    assert options_for(options, library) == EngineOptions()


def test_an_option_is_checked_against_the_targets_of_an_order() -> None:
    given = {"compute-capabilities": ("8.9", "12.0")}
    rtx, engine = (Wanted.parse(f"{name}:fp16") for name in (RTX, TENSORRT))
    assert make_settings(given, (rtx, engine)) == {"compute_capabilities": "8.9;12.0"}
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED)):
        make_settings(given, (engine,))


@pytest.mark.parametrize(
    ("text", "found"), [("", ()), ("12.0;7.5", ("7.5", "12.0")), ("8.9,8.9", ("8.9",))]
)
def test_compute_capabilities_are_sorted(text: str, found: tuple[str, ...]) -> None:
    assert parse_options({"compute_capabilities": text}).compute_capabilities == found


def test_an_unknown_compute_capability_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"9\.9"):
        parse_options({"compute_capabilities": "8.9;9.9"})
