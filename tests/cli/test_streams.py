"""What goes where: the result to stdout, progress and errors to stderr, chatter to the logs."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator

import modelc

Door = Callable[..., "subprocess.CompletedProcess[str]"]
SCHEMA = Path(modelc.__file__).parent / "core" / "manifest.schema.json"
TO = ("--to", "torchscript", "-o")
CHATTER = ("TracerWarning", "DeprecationWarning", "torchvision is not installed")


def told_of(log: Path) -> str:
    return log.read_text(encoding="utf-8")


def test_an_export_tells_its_result_on_stdout_alone(
    demo_run: subprocess.CompletedProcess[str], demo: Path
) -> None:
    lines = demo_run.stdout.strip().splitlines()
    assert demo_run.returncode == 0
    assert lines[0].split()[:3] == ["format", "precision", "method"]
    assert lines[-1] == f"3 proven, 0 refused · {demo}/manifest.json"
    assert "✓" not in demo_run.stdout


def test_its_progress_is_on_stderr_a_line_a_step(
    demo_run: subprocess.CompletedProcess[str],
) -> None:
    lines = demo_run.stderr.splitlines()
    assert [line.split("  ")[0] for line in lines[:3]] == [
        "✓ read checkpoint",
        "✓ load model",
        "✓ eager reference",
    ]
    assert all(line.startswith("✓ ") for line in lines)


def test_chatter_of_the_frameworks_is_in_the_logs_alone(
    demo_run: subprocess.CompletedProcess[str], demo: Path
) -> None:
    shown = demo_run.stdout + demo_run.stderr
    assert not [text for text in CHATTER if text in shown]
    assert "torchvision" in told_of(demo / "logs" / "onnx.log")
    assert "DeprecationWarning" in told_of(demo / "logs" / "torchscript.log")


@pytest.mark.slow
def test_chatter_of_tracing_is_not_on_the_terminal(
    gate_run: subprocess.CompletedProcess[str],
) -> None:
    shown = gate_run.stdout + gate_run.stderr
    assert not [text for text in (*CHATTER, "legacy TorchScript") if text in shown]
    log = Path(str(gate_run.args[-1])) / "logs" / "onnx.log"
    assert "legacy TorchScript" in told_of(log)


def test_piped_output_has_no_ansi_codes(demo_run: subprocess.CompletedProcess[str]) -> None:
    assert "\x1b" not in demo_run.stdout + demo_run.stderr


def test_piped_reasons_stay_one_line(door: Door, gate: tuple[str, ...], tmp_path: Path) -> None:
    wanted = ("--to", "torchscript", "--capture", "trace", "-o", tmp_path / "out")
    lines = door("export", *gate, *wanted).stdout.splitlines()
    reason = next(line for line in lines if line.startswith("rejected/torchscript: "))
    assert re.search(r"gate.py:\d+; .+", reason)


def test_the_json_of_an_export_is_a_manifest_by_its_schema(
    door: Door, digits: tuple[str, ...], tmp_path: Path
) -> None:
    ran = door("export", *digits, *TO, tmp_path / "out", "--json")
    document = json.loads(ran.stdout)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    assert document.pop("exit_code") == 0
    assert [artifact["name"] for artifact in document["artifacts"]] == ["torchscript"]
    assert json.loads((tmp_path / "out" / "manifest.json").read_text()) == document


def test_the_json_of_a_refused_export_is_a_manifest_by_its_schema(
    door: Door, gate: tuple[str, ...], tmp_path: Path
) -> None:
    ran = door("export", *gate, "--to", "pt2", "-o", tmp_path / "out", "--json")
    document = json.loads(ran.stdout)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    assert ran.returncode == document["exit_code"] == document["failures"][0]["exit_code"] == 5


def test_what_a_users_model_prints_goes_to_the_log(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"net_of_{tmp_path.name}"
    source = "import os, torch\ndef build():\n    os.write(1, b'hello')\n"
    (tmp_path / f"{name}.py").write_text(f"{source}    return torch.nn.Linear(3, 2)\n")
    torch.save(torch.nn.Linear(3, 2).state_dict(), tmp_path / "a.pt")
    given = ("a.pt", "--model", f"{name}:build", "--input", "x:float32[batch=1..4,3]")
    ran = door("export", *given, *TO, "out", "--json")
    assert json.loads(ran.stdout)["artifacts"]
    assert "hello" in told_of(tmp_path / "out" / "logs" / "checkpoint.log")


@pytest.mark.parametrize(
    "arguments",
    [
        ("targets", "--json"),
        ("inspect", "{}/model.onnx", "--json"),
        ("validate", "{}/model.onnx", "--json"),
        ("validate", "{}", "--json"),
        ("build-ov", "{}/model.onnx", "--fp16", "--dry-run", "--json"),
        ("report", "{}", "--json"),
        ("verify", "{}", "--json"),
        ("debug", "{}/model.onnx", "--json"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_with_json_stdout_is_one_document(
    door: Door, digits_copy: Path, arguments: tuple[str, ...]
) -> None:
    ran = door(*(argument.format(digits_copy) for argument in arguments))
    assert ran.returncode == 0
    document = json.loads(ran.stdout)
    assert next(iter(document)) == "exit_code"
    assert document["exit_code"] == 0


@pytest.mark.parametrize("command", ["config", "config --check", "cache ls", "run --dry-run"])
def test_the_json_of_a_project_has_its_exit_code(
    door: Door, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(torch.nn.Linear(3, 2).state_dict(), tmp_path / "a.pt")
    net = "checkpoint = 'a.pt'\nmodel = 'torch.nn:Linear'\nto = 'onnx'\n"
    (tmp_path / "modelc.toml").write_text(f"[models.exit_code]\n{net}")
    folder = ("--cache-dir", tmp_path) if command == "cache ls" else ()
    ran = door(*command.split(), *folder, "--json")
    assert json.loads(ran.stdout)["exit_code"] == ran.returncode == 0


def test_the_json_of_init_says_what_was_written(door: Door, tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(3, 2).state_dict(), tmp_path / "a.pt")
    ran = door("init", tmp_path / "a.pt", "-o", tmp_path / "p.toml", "--json")
    document = json.loads(ran.stdout)
    assert (ran.returncode, document["exit_code"]) == (0, 0)
    assert document["file"] == str(tmp_path / "p.toml")
    assert document["models"] == ["a"]


def test_quiet_leaves_the_result_alone(door: Door, digits: tuple[str, ...], tmp_path: Path) -> None:
    ran = door("export", *digits, *TO, tmp_path / "out", "--quiet")
    assert ran.stderr == ""
    assert "1 passed, 0 rejected" in ran.stdout


def test_quiet_still_tells_errors(door: Door, tmp_path: Path) -> None:
    ran = door("validate", tmp_path, "--quiet")
    assert [line.split(" ")[0] for line in ran.stderr.splitlines()] == ["error:", "hint:"]


def test_a_dry_run_writes_nothing_and_tells_the_plan(
    door: Door, digits: tuple[str, ...], tmp_path: Path
) -> None:
    ran = door("export", *digits, "--to", "openvino:fp16", "-o", tmp_path / "out", "--dry-run")
    assert ran.returncode == 0
    assert "model.fp16.xml" in ran.stdout
    assert list(tmp_path.iterdir()) == []


def ended(
    surroundings: dict[str, str], *arguments: str, redirection: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """`modelc ARGUMENTS REDIRECTION` by a shell, which says what a parent would see."""
    command = shlex.join([sys.executable, "-P", "-m", "modelc", *arguments])
    return subprocess.run(
        ["bash", "-c", f"{command} {redirection}"],
        env={**surroundings, **variables},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


NOT_THERE = ("inspect", "not-there.onnx")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("redirection", ["<&- >&-", "> /dev/full", ">&- 2>&-", "2> /dev/full"])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("targets",), 0), (("targets", "--json"), 0), (("--version",), 0), (NOT_THERE, 2)],
)
def test_streams_that_take_nothing_change_no_exit_code(
    surroundings: dict[str, str], redirection: str, arguments: tuple[str, ...], code: int
) -> None:
    ran = ended(surroundings, *arguments, redirection=redirection)
    assert ran.returncode == code, ran.stderr
    assert "Traceback" not in ran.stderr


def test_that_a_full_disk_took_no_result_is_said(surroundings: dict[str, str]) -> None:
    ran = ended(surroundings, "targets", redirection="> /dev/full")
    assert os.strerror(errno.ENOSPC) in ran.stderr


@pytest.mark.parametrize("arguments", [("targets",), ("targets", "--json"), ("--help",)])
def test_a_reader_that_has_left_changes_no_exit_code(
    surroundings: dict[str, str], arguments: tuple[str, ...]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "modelc", *arguments],
        env=surroundings,
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        text=True,
    )
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_result_is_shown_in_ascii_too(demo: Path, surroundings: dict[str, str]) -> None:
    ran = ended(surroundings, "verify", str(demo), PYTHONIOENCODING="ascii")
    assert ran.returncode == 0, ran.stderr
    assert "0 failed" in ran.stdout
    assert ran.stdout.isascii()
