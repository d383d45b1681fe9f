"""The lean runtime that a version-compatible engine contains, which pip installs apart."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modelc.converters.installed_packages import InstalledPackages
from modelc.converters.library_checks import LibraryHost, check_libraries
from modelc.converters.trt.engine_build import BuildWatch, build_engine
from modelc.converters.trt.lean_runtime import (
    LEAN_DISTRIBUTIONS,
    lean_install_command,
    load_lean_runtime,
)
from modelc.converters.trt.trt_installation import CudaDriver, TensorrtInstallation
from modelc.core.errors import ErrorCode, MissingError
from modelc.core.installation import CheckState

from ...reasons import has_code

NAME = "nvinfer_lean_11.dll" if sys.platform == "win32" else "libnvinfer_lean.so.11"
VERSION = "11.4.0.106"


def opening(*there: str) -> tuple[list[str], Callable[[str], object]]:
    """A loader that has these libraries, and what was asked of it."""
    asked: list[str] = []

    def load(library: str) -> None:
        asked.append(library)
        if library not in there:
            raise OSError(f"{library}: cannot open shared object file")

    return asked, load


def test_the_library_of_the_package_is_loaded_first(tmp_path: Path) -> None:
    asked, load = opening(str(tmp_path / NAME), NAME)
    load_lean_runtime(VERSION, folders=[tmp_path], load=load)
    assert asked == [str(tmp_path / NAME)]


@pytest.mark.parametrize("package", [True, False])
def test_else_that_of_the_system(tmp_path: Path, package: bool) -> None:
    asked, load = opening(NAME)
    load_lean_runtime(VERSION, folders=[tmp_path] if package else [], load=load)
    assert asked[-1] == NAME


def test_without_one_the_error_names_the_package_of_this_version(tmp_path: Path) -> None:
    _, load = opening()
    missing = has_code(ErrorCode.NOT_INSTALLED, option="version-compatible", naming=NAME)
    with pytest.raises(MissingError, check=missing) as caught:
        load_lean_runtime(VERSION, folders=[tmp_path], load=load)
    assert caught.value.hint.split()[-1] == f"{LEAN_DISTRIBUTIONS[0]}=={VERSION}"
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("version", "installed", "package"),
    [
        ("10.16.1", "tensorrt-cu12", f"{LEAN_DISTRIBUTIONS[1]}==10.16.1"),
        ("11.4.0", "tensorrt", f"{LEAN_DISTRIBUTIONS[0]}==11.4.0"),
        ("", "tensorrt", LEAN_DISTRIBUTIONS[0]),
    ],
)
def test_the_package_is_for_the_cuda_of_tensorrt(
    version: str, installed: str, package: str
) -> None:
    assert lean_install_command(version, [installed]).split()[-1] == package


@pytest.mark.parametrize("wanted", [True, False])
def test_only_a_version_compatible_build_loads_it(
    stage_of: Callable[..., Any], request_of: Callable[..., Any], wanted: bool
) -> None:
    stage = stage_of()
    asked: list[str] = []
    build_engine(
        stage.trt, request_of(version_compatible=wanted), BuildWatch(), load_lean=asked.append
    )
    assert asked == ([stage.trt.__version__] if wanted else [])


@pytest.mark.parametrize(
    ("versions", "system", "state"),
    [
        ({LEAN_DISTRIBUTIONS[0]: VERSION}, False, CheckState.OK),
        ({}, True, CheckState.OK),
        ({}, False, CheckState.MISSING),
        ({LEAN_DISTRIBUTIONS[1]: "11.3.0.99"}, False, CheckState.WARN),
    ],
    ids=["package", "system", "missing", "another version"],
)
def test_doctor_checks_it_where_tensorrt_is_installed(
    versions: dict[str, str], system: bool, state: CheckState
) -> None:
    def host(*, importable: bool) -> LibraryHost:
        return LibraryHost(
            packages=InstalledPackages(versions=versions, needs={}, cuda={}),
            driver=CudaDriver(version=None, devices=()),
            tensorrt=TensorrtInstallation(importable=importable, package=VERSION),
            ask=lambda _: {},
            lean=system,
        )

    found = [one for one in check_libraries(host(importable=True)) if "lean" in one.name]
    assert [one.state for one in found] == [state]
    assert bool(found[0].fix) is (state is not CheckState.OK)
    assert not [one for one in check_libraries(host(importable=False)) if "lean" in one.name]
