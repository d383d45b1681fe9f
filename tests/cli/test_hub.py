from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modelc.core.errors import ErrorCode

from ..hub_server import HubModel, HubServer, use_hub
from .conftest import Ran

pytest.importorskip("huggingface_hub")

SAMPLE_MODELS = Path(__file__).parents[2] / "sample_models"
WEIGHTS = (SAMPLE_MODELS / "digits.safetensors").read_bytes()
OPTIONS = ("--model", "modelc.sample_models.digits:build", "--input", "x:float32[batch=1..8,1,8,8]")
ID = "hf://org/digits"
PROJECT = """
[models.digits]
checkpoint = "hf://org/digits@main"
model = "modelc.sample_models.digits:build"
input = ["x:float32[batch=1..8,1,8,8]"]
to = ["torchscript"]
"""
Door = Callable[..., Ran]


@pytest.fixture
def hub(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubServer]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("user")))
    with use_hub(tmp_path_factory.mktemp("cache")) as server:
        yield server


@pytest.fixture
def model(hub: HubServer) -> HubModel:
    found = hub.model("org/digits")
    found.push({"model.safetensors": WEIGHTS})
    return found


@pytest.fixture
def project(model: HubModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "modelc.toml").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    assert model.refs
    return tmp_path


def error_of(ran: Ran) -> dict[str, str]:
    found: dict[str, str] = json.loads(ran.stdout)["error"]
    return found


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("hf://org/nothing", 2), ("hf://digits", 2), ("hf:/org/digits@v9", 2),
        ("hf://org/digits/x.safetensors", 2), ("hf://org/digits/../x", 2),
        ("hf://org/gated", 3), ("hf://org/pickled", 2),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("model")
def test_what_cannot_be_had_is_one_line_and_nothing_is_written(
    refuse: Callable[..., str], hub: HubServer, text: str, code: int
) -> None:
    hub.model("org/gated").gated = True
    hub.model("org/pickled").push({"pytorch_model.bin": b"x"})
    said = refuse("export", text, "--to", "onnx", "-o", "out", "-q", code=code)
    assert "hf:/o" not in said


@pytest.mark.parametrize(
    "command",
    [
        ("export", ID, "--to", "onnx"), ("build-ov", ID), ("build-trt", ID), ("inspect", ID),
        ("inspect", ID, "--breaks"), ("init", ID),
        ("bench", ID, "--model", "modelc.sample_models.digits:build"),
    ],
)  # fmt: skip
def test_every_command_asks_the_hub(
    refuse: Callable[..., str], hub: HubServer, command: tuple[str, ...]
) -> None:
    refuse(*command, code=2)
    assert hub.requests[0].startswith("GET /api/models/org/digits")


def test_a_server_that_is_gone_is_an_error_of_the_checkpoint(
    door: Door, hub: HubServer, tmp_path: Path
) -> None:
    hub.stop()
    ran = door("export", ID, "--to", "onnx", "-o", tmp_path / "out", "--json")
    assert ran.returncode == 3
    assert error_of(ran)["code"] == ErrorCode.HUB_UNREACHABLE


def test_weights_are_inspected(door: Door, model: HubModel) -> None:
    ran = door("inspect", ID)
    assert ran.returncode == 0
    assert ran.stdout.startswith(f"{ID}: safetensors")
    assert model.refs


def test_init_writes_the_id(door: Door, project: Path) -> None:
    ran = door("init", ID, "-o", project / "new.toml")
    assert ran.returncode == 0, ran.stderr
    text = (project / "new.toml").read_text()
    assert "[models.digits]" in text
    assert f'checkpoint = "{ID}"\n' in text


def test_a_plan_needs_no_hub(door: Door, hub: HubServer, project: Path) -> None:
    hub.stop()
    assert door("run", "--dry-run").returncode == 0
    assert door("config").returncode == 0
    assert door("export", ID, "--to", "onnx", "--dry-run").returncode == 0
    assert project.exists()


@pytest.mark.slow
def test_a_run_follows_the_branch(
    door: Door, hub: HubServer, model: HubModel, project: Path
) -> None:
    def source() -> str:
        ran = door("run", "--json")
        assert ran.returncode == 0, ran.stderr
        (found,) = json.loads(ran.stdout)["models"]
        return str(found["artifacts"][0]["source"])

    assert source() == "made"
    assert source() == "kept"
    first = model.refs["main"]
    model.push({"model.safetensors": WEIGHTS, "notes.txt": b"new"})
    assert source() == "made"
    model.refs["main"] = first
    assert source() == "cache"
    hub.stop()
    assert source() == "kept"
    manifest = json.loads((project / "out" / "digits" / "manifest.json").read_text())
    assert manifest["checkpoint"]["path"] == f"{ID}@{first}"


@pytest.mark.slow
def test_a_model_that_is_not_there_fails_alone(door: Door, hub: HubServer, project: Path) -> None:
    (project / "modelc.toml").write_text(PROJECT + PROJECT.replace("digits", "other", 2))
    ran = door("run", "--keep-going", "--json")
    assert ran.returncode == 2
    states = {
        one["name"]: "error" in one and one["error"] for one in json.loads(ran.stdout)["models"]
    }
    assert not states["digits"]
    assert states["other"]
    assert hub.requests


@pytest.mark.slow
def test_an_isolated_export_and_everything_after_it(
    door: Door, hub: HubServer, model: HubModel, project: Path
) -> None:
    ran = door("export", ID, *OPTIONS, "--to", "onnx", "-o", "out", "--isolate")
    assert ran.returncode == 0, ran.stderr
    assert "%|" not in ran.stderr  # no bar of tqdm
    model.push({"model.safetensors": WEIGHTS[:-4] + bytes(4)})
    hub.stop()
    for command in (
        ("validate", "out", "--isolate"), ("validate", "out/model.onnx"), ("verify", "out"),
        ("debug", "out/model.onnx"), ("build-ov", "out/model.onnx", "-o", "out"),
        ("inspect", "out/model.onnx"), ("report", "out"),
        ("bench", "out", "--seconds", "0.1", "--row", "onnx"),
    ):  # fmt: skip
        ran = door(*command)
        assert ran.returncode == 0, (command, ran.stderr)
    assert project.exists()
