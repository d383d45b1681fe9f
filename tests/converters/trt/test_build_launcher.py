"""Builds in a child process: the double in the real child, and children that crash."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from modelc.converters.trt.build_launcher import BuildFunction, build_with_python
from modelc.converters.trt.engine_records import BuildRequest
from modelc.core.errors import LOGGED, ConversionError, ErrorCode, MissingError

from ...reasons import has_code

Requests = Callable[..., BuildRequest]
Children = Callable[..., BuildFunction]
SOON = 20.0  # seconds


@pytest.mark.parametrize("version", ["10.16", "11.4"])
def test_the_child_returns_its_build_and_progress_and_its_output_goes_to_the_log(
    request_of: Requests,
    tmp_path: Path,
    child: Children,
    version: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    progress: list[tuple[int, int]] = []
    built = build_with_python(
        request_of(), lambda *at: progress.append(at), grace=SOON, build=child(version=version)
    )
    assert built.tensorrt.startswith(version)
    assert (tmp_path / "model.engine").read_bytes() == b"ftrt-engine"
    assert progress == [(250, 1000), (500, 1000), (750, 1000), (1000, 1000)]
    assert "C++" in capfd.readouterr().err  # its standard output is in the log
    assert [path.name for path in tmp_path.iterdir()] == ["model.engine"]


def test_an_error_in_the_child_is_raised_unchanged(request_of: Requests, child: Children) -> None:
    with pytest.raises(ConversionError, match="everything") as caught:
        build_with_python(
            request_of(),
            lambda *_: None,
            grace=SOON,
            build=child(engine=None, complaints=["out of everything"]),
        )
    assert caught.value.hint == LOGGED


def test_a_native_crash_while_building_is_an_error_with_signal_and_last_lines(
    request_of: Requests, tmp_path: Path, child: Children
) -> None:
    crash = "os.write(2, b'Cask Error: illegal address\\n'); os.abort()"
    with pytest.raises(ConversionError) as caught:
        build_with_python(request_of(), lambda *_: None, grace=SOON, build=child(before=crash))
    assert "crashed with SIGABRT" in caught.value.message
    assert "Cask Error: illegal address" in caught.value.message
    assert caught.value.exit_code == 5
    assert not list(tmp_path.glob("*.engine"))


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_cancels_at_the_next_step(
    request_of: Requests, tmp_path: Path, child: Children
) -> None:
    def interrupt(done: int, _: int) -> None:
        if done == 1:
            threading.Timer(0.0, signal.raise_signal, (signal.SIGINT,)).start()

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        build_with_python(
            request_of(),
            interrupt,
            grace=SOON,
            build=child(steps=1000, pause=0.01),
        )
    assert time.monotonic() - began < 8  # the whole build takes 10 s, the grace period is 20 s
    assert not list(tmp_path.glob("*.engine"))


def test_without_a_device_the_real_child_is_an_error(request_of: Requests) -> None:
    from modelc.converters.trt.trt_installation import query_driver

    if query_driver().devices:
        pytest.skip("this host has a device")
    with pytest.raises(MissingError, check=has_code(ErrorCode.NO_DEVICE)):
        build_with_python(request_of(), lambda *_: None, grace=SOON)


def test_a_child_that_exits_without_a_result_is_an_error(
    request_of: Requests, child: Children
) -> None:
    leave = "os.write(2, b'gave up'); os._exit(3)"
    with pytest.raises(ConversionError) as caught:
        build_with_python(request_of(), lambda *_: None, build=child(before=leave))
    assert "3" in caught.value.message
    assert "gave up" in caught.value.message


def test_an_unexpected_exception_is_an_error_with_its_traceback_in_the_log(
    request_of: Requests, child: Children, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConversionError, match="ZeroDivisionError"):
        build_with_python(request_of(), lambda *_: None, build=child(before="1 / 0"))
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="POSIX paths")
def test_a_missing_interpreter_is_named(request_of: Requests) -> None:
    with pytest.raises(MissingError, check=has_code(ErrorCode.NOT_INSTALLED, naming="/no/python")):
        build_with_python(request_of(), lambda *_: None, python=("/no/python",))
