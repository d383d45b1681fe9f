"""A process that talks, crashes, hangs or will not stop; the parent survives it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from modelc.converters.trt.supervised_process import ProcessTimeouts, run_supervised

SOON = ProcessTimeouts(stop=0.3, terminate=0.3)


def python(text: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", text, *arguments]


def heard_from(text: str) -> tuple[list[str], int, tuple[str, ...]]:
    heard: list[str] = []
    ended = run_supervised(python(text), heard.append, SOON)
    return heard, ended.code, ended.tail


def test_standard_output_is_heard_line_by_line() -> None:
    heard, code, _ = heard_from("print('one'); print('two', end='')")
    assert (heard, code) == (["one", "two"], 0)


def test_standard_error_goes_to_ours_and_its_last_lines_are_kept(
    capfd: pytest.CaptureFixture[str],
) -> None:
    heard, _, tail = heard_from(
        "import sys\nfor i in range(100): print('noise', i, file=sys.stderr)"
    )
    assert not heard
    assert tail[-1] == "noise 99"
    assert len(tail) == 40
    assert capfd.readouterr().err.count("noise") == 100


def test_much_noise_on_both_does_not_block() -> None:
    text = "import sys\nfor i in range(20000): print('o' * 50); print('e' * 50, file=sys.stderr)"
    heard, code, _ = heard_from(text)
    assert (len(heard), code) == (20000, 0)


def test_bytes_that_are_no_text_are_heard_all_the_same() -> None:
    heard, _, _ = heard_from("import os; os.write(1, b'\\xff\\n')")
    assert heard == ["\ufffd"]


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX")
def test_a_crash_is_told_by_its_signal() -> None:
    ended = run_supervised(python("import os; os.abort()"), lambda _: None, SOON)
    assert (ended.code, ended.signal_name) == (-signal.SIGABRT, "SIGABRT")


def pid_of(file: Path) -> int:
    return int(file.read_text())


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


STUBBORN = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
print("up", flush=True)
time.sleep(60)
"""


WILLING = """
import os, pathlib, sys
print("up", flush=True)
while os.read(0, 100): pass
pathlib.Path(sys.argv[1]).write_text("stopped by itself")
"""


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_stops_the_process_and_goes_on(tmp_path: Path) -> None:
    def interrupt(_: str) -> None:
        threading.Timer(0.1, signal.raise_signal, (signal.SIGINT,)).start()

    with pytest.raises(KeyboardInterrupt):
        run_supervised(python(WILLING, str(tmp_path / "said")), interrupt, SOON_BUT_PATIENT)
    assert (tmp_path / "said").read_text() == "stopped by itself"


SOON_BUT_PATIENT = ProcessTimeouts(stop=10.0)


def test_what_the_listener_raises_ends_the_process_too(tmp_path: Path) -> None:
    def refuse(_: str) -> None:
        raise ValueError("no")

    began = time.monotonic()
    with pytest.raises(ValueError, match="no"):
        run_supervised(python(STUBBORN, str(tmp_path / "pid")), refuse, SOON)
    assert time.monotonic() - began < 15  # however stubborn it is
    assert gone(pid_of(tmp_path / "pid"))
