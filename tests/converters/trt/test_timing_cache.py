"""The timing cache: where it lies, what it takes, how builds share it. On the strict double."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from modelc.converters.trt import timing_cache
from modelc.converters.trt.engine_build import BuildWatch, CancelledBuildError, build_engine
from modelc.converters.trt.engine_options import EngineOptions
from modelc.converters.trt.trt_installation import CudaDevice

Stages = Callable[..., Any]
Requests = Callable[..., Any]
GPU = CudaDevice(index=0, name="NVIDIA H100 80GB HBM3", capability=(9, 0), memory=1)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (EngineOptions(), ""),
        (EngineOptions(timing_cache="/my.cache"), "/my.cache"),
        (EngineOptions(timing_cache="off", cache_folder="/c"), ""),
        (
            EngineOptions(cache_folder="/c"),
            "/c/nvidia-h100-80gb-hbm3-sm90-tensorrt-11.4.0.106.timing",
        ),
    ],
)
def test_a_file_is_of_one_gpu_and_version(options: EngineOptions, wanted: str) -> None:
    assert timing_cache.cache_file_for(options, GPU, "11.4.0.106") == wanted


def built(stage: Any, request: Any) -> tuple[bytes, tuple[str, ...]]:
    notes = build_engine(stage.trt, request, BuildWatch()).notes
    return Path(request.timing_cache).read_bytes(), notes


def test_a_build_leaves_its_timings(stage_of: Stages, request_of: Requests, tmp_path: Path) -> None:
    data, notes = built(stage_of(steps=2), request_of(cache=str(tmp_path / "new" / "c")))
    assert (data.split(), notes) == ([b"kernel0", b"kernel1"], ())


def test_a_build_adds_to_what_another_left_meanwhile(
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
def test_a_file_that_does_not_fit_is_a_note_and_is_replaced(
    stage_of: Stages, request_of: Requests, tmp_path: Path, there: bytes
) -> None:
    file = tmp_path / "c"
    file.write_bytes(there)
    data, notes = built(stage_of(steps=1), request_of(cache=str(file)))
    assert data.split() == [b"kernel0"]
    assert any("replaced" in note for note in notes)


def test_a_build_that_was_stopped_keeps_its_timings(
    stage_of: Stages, request_of: Requests, tmp_path: Path
) -> None:
    file = tmp_path / "c"
    with pytest.raises(CancelledBuildError):
        build_engine(stage_of().trt, request_of(cache=str(file)), BuildWatch(stopped=lambda: True))
    assert file.read_bytes().split() == [b"kernel0"]


def test_a_file_that_is_locked_is_a_note(stage_of: Stages, tmp_path: Path) -> None:
    file = tmp_path / "c"
    stage = stage_of()
    config = stage.double.new("IBuilderConfig", cache=stage.double.new("ITimingCache", data=b"a"))
    with FileLock(f"{file}.lock"):
        (note,) = timing_cache.save_timing_cache(config, file, timeout=0.05)
    assert "in use" in note
    assert not file.exists()


def test_a_folder_that_cannot_be_made_is_a_note(stage_of: Stages, tmp_path: Path) -> None:
    stage = stage_of()
    (tmp_path / "file").write_text("")
    config = stage.double.new("IBuilderConfig", cache=stage.double.new("ITimingCache", data=b"a"))
    (note,) = timing_cache.save_timing_cache(config, tmp_path / "file" / "c")
    assert "File exists" in note
