"""The parts of isolation by themselves, without a framework."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from modelc.core.errors import ConversionError, MissingError, RunnerError, UsageError
from modelc.core.events import Advanced, Entered, Finished, Noted, Started
from modelc.pipeline.isolation.child_process import ChildDeath, WorkerLog
from modelc.pipeline.isolation.ipc import (
    ChildBugError,
    Message,
    decode_message,
    describe_error,
    encode_message,
    rebuild_error,
)
from modelc.pipeline.isolation.supervisor import crash_failure, error_before_first_step, last_words
from modelc.pipeline.isolation.watchdog import (
    MIB,
    ChildWatchdog,
    ProcessLimits,
    end_process,
    memory_of,
)

EVENTS: list[Message] = [
    Started(step="a\nb"),
    Advanced(step="a", done=1, total=2),
    Noted(text="né", warning=True),
    Finished(step="a", passed=False, seconds=0.5, detail="x"),
    Entered(artifact="onnx"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_crosses_as_one_line(event: Message) -> None:
    line = encode_message(event)
    assert line.count(b"\n") == 1
    assert decode_message(line) == event


@pytest.mark.parametrize("line", [b"", b"{}", b'["Unknown", {}]', b'["Started", {}]', b"\xff"])
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="no message"):
        decode_message(line)


def test_an_error_of_a_class_below_ours_crosses_as_ours() -> None:
    class DeeperError(MissingError):
        pass

    found = rebuild_error(describe_error(DeeperError("no device", hint="buy one")))
    assert type(found) is MissingError
    assert isinstance(found, MissingError)
    assert (found.message, found.hint) == ("no device", "buy one")


def test_a_bug_crosses_with_what_it_was() -> None:
    found = rebuild_error(describe_error(KeyError("gone")))
    assert isinstance(found, ChildBugError)
    assert repr(found) == "KeyError('gone')"


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("convert onnx (export)", ConversionError),
        ("quantize onnx (nncf)", ConversionError),
        ("validate onnx", RunnerError),
        ("search onnx", RunnerError),
        ("time onnx-int8", RunnerError),
    ],
)
def test_the_exit_code_says_whether_it_was_made_or_run(
    title: str, kind: type[ConversionError | RunnerError], tmp_path: Path
) -> None:
    found = crash_failure(
        "onnx", ChildDeath(code=-signal.SIGSEGV), ["eager reference", title], tmp_path
    )
    assert found.exit_code == kind.exit_code


def test_a_death_without_words_names_no_empty_log(tmp_path: Path) -> None:
    (tmp_path / "onnx.log").touch()
    ended = crash_failure("onnx", ChildDeath(code=3), ["convert onnx"], tmp_path)
    assert "exit code 3 during 'convert onnx'; it printed nothing" in ended.message
    assert "os._exit" in ended.hint
    killed = crash_failure("onnx", ChildDeath(code=-signal.SIGSEGV), ["convert onnx"], tmp_path)
    assert str(tmp_path) not in ended.hint + killed.hint
    error = error_before_first_step(ChildDeath(code=0), [], tmp_path)
    assert "during 'the load of the model'; it printed nothing" in error.message
    (tmp_path / "onnx.log").write_text("words\n")
    said = crash_failure("onnx", ChildDeath(code=3), ["convert onnx"], tmp_path)
    assert said.hint == f"the whole text is in {tmp_path}"


def test_a_death_on_a_full_disk_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    found = crash_failure(
        "onnx", ChildDeath(code=-signal.SIGABRT), ["convert onnx"], tmp_path / "logs"
    )
    assert f"no space is left on the disk of {tmp_path}" in found.message
    assert found.hint == "make room there, or give a folder on another disk with -o"


def test_the_last_words_are_those_of_the_step_and_begin_at_a_fatal_error(tmp_path: Path) -> None:
    (tmp_path / "worker.log").write_text("later, and of no step\n")
    text = "noise\nFatal Python error: Aborted\n\nCurrent thread 0x1\n  File a, line 1\n  File b\n"
    (tmp_path / "onnx.log").write_text(text)
    assert last_words(tmp_path) == ("Fatal Python error: Aborted", "File a, line 1", "File b")


def test_the_log_of_a_worker_keeps_the_beginning_and_the_end(tmp_path: Path) -> None:
    read, write = os.pipe()
    log = WorkerLog(os.fdopen(read, "rb"))
    with os.fdopen(write, "wb") as stream:
        stream.write(b"first" + b"." * 3 * MIB + b"last")
    log.close(tmp_path)
    kept = (tmp_path / "worker.log").read_bytes()
    assert (kept[:5], kept[-4:], len(kept) < MIB) == (b"first", b"last", True)
    assert b"bytes are left out here" in kept


def test_a_worker_that_printed_nothing_leaves_no_log(tmp_path: Path) -> None:
    read, write = os.pipe()
    log = WorkerLog(os.fdopen(read, "rb"))
    os.close(write)
    log.close(tmp_path)
    assert not list(tmp_path.iterdir())


def test_logs_of_earlier_runs_do_not_count_as_chatter(tmp_path: Path) -> None:
    (tmp_path / "old.log").write_bytes(b"." * 2 * MIB)
    watch = ChildWatchdog(os.getpid(), ProcessLimits(chatter=MIB), tmp_path)
    assert watch.overrun() is None
    (tmp_path / "new.log").write_bytes(b"." * 2 * MIB)
    assert watch.overrun() is not None


def test_memory_is_that_of_the_whole_family() -> None:
    code = (
        "import time; held = bytearray(b'x') * (200 << 20); print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as grown:
        assert grown.stdout is not None
        grown.stdout.readline()
        alone, family = memory_of(grown.pid, 1 << 40), memory_of(os.getpid(), 1 << 40)
        grown.kill()
    assert alone is not None
    assert family is not None
    assert family > alone > 200 * MIB


def test_a_process_that_is_gone_holds_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert memory_of(gone.pid, 1) == 0


FAMILY = """
import os, subprocess, sys, time
parent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print(parent.pid, flush=True)
time.sleep(600)
"""


def test_ending_a_child_ends_what_it_started_also_in_groups_of_their_own() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    below = psutil.Process(int(child.stdout.readline()))
    end_process(child, grace=5.0)
    child.stdout.close()
    assert child.returncode == -signal.SIGTERM
    assert not below.is_running() or below.status() == psutil.STATUS_ZOMBIE


GUARDED = """
import ctypes, os, signal, sys
from modelc.pipeline.isolation.worker import start_guardian
signal.signal(signal.SIGTERM, lambda *_: None)
start_guardian(0, 0.5)
print("up", flush=True)
ctypes.PyDLL(None).sleep(ctypes.c_uint(600))  # holds the interpreter
ctypes.PyDLL(None).sleep(ctypes.c_uint(600))
"""


def test_a_run_whose_parent_is_gone_ends_though_it_hangs_in_native_code() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", GUARDED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    time.sleep(0.3)
    assert child.poll() is None
    child.stdin.close()
    assert child.wait(20) == -signal.SIGKILL
    child.stdout.close()


@pytest.mark.parametrize(
    "bounds", [{"timeout": 0.0}, {"timeout": float("inf")}, {"memory": 5}, {"threads": 0}]
)
def test_bounds_that_are_none_are_refused(bounds: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        ProcessLimits(**bounds)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("bounds", [{"timeout": 9.0}, {"memory": 1 << 30}])
def test_a_bound_that_the_system_cannot_keep_is_refused(
    monkeypatch: pytest.MonkeyPatch, bounds: dict[str, float]
) -> None:
    monkeypatch.setattr("modelc.pipeline.isolation.watchdog.os", SimpleNamespace(name="nt"))
    with pytest.raises(UsageError, match=f"--{next(iter(bounds))}"):
        ProcessLimits(**bounds)  # type: ignore[arg-type]
    assert ProcessLimits().timeout is None
