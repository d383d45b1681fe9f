"""What an order that fails leaves in the output folder: what was there, and nothing else."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from modelc.core.errors import ErrorCode, UsageError
from modelc.pipeline.output_folder import open_folder
from modelc.pipeline.worst_feed import save_feed

from ..reasons import has_code

Ran = subprocess.CompletedProcess[str]
Door = Callable[..., Ran]
Refuse = Callable[..., str]
Contents = Callable[[Path], dict[str, bytes | None]]
TO = ("--to", "torchscript", "-o")


def test_a_file_in_the_way_is_told_and_kept(
    refuse: Refuse, digits: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("mine")
    said = "cannot write to the output folder {}: out is a file"
    for place in ("out", "out/in"):
        assert said.format(place) in refuse("export", *digits, *TO, place, code=2)
        assert said.format(place) in refuse("export", *digits, "--isolate", *TO, place, code=2)


@pytest.mark.parametrize("place", ["n" * 300, f"in/{'n' * 300}", f"{'n' * 300}/in", "é" * 200])
def test_a_name_that_is_too_long_is_told(
    refuse: Refuse, digits: tuple[str, ...], place: str
) -> None:
    told = refuse("export", *digits, *TO, place, code=2)
    assert "longer than" in told or os.strerror(errno.ENAMETOOLONG) in told


@pytest.mark.parametrize("command", ["validate", "verify", "inspect", "report", "sbom", "debug"])
def test_a_path_that_the_system_refuses_is_told(
    refuse: Refuse, tmp_path: Path, command: str
) -> None:
    assert os.strerror(errno.ENAMETOOLONG) in refuse(command, "n" * 300, code=2)
    (tmp_path / "loop").symlink_to("loop")
    refuse(command, "loop/in", code=2)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_told(
    refuse: Refuse, digits: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir(mode=0o500)
    assert "Permission denied" in refuse("export", *digits, *TO, "out", code=2)


def test_artifacts_of_another_checkpoint_are_named_and_kept(
    door: Door, gate: tuple[str, ...], digits_copy: Path, contents: Contents
) -> None:
    before = _without_logs(contents(digits_copy))
    ran = door("export", *gate, *TO, digits_copy)
    assert ran.returncode == 2
    assert "another checkpoint" in ran.stderr
    assert _without_logs(contents(digits_copy)) == before


def test_artifacts_with_other_inputs_are_named_and_kept(
    door: Door, digits: tuple[str, ...], digits_copy: Path, contents: Contents
) -> None:
    before = _without_logs(contents(digits_copy))
    other = (*digits[:-1], "x:float32[batch=1..2,1,8,8]")
    ran = door("export", *other, *TO, digits_copy)
    assert ran.returncode == 2
    assert "x:float32[batch=1..8,1,8,8]" in ran.stderr
    assert _without_logs(contents(digits_copy)) == before


def test_with_overwrite_they_are_moved_away(
    door: Door, gate: tuple[str, ...], digits_copy: Path
) -> None:
    ran = door("export", *gate, *TO, digits_copy, "--overwrite")
    assert ran.returncode == 0
    assert (digits_copy / "replaced" / "model.onnx").is_file()
    assert not (digits_copy / "model.onnx").exists()


def test_a_damaged_artifact_is_moved_to_rejected(door: Door, digits_copy: Path) -> None:
    with (digits_copy / "model.onnx").open("ab") as stream:
        stream.write(b"\0")
    ran = door("validate", digits_copy)
    assert ran.returncode == 1
    assert "rejected/onnx: model.onnx " in ran.stdout
    assert (digits_copy / "rejected" / "model.onnx").is_file()
    assert not (digits_copy / "model.onnx").exists()


def _without_logs(found: dict[str, bytes | None]) -> dict[str, bytes | None]:
    return {name: data for name, data in found.items() if not name.startswith("logs")}


LIMITED = """
import resource, sys
from modelc.cli.app import run_cli
kind = getattr(resource, sys.argv[1])
resource.setrlimit(kind, (int(sys.argv[2]), resource.getrlimit(kind)[1]))
sys.exit(run_cli(sys.argv[3:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "most", "isolate", "hint"),
    [
        ("RLIMIT_FSIZE", 2000, "--isolate", "ulimit -f unlimited"),
        ("RLIMIT_NOFILE", 7, "--isolate", "ulimit -n 4096"),
        ("RLIMIT_NOFILE", 7, "--no-isolate", "ulimit -n 4096"),
    ],
)
def test_limits_of_the_system_are_told(
    digits: tuple[str, ...],
    surroundings: dict[str, str],
    tmp_path: Path,
    kind: str,
    most: int,
    isolate: str,
    hint: str,
) -> None:
    ran = subprocess.run(
        [sys.executable, "-P", "-c", LIMITED, kind, str(most), "export", *digits, isolate, *TO,
         str(tmp_path / "out")],
        env={**surroundings, "PYTHONDONTWRITEBYTECODE": "1"},  # it would be cut off, and kept
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 2, ran.stderr
    assert hint in ran.stderr


def test_a_folder_that_is_removed_while_modelc_works_in_it_is_told(tmp_path: Path) -> None:
    def work() -> None:
        with open_folder(tmp_path / "out") as folder:
            shutil.rmtree(folder.path)
            folder.workplace("onnx")

    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_FOUND)):
        work()


@pytest.mark.parametrize("before", [True, False], ids=["there before", "made by the run"])
def test_a_folder_that_is_removed_and_made_again_by_what_writes_into_it_is_told_and_goes(
    tmp_path: Path, *, before: bool
) -> None:
    out = tmp_path / "out"
    if before:
        out.mkdir()

    def work() -> None:
        with open_folder(out) as folder:
            shutil.rmtree(folder.path)
            save_feed({"x": np.zeros(1, np.float32)}, out / "worst" / "onnx.npz")
            folder.workplace("onnx")

    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_FOUND)):
        work()
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize("isolate", ["--isolate", "--no-isolate"])
@pytest.mark.parametrize("moment", ["__init__", "forward"])
def test_an_export_whose_folder_is_removed_is_told_and_leaves_nothing(
    tmp_path: Path, modelc: Callable[..., Ran], isolate: str, moment: str
) -> None:
    out = tmp_path / "out"
    (tmp_path / "removing.py").write_text(
        f"import shutil\nfrom torch import nn\n"
        f"def remove(when):\n    if when == {moment!r}:\n"
        f"        shutil.rmtree({str(out)!r}, ignore_errors=True)\n"
        "class build(nn.Linear):\n"
        "    def __init__(self):\n        super().__init__(3, 2); remove('__init__')\n"
        "    def forward(self, x):\n        remove('forward'); return super().forward(x)\n"
    )
    torch.save(torch.nn.Linear(3, 2).state_dict(), tmp_path / "a.pt")
    given = ("--model", "removing:build", "--input", "x:float32[2,3]", "--to", "torchscript")
    ran = modelc("export", "a.pt", *given, "-o", out, isolate, "--no-cache", cwd=tmp_path)
    assert ran.returncode == 2, ran.stderr
    (told,) = [one for one in ran.stderr.splitlines() if one.startswith("error:")]
    assert str(out) in told
    assert not out.exists()
