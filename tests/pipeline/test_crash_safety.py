"""A kill, a full or a read-only disk leaves no partial result."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.core.atomic_write import atomic_write, draft_file
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.manifest import Manifest
from modelc.pipeline.manifest_file import (
    COMMIT_FOLDER,
    MANIFEST_FILE,
    FileMove,
    FolderCommit,
    encode_json,
    read_manifest_file,
)
from modelc.pipeline.output_folder import open_folder
from modelc.pipeline.recorded_run import describe_changed_file, load_manifest

from ..reasons import has_code

ROOT = Path(__file__).resolve().parents[2]
SPACE = ("unshare", "--user", "--map-root-user", "--mount")  # where a folder may be mounted


def mounts() -> bool:
    """Whether this host lets a test mount a file system of its own."""
    if shutil.which("unshare") is None:
        return False
    command = [*SPACE, "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(not mounts(), reason="this host lets nobody mount a tmpfs")


@pytest.fixture
def manifest(digits_copy: Path) -> Manifest:
    """The record of the exported digits, of which `digits_copy` is a copy."""
    return load_manifest(digits_copy)


def broken_off(folder: Path, manifest: Manifest, changes: FolderCommit, **files: bytes) -> Path:
    """A folder as a run leaves it that was killed just after its commit began to hold."""
    place = folder / COMMIT_FOLDER
    place.mkdir()
    for name, content in files.items():
        (place / name).write_bytes(content)
    (place / MANIFEST_FILE).write_bytes(encode_json(manifest))
    (place / "commit.json").write_bytes(encode_json(changes))
    return place


def test_a_draft_that_fails_does_not_replace_the_file(tmp_path: Path) -> None:
    atomic_write(tmp_path / "a.txt", b"before")

    def break_off() -> None:
        with draft_file(tmp_path / "a.txt") as draft:
            draft.write_bytes(b"half")
            raise OSError

    with pytest.raises(OSError):  # noqa: PT011 - our own
        break_off()
    assert (tmp_path / "a.txt").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_an_interrupted_commit_is_finished_by_the_next_command(
    digits_copy: Path, manifest: Manifest
) -> None:
    gone = manifest.artifacts[0].files[0].name
    now = replace(manifest, artifacts=manifest.artifacts[1:], verdicts=manifest.verdicts[1:])
    moves = (FileMove(source=f"{COMMIT_FOLDER}/0-new", name="deep/new"),)
    broken_off(digits_copy, now, FolderCommit(moves=moves, removals=(gone,)), **{"0-new": b"new"})
    assert load_manifest(digits_copy) == now
    assert (digits_copy / "deep" / "new").read_bytes() == b"new"
    assert not (digits_copy / gone).exists()
    assert not [path for path in digits_copy.iterdir() if path.name.startswith(".")]


def test_a_nearly_complete_commit_is_finished(digits_copy: Path, manifest: Manifest) -> None:
    moves = (
        FileMove(source=f"{COMMIT_FOLDER}/0-new", name="new"),
        FileMove(source=f"{COMMIT_FOLDER}/1-x", name="x"),
    )
    place = broken_off(digits_copy, manifest, FolderCommit(moves=moves), **{"1-x": b"x"})
    (place / MANIFEST_FILE).unlink()  # as the first file, it has its name already
    assert load_manifest(digits_copy) == manifest
    assert (digits_copy / "x").read_bytes() == b"x"


@pytest.mark.parametrize("name", ["../out.txt", "/etc/x", "", "a\0b"])
@pytest.mark.parametrize("where", ["source", "name", "removal"])
def test_a_commit_that_leads_out_of_its_folder_is_an_error(
    digits_copy: Path, manifest: Manifest, name: str, where: str
) -> None:
    move = FileMove(source=f"{COMMIT_FOLDER}/0", name="a")
    changes = (
        FolderCommit(moves=(replace(move, **{where: name}),))
        if where != "removal"
        else FolderCommit(removals=(name,))
    )
    broken_off(digits_copy, manifest, changes, **{"0": b"0"})
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_MANIFEST)):
        load_manifest(digits_copy)
    assert not (digits_copy.parent / "out.txt").exists()


def test_the_commit_of_an_active_run_is_not_finished(digits_copy: Path, manifest: Manifest) -> None:
    with open_folder(digits_copy):
        broken_off(digits_copy, manifest, FolderCommit())
        with pytest.raises(UsageError, check=has_code(ErrorCode.FOLDER_BUSY)):
            load_manifest(digits_copy)


def test_the_manifest_of_a_killed_run_is_no_success(manifest: Manifest) -> None:
    assert (manifest.passed, manifest.exit_code) == (True, 0)
    killed = replace(manifest, steps=(*manifest.steps, "onnx-int8"))
    assert killed.unmade == ("onnx-int8",)
    assert (killed.passed, killed.exit_code) == (False, 6)


def test_a_new_file_does_not_appear_before_the_commit(
    digits_copy: Path, manifest: Manifest
) -> None:
    before = (digits_copy / "model.onnx").read_bytes()
    with open_folder(digits_copy) as folder:
        folder.own(file.name for file in manifest.files)
        workplace = folder.workplace("onnx")
        (workplace / "model.onnx").write_bytes(b"other")
        folder.put(workplace / "model.onnx", "model.onnx")
        assert (digits_copy / "model.onnx").read_bytes() == before
    assert (digits_copy / "model.onnx").read_bytes() == before


def test_the_temporary_folder_of_a_run_with_the_same_pid_is_removed(tmp_path: Path) -> None:
    left = tmp_path / f".work-{os.getpid()}-abc"  # in containers every run has the same number
    left.mkdir()
    with open_folder(tmp_path):
        assert not left.exists()


EXPORT = (
    sys.executable, "-m", "modelc", "export", ROOT / "sample_models" / "digits.safetensors",
    "--model", "modelc.sample_models.digits:build", "--input", "x:float32[batch=1..4,1,8,8]",
    "--to", "torchscript", "-o", "disk/out",
)  # fmt: skip


def in_a_space(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell script where `disk` is a file system of two megabytes; `$EXPORT` exports there.

    What is in it at the end is copied to `after`.
    """
    (folder / "disk").mkdir()
    text = f"mount -t tmpfs -o size=2m none disk && {script}; code=$?; cp -a disk after; exit $code"
    export = " ".join(f"'{word}'" for word in map(str, EXPORT))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    found = os.pathsep.join([str(Path(path).absolute()) for path in paths if path] + [str(folder)])
    return subprocess.run(
        [*SPACE, "sh", "-c", text.replace("$EXPORT", export)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": found, "MODELC_ISOLATE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def held(folder: Path) -> Manifest:
    """The record in the folder: all that it names passes its digests, and nothing else is there."""
    manifest = read_manifest_file(folder / MANIFEST_FILE)
    assert [one for one in manifest.artifacts if describe_changed_file(one, folder)] == []
    assert {path.name for path in folder.glob("model*")} == {file.name for file in manifest.files}
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    return manifest


@needs_mounts
@pytest.mark.slow
def test_a_full_disk_leaves_earlier_artifacts(tmp_path: Path) -> None:
    fill = "{ dd if=/dev/zero of=disk/full bs=1k 2> /dev/null || true; }"
    script = f"$EXPORT && {fill} && $EXPORT --capture script"
    ran = in_a_space(script, tmp_path)
    assert ran.returncode in (2, 5), ran.stderr  # torch's writer aborts the process, or says so
    assert os.strerror(errno.ENOSPC) in ran.stderr or "SIGABRT" in ran.stdout
    manifest = held(tmp_path / "after" / "out")
    assert [one.name for one in manifest.artifacts] == ["torchscript"]


READ_ONLY = """
import subprocess
def now(model):
    subprocess.run(["mount", "--bind", "disk/out", "disk/out"], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", "disk/out"], check=True)
"""


@needs_mounts
@pytest.mark.slow
def test_a_disk_that_turns_read_only_leaves_earlier_artifacts(tmp_path: Path) -> None:
    (tmp_path / "read_only.py").write_text(READ_ONLY)
    ran = in_a_space("$EXPORT && $EXPORT --capture script --patch read_only:now", tmp_path)
    assert ran.returncode in (2, 5), ran.stderr
    assert os.strerror(errno.EROFS) in ran.stderr
    manifest = read_manifest_file(tmp_path / "after" / "out" / MANIFEST_FILE)
    assert manifest.passed
    assert not describe_changed_file(manifest.artifacts[0], tmp_path / "after" / "out")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are forked")
def test_runs_killed_before_each_change_leave_no_fault() -> None:
    script = ROOT / "benchmarks" / "killing.py"
    command = [sys.executable, str(script), "--random", "5"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(ran.stdout)
    assert found["faults"] == []
    assert found["kills"]["rebuild"] > 40
    assert found["found"]["unfinished commit"] > 4


def test_a_folder_in_place_of_a_file_is_a_missing_file(digits_copy: Path) -> None:
    (artifact,) = (one for one in load_manifest(digits_copy).artifacts if one.name == "onnx")
    (digits_copy / "model.onnx").unlink()
    (digits_copy / "model.onnx").mkdir()
    assert describe_changed_file(artifact, digits_copy).startswith("model.onnx ")
