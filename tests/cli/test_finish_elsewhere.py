"""A prepared folder is copied alone to a host with a GPU, which tests/gpu_host plays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.converters.registry import target_named
from modelc.core.kinds import Precision
from modelc.core.manifest import Manifest
from modelc.pipeline.manifest_file import read_manifest, write_manifest
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run

GPU_HOST = Path(__file__).parent.parent / "gpu_host"
FINISHED, REJECTED, USAGE, NO_CHECKPOINT = 0, 1, 2, 3
STEPS = ("tensorrt-fp16", "tensorrt")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, digits_source: Source) -> Path:
    """A folder with two engines to build, and nothing of its source around it."""
    if target_named("tensorrt").readiness().ready:
        pytest.skip("this host builds engines itself")
    place = tmp_path_factory.mktemp("prepared")
    checkpoint = place / "digits.safetensors"
    shutil.copy(digits_source.checkpoint, checkpoint)
    order = Order(
        source=replace(digits_source, checkpoint=checkpoint),
        wanted=(Wanted(target="tensorrt", precision=Precision.FP16), Wanted(target="tensorrt")),
        out=place / "out",
    )
    with warnings.catch_warnings(record=True):
        manifest = run(order)
    assert {pending.step for pending in manifest.pending} == {*STEPS}
    checkpoint.unlink()
    return order.out


@pytest.fixture
def finish(prepared: Path, tmp_path: Path) -> Callable[..., tuple[int, str, Manifest]]:
    """`finish(fault="offset")`: exit code, stderr and manifest of the command on the other host."""

    path = os.pathsep.join(filter(None, [str(GPU_HOST), os.environ.get("PYTHONPATH")]))

    def execute(
        *options: str, fault: str = "", change: Callable[[Path], object] = lambda _: None
    ) -> tuple[int, str, Manifest]:
        out = tmp_path / "out"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(prepared, out)
        change(out)
        done = subprocess.run(
            [sys.executable, "-m", "modelc", "build-trt", "out", "--no-cache", *options],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "GPU_HOST_FAULT": fault, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        manifest = read_manifest(out)
        assert manifest is not None
        return done.returncode, done.stderr, manifest

    return execute


def test_a_copy_of_the_folder_is_enough(
    finish: Callable[..., tuple[int, str, Manifest]], tmp_path: Path
) -> None:
    code, _, manifest = finish()
    assert code == FINISHED
    assert not manifest.pending
    for step in STEPS:
        verdict = manifest.verdict_of(step)
        assert verdict is not None
        assert verdict.passed
        assert verdict.stored is not None
        assert not verdict.stored.source
        assert verdict.stored.feeds == len(verdict.feeds)
        assert verdict.stored.skipped == ()
    assert (tmp_path / "out" / "model.fp16.engine").is_file()


def test_a_wrong_engine_is_rejected_there(
    finish: Callable[..., tuple[int, str, Manifest]], tmp_path: Path
) -> None:
    code, _, manifest = finish(fault="offset")
    assert code == REJECTED
    assert all(not one.passed for one in manifest.verdicts if one.stored is not None)
    assert {artifact.name for artifact in manifest.artifacts} >= {f"rejected/{s}" for s in STEPS}
    assert not (tmp_path / "out" / "model.fp16.engine").exists()


def damage(out: Path) -> None:
    for path in out.glob("references/*.npz"):
        path.write_bytes(b"PK" + path.read_bytes()[2:-9])


def drop(out: Path) -> None:
    shutil.rmtree(out / "references")


@pytest.mark.parametrize("change", [damage, drop])
def test_damaged_references_build_nothing(
    finish: Callable[..., tuple[int, str, Manifest]],
    tmp_path: Path,
    change: Callable[[Path], None],
) -> None:
    code, said, manifest = finish(change=change)
    assert code == REJECTED
    assert {failure.step for failure in manifest.failures} == {*STEPS}
    assert len(manifest.pending) == len(STEPS)
    assert "Traceback" not in said
    assert not list((tmp_path / "out").glob("*.engine"))


def relabel(out: Path) -> None:
    manifest = read_manifest(out)
    assert manifest is not None
    bf16 = [replace(one, precision=Precision.BF16) for one in manifest.pending]
    write_manifest(replace(manifest, pending=tuple(bf16)), out)


def test_a_step_of_another_precision_than_its_parent_is_not_finished(
    finish: Callable[..., tuple[int, str, Manifest]], tmp_path: Path
) -> None:
    code, _, manifest = finish(change=relabel)
    assert code == REJECTED
    assert {failure.step for failure in manifest.failures} == {"tensorrt-bf16"}
    assert not list((tmp_path / "out").glob("*.engine"))


def test_a_named_checkpoint_must_exist(
    finish: Callable[..., tuple[int, str, Manifest]],
) -> None:
    code, said, manifest = finish("--checkpoint", "gone.safetensors")
    assert code == NO_CHECKPOINT
    assert len(manifest.pending) == len(STEPS)
    assert "Traceback" not in said


def test_an_option_that_no_pending_engine_has_is_an_error(
    finish: Callable[..., tuple[int, str, Manifest]],
) -> None:
    code, _, manifest = finish("--compute-capabilities", "8.9")
    assert code == USAGE
    assert len(manifest.pending) == len(STEPS)
