"""A function called in a child: whatever the child does, the parent gets an end, and soon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from modelc.core.children import fork_server
from modelc.core.children.child_call import CallEnd, ChildCall, OnMessage
from modelc.core.children.child_call import run_in_child as run_in_some_child
from modelc.core.children.fork_server import ForkServer
from modelc.core.children.limits import MIB, ChildWatchdog, ProcessLimits, SuspensionWatch
from modelc.core.children.messages import (
    ChildBugError,
    Interrupted,
    Returned,
    StoppedByError,
    rebuild_error,
)
from modelc.core.children.processes import Deadline, OutputLog, ProcessEnd, Watch
from modelc.core.errors import ErrorCode, MissingError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals are POSIX")
SOON = 20.0  # seconds on a slow machine; what hangs takes 600
_servers: list[ForkServer] = []


@pytest.fixture(autouse=True, params=["new", "forked"])
def _origin(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test twice: in new processes, and in children of a fork server."""
    if request.param == "new":
        yield
        return
    if not fork_server.IS_SUPPORTED:
        pytest.skip("the fork server is for Linux")
    with ForkServer(("numpy",)) as server:
        _servers[:] = [server]
        try:
            yield
        finally:
            _servers.clear()
        assert server.failure == ""


def run_in_child(asked: ChildCall, on_message: OnMessage, **more: Any) -> CallEnd:
    """Call it as the test's parameter says."""
    return run_in_some_child(asked, on_message, server=next(iter(_servers), None), **more)


def call(
    function: Callable[..., object],
    argument: object = None,
    *,
    messages: tuple[type, ...] = (int, str, dict, type(None)),
    grace: float = 0.3,
    watch: Watch | None = None,
    log: OutputLog | None = None,
) -> tuple[CallEnd, list[str]]:
    """Call it; how it ended and the texts of what it sent, within SOON."""
    texts: list[str] = []
    began = time.monotonic()
    asked = ChildCall(function=function, argument=argument, messages=messages, grace=grace)
    watch = watch or Deadline(SOON)
    end = run_in_child(asked, lambda noted: texts.append(noted.text), log=log, watch=watch)
    assert time.monotonic() - began < SOON + 5
    return end, texts


