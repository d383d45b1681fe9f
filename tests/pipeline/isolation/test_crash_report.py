"""What the user reads when a child process died."""

from __future__ import annotations

import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from modelc.core.children.processes import ProcessEnd
from modelc.core.errors import CheckpointError, ConversionError, RunnerError
from modelc.core.events import Started
from modelc.pipeline.isolation.crash_report import (
    crash_error,
    crash_failure,
    error_before_first_step,
    last_words,
)

if TYPE_CHECKING:
    import pytest

CRASH = ProcessEnd(code=-signal.SIGSEGV)
CONVERTING = (Started(step="convert onnx"),)
RUNNING = (Started(step="eager reference"), Started(step="validate onnx", runs_artifact=True))


def test_the_exit_code_distinguishes_conversion_and_inference(tmp_path: Path) -> None:
    codes = [
        crash_failure("onnx", CRASH, steps, tmp_path).exit_code for steps in (CONVERTING, RUNNING)
    ]
    assert codes == [ConversionError.exit_code, RunnerError.exit_code]


def test_the_error_of_a_call_distinguishes_checkpoint_and_artifact(
    tmp_path: Path,
) -> None:
    errors = [crash_error(CRASH, steps, tmp_path) for steps in (CONVERTING, RUNNING, ())]
    assert [type(error) for error in errors] == [CheckpointError, RunnerError, RunnerError]


def test_a_crash_without_output_names_no_empty_log(tmp_path: Path) -> None:
    (tmp_path / "onnx.log").touch()
    ended = crash_failure("onnx", ProcessEnd(code=3), CONVERTING, tmp_path)
    assert "exit code 3" in ended.message
    assert "'convert onnx'" in ended.message
    assert "os._exit" in ended.hint
    killed = crash_failure("onnx", CRASH, CONVERTING, tmp_path)
    assert str(tmp_path) not in ended.hint + killed.hint
    error = error_before_first_step(ProcessEnd(code=0), (), tmp_path)
    assert "'load model'" in error.message
    (tmp_path / "onnx.log").write_text("words\n")
    logged = crash_failure("onnx", ProcessEnd(code=3), CONVERTING, tmp_path)
    assert str(tmp_path) in logged.hint
    assert "words" in logged.message


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    found = crash_failure("onnx", CRASH, CONVERTING, tmp_path / "logs")
    assert f"disk of {tmp_path}" in found.message
    assert " -o" in found.hint


def test_the_end_of_the_log_of_a_step_starts_at_a_fatal_error(tmp_path: Path) -> None:
    (tmp_path / "worker.log").write_text("later, and of no step\n")
    text = "noise\nFatal Python error: Aborted\n\nCurrent thread 0x1\n  File a, line 1\n  File b\n"
    (tmp_path / "onnx.log").write_text(text)
    assert last_words(tmp_path) == ("Fatal Python error: Aborted", "File a, line 1", "File b")


def test_the_frames_are_those_of_the_thread_that_failed(tmp_path: Path) -> None:
    threads = "Thread 0x2\n  File wait, line 3\n\nCurrent thread 0x1\n  File a, line 1\n"
    (tmp_path / "onnx.log").write_text(f"Fatal Python error: Aborted\n\n{threads}")
    assert last_words(tmp_path) == ("Fatal Python error: Aborted", "File a, line 1")


def test_a_log_of_an_earlier_run_is_not_quoted(tmp_path: Path) -> None:
    log = tmp_path / "onnx.log"
    log.write_text("of an earlier run\n")
    ended = replace(CRASH, began=log.stat().st_mtime + 10)
    message = crash_failure("onnx", ended, CONVERTING, tmp_path).message
    assert "earlier" in crash_failure("onnx", CRASH, CONVERTING, tmp_path).message
    assert "earlier" not in message
