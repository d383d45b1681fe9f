"""The timing cache: its path, which files fit, how builds share it. On the strict double."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from modelc.converters.trt import timing_cache
from modelc.converters.trt.engine_build import BuildWatch, CancelledBuildError, build_engine
from modelc.converters.trt.trt_installation import CudaDevice

Stages = Callable[..., Any]
Requests = Callable[..., Any]
GPU = CudaDevice(index=0, name="NVIDIA H100 80GB HBM3", capability=(9, 0), memory=1)


@pytest.mark.parametrize(
    ("option", "folder", "file"),
    [
        ("", None, ""),
        ("/my.cache", None, "/my.cache"),
        ("/my.cache", Path("/c"), "/my.cache"),
        ("off", Path("/c"), ""),
        ("", Path("/c"), "/c/nvidia-h100-80gb-hbm3-sm90-tensorrt-11.4.0.106.timing"),
    ],
)
def test_a_file_is_of_one_gpu_and_version(option: str, folder: Path | None, file: str) -> None:
    assert (
        timing_cache.cache_file_for(
            option, folder, timing_cache.device_key(GPU), "tensorrt-11.4.0.106"
        )
        == file
    )


def built(stage: Any, request: Any) -> tuple[bytes, tuple[str, ...]]:
    notes = build_engine(stage.trt, request, BuildWatch()).notes
    return Path(request.timing_cache).read_bytes(), notes


def test_a_build_writes_its_timings(stage_of: Stages, request_of: Requests, tmp_path: Path) -> None:
    data, notes = built(stage_of(steps=2), request_of(cache=str(tmp_path / "new" / "c")))
    assert (data.split(), notes) == ([b"kernel0", b"kernel1"], ())


def test_a_build_merges_the_timings_of_a_concurrent_build(
    stage_of: Stages, request_of: Requests, tmp_path: Path
) -> None:
    file = tmp_path / "c"
    stage = stage_of(steps=1)
    request = request_of(cache=str(file))

    def meanwhile(*_: int) -> None:
        file.write_bytes(b"of-another-build")

    build_engine(stage.trt, request, BuildWatch(advance=meanwhile))
    assert file.read_bytes().split() == [b"kernel0", b"of-another-build"]


@pytest.mark.parametrize("there", [b"other-gpu", b"garbage"])
def test_a_file_of_another_gpu_is_a_note_and_is_replaced(
    stage_of: Stages, request_of: Requests, tmp_path: Path, there: bytes
) -> None:
    file = tmp_path / "c"
    file.write_bytes(there)
    data, notes = built(stage_of(steps=1), request_of(cache=str(file)))
    assert data.split() == [b"kernel0"]
    assert [file.name in note for note in notes] == [True, True]  # on reading, and on writing


def test_a_cancelled_build_writes_its_timings(
    stage_of: Stages, request_of: Requests, tmp_path: Path
) -> None:
    file = tmp_path / "c"
    with pytest.raises(CancelledBuildError):
        build_engine(stage_of().trt, request_of(cache=str(file)), BuildWatch(stopped=lambda: True))
    assert file.read_bytes().split() == [b"kernel0"]


@pytest.fixture
def config(stage_of: Stages) -> Any:
    """A builder config with timings."""
    new = stage_of().double.new
    return new("IBuilderConfig", cache=new("ITimingCache", data=b"a"))


def test_a_locked_file_is_a_note(config: Any, tmp_path: Path) -> None:
    file = tmp_path / "timings"
    with FileLock(f"{file}.lock"):
        (note,) = timing_cache.save_timing_cache(config, file, timeout=0.05)
    assert "timings" in note
    assert not file.exists()


def test_a_folder_that_cannot_be_made_is_a_note(config: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (note,) = timing_cache.save_timing_cache(config, tmp_path / "file" / "c")
    assert os.strerror(errno.EEXIST) in note
