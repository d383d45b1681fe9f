"""Models of a project come from the fork server, and are what new processes make."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from modelc.core.children import fork_server
from modelc.core.children.fork_server import ForkedProcess, ForkServer
from modelc.core.events import ignore_events
from modelc.projects.model_orders import plan_project
from modelc.projects.project_records import ModelOutcome
from modelc.projects.run_models import ProjectLimits, run_models

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not fork_server.IS_SUPPORTED, reason="the fork server is for Linux"),
]
NETS = """\
import os, random, signal, threading, time
import numpy, torch
from torch import nn

def plain():
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))

def leaking():
    made = plain()
    torch.manual_seed(1), numpy.random.seed(1), random.seed(1)
    os.umask(0o777)
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    torch.set_num_threads(3)
    torch.backends.mkldnn.enabled = False
    numpy.seterr(all="raise")
    os.chdir("/")
    return made

def patching():
    real = nn.functional.gelu
    nn.functional.gelu = lambda x, approximate="none": real(x, approximate="tanh")
    os.environ["MODELC_TEST_LEAK"] = "1"
    return plain()

class Dying(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = plain()

    def forward(self, x):
        if torch.jit.is_tracing() or torch.compiler.is_exporting():
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.inner(x)

class Large(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = plain()

    def forward(self, x):
        held = bytearray(b"x" * (3 << 30))
        time.sleep(600)
        return self.inner(x)
"""
MODEL = """
[models.{name}]
checkpoint = "{name}.safetensors"
model = "forked_nets:{factory}"
input = "x:float32[batch=1..3,4]"
to = ["onnx", "torchscript"]
"""


def write_project(folder: Path, factories: dict[str, str], more: str = "") -> None:
    (folder / "forked_nets.py").write_text(NETS)
    text = more
    for number, (name, factory) in enumerate(factories.items()):
        torch.manual_seed(number)
        inner = "inner." if factory in ("Dying", "Large") else ""
        net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
        save_file(
            {f"{inner}{k}": v for k, v in net.state_dict().items()}, folder / f"{name}.safetensors"
        )
        text += MODEL.format(name=name, factory=factory)
    (folder / "modelc.toml").write_text(text)


def run(folder: Path, limits: ProjectLimits) -> dict[str, ModelOutcome]:
    planned = plan_project(folder / "modelc.toml")
    ended = run_models(planned.models, lambda _: ignore_events, caching=None, limits=limits)
    return {one.name: one for one in ended}


def files_of(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "logs" not in path.parts and path.name != "manifest.json"
    }


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The process ids of forked children."""
    pids: list[int] = []
    real = ForkServer.fork

    def note(server: ForkServer, *args: object) -> ForkedProcess | None:
        made = real(server, *args)  # type: ignore[arg-type]  # passed on as they came
        pids.extend([made.pid] if made is not None else [])
        return made

    monkeypatch.setattr(ForkServer, "fork", note)
    return pids


def test_files_are_those_of_new_processes_whatever_another_model_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: list[int]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_project(
        tmp_path,
        {
            "one": "plain",
            "leaks": "leaking",
            "two": "plain",
            "patches": "patching",
            "three": "plain",
        },
    )
    ended = run(tmp_path, ProjectLimits())
    assert {one.exit_code for one in ended.values()} == {0}
    assert len(forked) == 5
    made = files_of(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "before")
    again = run(tmp_path, ProjectLimits(preloads=False))
    assert {one.exit_code for one in again.values()} == {0}
    assert (files_of(tmp_path / "out"), len(forked)) == (made, 5)


def test_a_crash_and_a_limit_are_reported_as_of_a_new_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: list[int]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_project(tmp_path, {"dies": "Dying", "large": "Large", "good": "plain"})
    found = []
    for preloads in (True, False):
        limits = ProjectLimits(keep_going=True, preloads=preloads, memory=2 << 30, timeout=120.0)
        ended = run(tmp_path, limits)
        manifest = ended["dies"].manifest
        assert manifest is not None
        ends = [(one.step, one.exit_code, "SIGSEGV" in one.message) for one in manifest.failures]
        error = ended["large"].error
        assert error is not None
        found.append((ends, type(error), "--memory" in error.message, ended["good"].exit_code))
    assert found[0] == found[1]
    assert found[0][0][0] == ("onnx", 5, True)
    assert found[0][2:] == (True, 0)
    assert forked


def test_few_models_start_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: list[int]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_project(tmp_path, {"one": "plain", "two": "plain"})
    assert {one.exit_code for one in run(tmp_path, ProjectLimits(jobs=2)).values()} == {0}
    assert forked == []
