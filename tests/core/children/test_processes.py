"""Programs that talk, crash, hang or will not stop; the parent survives them."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import psutil
import pytest

from modelc.core.children.processes import (
    Deadline,
    OutputLog,
    ProcessEnd,
    ProcessSpec,
    capture_output,
    run_process,
)

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals are POSIX")
SOON = 15.0  # seconds on a slow machine; what hangs takes 60


def python(text: str, *arguments: str) -> ProcessSpec:
    return ProcessSpec(command=(sys.executable, "-c", text, *arguments), grace=0.3)


def is_gone(process: int) -> bool:
    try:
        return bool(psutil.Process(process).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def run(text: str) -> tuple[list[bytes], ProcessEnd]:
    lines: list[bytes] = []

    def keep(line: bytes) -> bool:
        lines.append(line)
        return False

    return lines, run_process(python(text), keep, log=OutputLog(echo=True))


def test_standard_output_comes_line_by_line() -> None:
    lines, end = run("print('one'); print('two', end='')")
    assert (lines, end.code) == ([b"one", b"two"], 0)


def test_standard_error_is_echoed_and_its_last_lines_are_kept(
    capfd: pytest.CaptureFixture[str],
) -> None:
    text = "import sys\nfor i in range(100): print('noise', i, file=sys.stderr)"
    lines, end = run(text)
    assert not lines
    assert (end.tail[-1], len(end.tail)) == ("noise 99", 40)
    assert capfd.readouterr().err.count("noise") == 100


def test_much_noise_on_both_does_not_block() -> None:
    text = "import sys\nfor i in range(20000): print('o' * 50); print('e' * 50, file=sys.stderr)"
    lines, end = run(text)
    assert (len(lines), end.code) == (20000, 0)


def test_a_crash_has_the_name_of_its_signal() -> None:
    _, end = run("import os; os.abort()")
    assert (end.code, end.signal_name) == (-signal.SIGABRT, "SIGABRT")
    assert ProcessEnd(code=3).name == "exit code 3"
    assert ProcessEnd(code=-63).name.startswith(("SIG", "signal "))


STUBBORN = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
print("up", flush=True)
time.sleep(60)
"""


def test_what_the_listener_raises_ends_the_process(tmp_path: Path) -> None:
    def refuse(_: bytes) -> bool:
        raise ValueError("no")

    began = time.monotonic()
    with pytest.raises(ValueError, match="no"):
        run_process(python(STUBBORN, str(tmp_path / "pid")), refuse)
    assert time.monotonic() - began < SOON
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


WILLING = """
import os, pathlib, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while os.read(0, 100): pass
pathlib.Path(sys.argv[1]).write_text("stopped")
"""


def test_the_end_of_its_input_asks_a_program_to_stop(tmp_path: Path) -> None:
    def interrupt(_: bytes) -> bool:
        raise KeyboardInterrupt

    program = ProcessSpec(
        command=(sys.executable, "-c", WILLING, str(tmp_path / "said")), grace=SOON
    )
    with pytest.raises(KeyboardInterrupt):
        run_process(program, interrupt)
    assert (tmp_path / "said").read_text() == "stopped"


HOLDER = """
import os, sys, time
if os.fork() == 0:
    print("kept", file=sys.stderr, flush=True)
    time.sleep(6)
    os._exit(0)
print("done", flush=True)
os._exit(7)
"""


def test_a_grandchild_that_holds_the_pipes_is_not_waited_for() -> None:
    began = time.monotonic()
    lines, end = run(HOLDER)
    assert (lines, end.code) == ([b"done"], 7)
    assert time.monotonic() - began < 5


def test_a_program_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    text = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid)); time.sleep(60)"
    )
    end = run_process(python(text), lambda _: False, watch=Deadline(2.0))
    assert end.overrun is not None
    assert "2 s" in end.overrun.text
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_a_request_that_nobody_reads_blocks_nobody() -> None:
    program = ProcessSpec(
        command=(sys.executable, "-c", "import time; time.sleep(60)"), request=b"x" * (1 << 20)
    )
    began = time.monotonic()
    end = run_process(program, lambda _: False, watch=Deadline(0.5))
    assert end.overrun is not None
    assert time.monotonic() - began < SOON


def test_a_program_is_asked_again_until_none() -> None:
    text = "for line in iter(input, 'end'): print(int(line) * 2, flush=True)"
    more: SimpleQueue[bytes | None] = SimpleQueue()
    lines: list[bytes] = []

    def ask_again(line: bytes) -> bool:
        lines.append(line)
        more.put(b"4\n" if len(lines) == 1 else b"end\n")
        return False

    end = run_process(replace(python(text), request=b"1\n", more=more), ask_again)
    assert (lines, end.code) == ([b"2", b"8"], 0)


def test_a_program_that_dies_leaves_no_writer_waiting() -> None:
    more: SimpleQueue[bytes | None] = SimpleQueue()
    began = time.monotonic()
    end = run_process(replace(python("raise SystemExit(3)"), more=more), lambda _: False)
    assert end.code == 3
    assert time.monotonic() - began < SOON


def test_a_short_program_is_read_with_its_errors() -> None:
    code = "import sys; print(input()); print('bad', file=sys.stderr); sys.exit(4)"
    end, printed = capture_output((sys.executable, "-c", code), text="given")
    assert end.code == 4
    assert sorted(printed.splitlines()) == ["bad", "given"]
