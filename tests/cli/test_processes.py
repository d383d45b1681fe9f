"""What only a process of its own can show: start-up, terminals, signals, exit codes."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Contents = Callable[[Path], dict[str, bytes | None]]
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|9\d)")


def test_python_m_modelc_is_the_command(modelc: Run) -> None:
    ran = modelc("--version")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.fullmatch(r"modelc \d+\.\d+\.\d+ \(modelc-toolchain\)\n", ran.stdout)


@pytest.mark.parametrize("name", ["rich", "msgspec"])
def test_the_current_folder_stands_in_for_no_library(
    name: str, surroundings: dict[str, str], tmp_path: Path
) -> None:
    stands_in = (
        f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\nraise OSError\n"
    )
    (tmp_path / f"{name}.py").write_text(stands_in)
    unsafe = {k: v for k, v in surroundings.items() if k != "PYTHONSAFEPATH"}
    ran = subprocess.run(
        [sys.executable, "-m", "modelc", "targets", "--json"],
        cwd=tmp_path, env=unsafe, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_a_factory_in_the_current_folder_is_found_by_python_m(
    surroundings: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "onnx.py").write_text("raise OSError\n")
    (tmp_path / "beside.py").write_text("WIDTH = 3\n")
    (tmp_path / "mynet.py").write_text(
        "import torch, beside\n\ndef build():\n    return torch.nn.Linear(beside.WIDTH, 2)\n"
    )
    import torch

    torch.save(torch.nn.Linear(3, 2).state_dict(), tmp_path / "net.pt")
    unsafe = {k: v for k, v in surroundings.items() if k != "PYTHONSAFEPATH"}
    wanted = ("--model", "mynet:build", "--input", "x:float32[2,3]", "--to", "onnx", "-o", "out")
    ran = subprocess.run(
        [sys.executable, "-m", "modelc", "export", "net.pt", *wanted],
        cwd=tmp_path, env=unsafe, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def test_without_a_command_the_help_is_shown_and_no_error(modelc: Run) -> None:
    ran = modelc()
    assert "Usage: modelc" in ran.stdout
    assert ran.stderr == ""


def test_a_proven_export_exits_with_0(demo_run: subprocess.CompletedProcess[str]) -> None:
    assert demo_run.returncode == 0


@pytest.mark.slow
def test_a_trace_that_froze_a_branch_exits_with_1(
    gate_run: subprocess.CompletedProcess[str],
) -> None:
    out = Path(str(gate_run.args[-1]))
    assert gate_run.returncode == 1
    assert [path.name for path in sorted((out / "rejected").glob("*model.*"))] == [
        "model.debug.json",
        "model.onnx",
        "model.torchscript.pt",
    ]
    assert not list(out.glob("model.*"))


def test_a_refusal_exits_with_its_code(modelc: Run, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_text("only words\n")
    ran = modelc("export", "a.pt", "--to", "onnx", cwd=tmp_path)
    assert ran.returncode == 3
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize("extra", [(), ("--json",)], ids=["table", "json"])
def test_a_dry_run_imports_no_framework(
    modelc: Run, digits: tuple[str, ...], extra: tuple[str, ...]
) -> None:
    wanted = ("--to", "torchscript", "--to", "openvino:fp16", "--dry-run", *extra)
    ran = modelc("export", *digits, *wanted, flags=("-X", "importtime"))
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert ran.returncode == 0
    assert "modelc.pipeline.plan" in imported
    assert not imported & {"torch", "numpy", "onnx", "onnxruntime", "openvino", "safetensors"}


@pytest.fixture
def on_a_terminal(surroundings: dict[str, str]) -> Callable[..., str]:
    """`on_a_terminal("targets", NO_COLOR="1")`: what a command writes to a terminal."""

    def run(*arguments: str, **variables: str) -> str:
        ours, theirs = pty.openpty()
        environment = {**surroundings, "TERM": "xterm-256color", "COLUMNS": "100", **variables}
        command = [sys.executable, "-m", "modelc", *arguments]
        done = subprocess.run(command, env=environment, stdout=theirs, stderr=theirs, check=True)
        os.close(theirs)
        assert done.returncode == 0
        with os.fdopen(ours, "rb", buffering=0) as stream:
            return stream.read(1 << 16).decode()

    return run


def test_a_terminal_gets_colours(on_a_terminal: Callable[..., str]) -> None:
    assert COLOUR.search(on_a_terminal("targets"))


def test_no_color_is_honoured(on_a_terminal: Callable[..., str]) -> None:
    shown = on_a_terminal("targets", NO_COLOR="1")
    assert "torchscript" in shown
    assert not COLOUR.search(shown)


def test_an_interrupt_that_a_library_made_an_import_error_is_an_interrupt(
    door: Run, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"net_of_{tmp_path.name}"
    source = "def build():\n    raise ImportError('half loaded') from KeyboardInterrupt()\n"
    (tmp_path / f"{name}.py").write_text(source)
    ran = door("export", weights, "--model", f"{name}:build", "--to", "onnx", "-o", "out")
    assert ran.returncode == 130
    *_, error, hint = ran.stderr.splitlines()
    assert error == "error: interrupted"
    assert str(tmp_path / "out") not in hint
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_one_line_and_keeps_finished_artifacts(
    demo: Path,
    digits: tuple[str, ...],
    tmp_path: Path,
    surroundings: dict[str, str],
    contents: Contents,
) -> None:
    out = Path(shutil.copytree(demo, tmp_path / "out"))
    before = _artifacts(contents(out))
    command = [sys.executable, "-m", "modelc", "export", *digits, "--to", "onnx", "-o", str(out)]
    with subprocess.Popen(command, env=surroundings, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "eager reference" in line:  # what comes next, the conversion, takes two seconds
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    error, hint = (line for line in rest.splitlines() if line[:1] not in "✗✓")
    assert error == "error: interrupted"
    assert str(out) in hint
    assert not list(out.glob(".*"))
    assert _artifacts(contents(out)) == before


def _artifacts(found: dict[str, bytes | None]) -> dict[str, bytes | None]:
    """All but the logs, which are of the last run."""
    return {name: data for name, data in found.items() if not name.startswith("logs")}