def is_gone(process: int) -> bool:
    try:
        return bool(psutil.Process(process).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_a_value_comes_back_after_what_was_sent_before_it(faults: ModuleType) -> None:
    assert call(faults.double, 4) == (Returned(value=8), ["doubling 4"])


def test_a_flood_of_messages_and_a_large_value_lose_nothing(faults: ModuleType) -> None:
    end, texts = call(faults.tell_much, 10_000)
    assert texts == [str(number) for number in range(10_000)]
    assert end == Returned(value="x" * MIB)


def test_an_error_comes_back_with_all_its_fields(faults: ModuleType) -> None:
    end, _ = call(faults.lack)
    assert isinstance(end, StoppedByError)
    error = rebuild_error(end)
    assert isinstance(error, MissingError)
    assert (error.code, error.option) == (ErrorCode.NO_EFFECT, "device")
    assert error.hint == "buy one"
    assert "child_faults.py" in str(error.__cause__)


def test_an_unexpected_exception_comes_back_as_it_was(faults: ModuleType) -> None:
    end, _ = call(faults.fail)
    assert isinstance(end, StoppedByError)
    error = rebuild_error(end)
    assert (type(error), repr(error)) == (ChildBugError, "KeyError('gone')")


def test_a_value_of_a_type_that_was_not_announced_is_not_believed(faults: ModuleType) -> None:
    end, _ = call(faults.double, 4, messages=())
    assert isinstance(end, ProcessEnd)
    assert end.code == 0


@pytest.mark.parametrize(
    ("function", "argument", "code"),
    [
        ("segfault", None, -signal.SIGSEGV),
        ("leave", 0, 0),
        ("leave", 3, 3),
        ("kill_itself", signal.SIGKILL, -signal.SIGKILL),  # as the kernel does out of memory
        ("kill_itself", signal.SIGABRT, -signal.SIGABRT),
        ("close_pipes", "leave", 0),
        ("close_pipes", "hang", -signal.SIGKILL),
        ("cut_a_message", None, 0),
        ("leave_a_grandchild", 0, 0),
        ("leave_a_grandchild", 3, 3),
    ],
)
def test_a_child_that_ends_without_a_value_is_a_dead_child(
    faults: ModuleType, function: str, argument: object, code: int
) -> None:
    end, _ = call(getattr(faults, function), argument)
    assert isinstance(end, ProcessEnd)
    assert (end.code, end.overrun) == (code, None)


def test_a_segmentation_fault_leaves_its_traceback_in_the_log(faults: ModuleType) -> None:
    end, _ = call(faults.segfault)
    assert isinstance(end, ProcessEnd)
    assert (end.signal_name, end.name) == ("SIGSEGV", "SIGSEGV")
    assert any("child_faults.py" in line for line in end.tail)


def test_a_suspended_child_is_ended(faults: ModuleType) -> None:
    end, _ = call(faults.kill_itself, signal.SIGSTOP, watch=SuspensionWatch(1.0))
    assert isinstance(end, ProcessEnd)
    assert end.overrun is not None
    assert "SIGSTOP" in end.overrun.text


def test_every_child_is_watched_for_suspension(
    faults: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SuspensionWatch.__init__, "__defaults__", (1.0,))
    end, _ = call(faults.kill_itself, signal.SIGSTOP)
    assert isinstance(end, ProcessEnd)
    assert end.overrun is not None
    assert "SIGSTOP" in end.overrun.text


def test_a_grandchild_in_another_session_does_not_survive(faults: ModuleType) -> None:
    _, texts = call(faults.leave_a_grandchild, 0)
    assert is_gone(int(texts[0]))


def test_what_a_child_started_ends_with_it(faults: ModuleType) -> None:
    end, _ = call(faults.start_and_return)
    assert isinstance(end, Returned)
    assert isinstance(end.value, int)
    assert is_gone(end.value)


def test_lines_that_are_no_messages_go_to_the_log(faults: ModuleType) -> None:
    log = OutputLog()
    end, texts = call(faults.write_garbage, log=log)
    assert (end, texts) == (Returned(value=5), [])
    assert log.content().startswith(b"chatter\n")


def test_much_noise_does_not_block_and_its_ends_are_kept(
    faults: ModuleType, tmp_path: Path
) -> None:
    log = OutputLog()
    end, _ = call(faults.shout, 4 * MIB, log=log)
    assert end == Returned(value=4 * MIB)
    log.append_to(tmp_path / "child.log")
    kept = (tmp_path / "child.log").read_bytes()
    assert (kept[:6], kept[-5:], len(kept) < MIB) == (b"first\n", b"last\n", True)
    assert b"bytes are left out here" in kept


def test_a_log_without_content_makes_no_file(tmp_path: Path) -> None:
    OutputLog().append_to(tmp_path / "child.log")
    assert not list(tmp_path.iterdir())


def test_a_child_imports_from_where_its_parent_does(
    faults: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "blocked_module", None)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    end, _ = call(faults.describe_surroundings)
    assert isinstance(end, Returned)
    assert isinstance(end.value, dict)
    assert end.value["path"] == sys.path
    assert "blocked_module" in end.value["absent"]
    assert (end.value["wait"], end.value["stdin"]) == ("PASSIVE", "")


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_parent_lets_the_child_clean_up(faults: ModuleType, tmp_path: Path) -> None:
    def interrupt(_: object) -> None:
        threading.Timer(0.1, signal.raise_signal, (signal.SIGINT,)).start()

    asked = ChildCall(function=faults.stop_when_asked, argument=str(tmp_path / "said"), grace=SOON)
    with pytest.raises(KeyboardInterrupt):
        run_in_child(asked, interrupt)
    assert (tmp_path / "said").read_text() == "cleaned up"


@pytest.mark.parametrize("function", ["ignore_stop", "hang_in_native_code"])
def test_a_child_that_does_not_stop_is_killed(faults: ModuleType, function: str) -> None:
    pids: list[int] = []

    def refuse(noted: object) -> None:
        pids.append(int(noted.text))  # type: ignore[attr-defined]
        raise ValueError("no")

    asked = ChildCall(function=getattr(faults, function), argument=None, grace=0.3)
    began = time.monotonic()
    with pytest.raises(ValueError, match="no"):
        run_in_child(asked, refuse)
    assert time.monotonic() - began < SOON
    assert is_gone(pids[0])


def test_a_signal_to_the_child_alone_interrupts_it(faults: ModuleType, tmp_path: Path) -> None:
    def terminate(_: object) -> None:
        if _servers:
            for child in psutil.Process(_servers[0].process).children():
                child.terminate()  # the server's guardian, too, which ignores it
            return
        for child in psutil.Process().children():
            if "child_main" in " ".join(child.cmdline()):
                child.terminate()

    asked = ChildCall(
        function=faults.stop_when_asked,
        argument=str(tmp_path / "said"),
        messages=(type(None),),
    )
    assert run_in_child(asked, terminate) == Interrupted()


PARENT = """
import sys
sys.path[:] = {path!r}
import child_faults
from modelc.core.children.child_call import ChildCall, run_in_child
from modelc.core.children.fork_server import ForkServer
call = ChildCall(function=child_faults.{function}, argument=None, grace=0.5)
server = ForkServer(()) if {forks} else None
run_in_child(call, lambda noted: print(noted.text, flush=True), server=server)
"""


@pytest.mark.parametrize("function", ["ignore_stop", "hang_in_native_code"])
@pytest.mark.usefixtures("faults")
def test_a_child_whose_parent_was_killed_ends(function: str) -> None:
    code = PARENT.format(path=sys.path, function=function, forks=bool(_servers))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not is_gone(child)
        parent.kill()
    until = time.monotonic() + SOON
    while not is_gone(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert is_gone(child)


@pytest.mark.parametrize("limits", [ProcessLimits(timeout=1.0), ProcessLimits(memory=MIB)])
def test_a_limit_ends_the_child(faults: ModuleType, limits: ProcessLimits, tmp_path: Path) -> None:
    end, _ = call(faults.ignore_stop, watch=ChildWatchdog(limits, tmp_path))
    assert isinstance(end, ProcessEnd)
    assert end.code == -signal.SIGKILL
    assert end.overrun is not None


def test_a_watch_that_stops_the_call_ends_the_child(faults: ModuleType, tmp_path: Path) -> None:
    limits = ProcessLimits(stop=lambda: True)
    with pytest.raises(KeyboardInterrupt):
        call(faults.ignore_stop, watch=ChildWatchdog(limits, tmp_path))


def test_an_interpreter_that_is_not_there_is_an_os_error(faults: ModuleType) -> None:
    asked = ChildCall(function=faults.double, argument=1, python=("/no/python",))
    with pytest.raises(OSError, match="/no/python"):
        run_in_child(asked, lambda _: None)
