"""`modelc pack` as typed: what it writes, what its check prints, and how it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modelc.cli.pack import _show_packed
from modelc.serving.repository_records import PackedModel, PackReport

from .conftest import SAMPLE_MODELS, Ran

Door = Callable[..., Ran]
PROJECT = f"""\
[defaults]
to = ["onnx"]

[models.digits]
checkpoint = "{SAMPLE_MODELS / "digits.safetensors"}"
model = "modelc.sample_models.digits:build"
input = ["x:float32[batch=1..8,1,8,8]"]

[ensembles.look]
steps = [{{ model = "digits", inputs = {{ x = "image" }}, outputs = {{ output = "scores" }} }}]
"""


@pytest.fixture
def packed(door: Door, exported_digits: Path, tmp_path: Path) -> Path:
    ran = door("pack", exported_digits, "--to", "triton", "-o", tmp_path / "repository",
               "--artifact", "onnx*", "--name", "digits", "-q")  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return tmp_path / "repository"


def test_json_names_models_and_versions(door: Door, exported_digits: Path, tmp_path: Path) -> None:
    ran = door("pack", exported_digits, "--to", "triton", "-o", tmp_path / "repository",
               "--artifact", "onnx", "--name", "digits", "--json")  # fmt: skip
    found = json.loads(ran.stdout)
    assert (found["exit_code"], found["kind"], found["left_out"]) == (0, "triton", [])
    (model,) = found["models"]
    assert (model["name"], model["version"], model["is_new"]) == ("digits", 1, True)
    assert model["batch"] == 8


def test_check_exits_with_1_and_typed_faults(door: Door, packed: Path) -> None:
    assert door("pack", "--check", packed).returncode == 0
    config = packed / "digits-onnx" / "config.pbtxt"
    config.write_text(config.read_text().replace("TYPE_FP32", "TYPE_INT64", 1))
    ran = door("pack", "--check", packed, "--json")
    found = json.loads(ran.stdout)
    assert (ran.returncode, found["exit_code"]) == (1, 1)
    assert {(one["code"], one["model"], one["place"]) for one in found["faults"]} == {
        ("tensor-dtype", "digits-onnx", "x"), ("warmup", "digits-onnx", "x"),
    }  # fmt: skip
    assert all(one["hint"] for one in found["faults"])


def test_a_check_changes_nothing(
    door: Door, packed: Path, contents: Callable[[Path], dict[str, Any]]
) -> None:
    before = contents(packed)
    door("pack", "--check", packed)
    assert contents(packed) == before


def test_a_project_is_packed_with_its_ensemble(door: Door, tmp_path: Path) -> None:
    file = tmp_path / "modelc.toml"
    file.write_text(PROJECT)
    assert door("run", "-f", file, "-q").returncode == 0
    ran = door("pack", file, "--to", "triton", "-o", tmp_path / "repository", "--json")
    assert [one["name"] for one in json.loads(ran.stdout)["models"]] == ["digits", "look"]
    assert door("pack", "--check", tmp_path / "repository").returncode == 0


def test_isolated_as_users_have_it(
    door: Door, exported_digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELC_ISOLATE", "1")
    repository = tmp_path / "repository"
    only = ("--artifact", "onnx", "--artifact", "torchscript")
    assert door("pack", exported_digits, "--to", "triton", "-o", repository, *only).returncode == 0
    assert door("pack", "--check", repository).returncode == 0


def test_a_limit_is_a_fault_of_the_file(door: Door, packed: Path) -> None:
    ran = door("pack", "--check", packed, "--isolate", "--memory", "1MiB", "--json")
    found = json.loads(ran.stdout)
    assert ran.returncode == 1
    assert {one["code"] for one in found["faults"]} == {"unreadable"}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("OUT", "-o", "new"), "--to"),
        (("OUT", "--to", "triton"), "-o"),
        (("OUT", "--to", "trtion", "-o", "new"), "trtion"),
        (("OUT", "--to", "triton", "-o", "new", "--name", "a/b"), "a/b"),
        (("OUT", "--to", "triton", "-o", "new", "--artifact", "none"), "none"),
        (("OUT", "--to", "triton", "-o", "new", "--allow", "onyx"), "onyx"),
        (("OUT", "--check", "--gpu"), "--gpu"),
        (("OUT", "OUT", "--check"), "2"),
        (("OUT", "OUT", "--to", "triton", "-o", "new", "--artifact", "onnx"), "out"),
        (("missing", "--to", "triton", "-o", "new"), "missing"),
        (("missing.toml", "--to", "triton", "-o", "new"), "modelc init"),
        (("missing", "--check"), "missing"),
        (("OUT", "--check"), "repository"),
        (("OUT", "--to", "kserve", "-o", "new"), "kserve"),
    ],
)
def test_what_cannot_be_done_is_refused(
    refuse: Callable[..., str], exported_digits: Path, given: tuple[str, ...], named: str
) -> None:
    words = [exported_digits if word == "OUT" else word for word in given]
    assert named in refuse("pack", *words, code=2)


def test_a_repository_in_a_file_is_refused(
    refuse: Callable[..., str], exported_digits: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    refuse("pack", exported_digits, "--to", "triton", "-o", tmp_path / "file", code=2)


@pytest.mark.parametrize("place", ["/proc/modelc", "file/below", "a" * 300])
def test_a_place_where_no_folder_can_be_is_refused(
    refuse: Callable[..., str], exported_digits: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / place
    assert "-o" in refuse("pack", exported_digits, "--to", "triton", "-o", out, code=2)


def test_quiet_hides_no_note_on_a_pack(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    note = "no-tokenizer"
    packed = PackedModel(
        name="decoder", version=1, artifact="openvino", is_new=True, batch=0,
        notes=(note,),
    )  # fmt: skip
    report = PackReport(repository="packs", kind="openvino-genai", models=(packed,))
    _show_packed(report, quiet=True)
    assert note in capsys.readouterr().out


def test_a_moved_output_folder_can_be_packed(
    door: Door, exported_digits: Path, tmp_path: Path
) -> None:
    """A serving host has neither the checkpoint nor the samples."""
    folder = shutil.copytree(exported_digits, tmp_path / "elsewhere" / "deeper" / "net")
    ran = door("pack", folder, "--to", "triton", "-o", tmp_path / "repository", "-q")
    assert ran.returncode == 0, ran.stderr
