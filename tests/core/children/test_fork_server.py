"""A child of the fork server is what a new process is, and nothing passes from one to the next."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from modelc.core.children import fork_server
from modelc.core.children.child_call import CallEnd, ChildCall, run_in_child
from modelc.core.children.fork_server import ForkServer
from modelc.core.children.limits import MIB, ChildWatchdog, ProcessLimits
from modelc.core.children.messages import Returned
from modelc.core.children.processes import Deadline, ProcessEnd, Watch

pytestmark = pytest.mark.skipif(not fork_server.IS_SUPPORTED, reason="the fork server is for Linux")
TYPES = (int, str, dict, type(None))


def call(
    server: ForkServer | None,
    function: Any,
    argument: object = None,
    *,
    watch: Watch | None = None,
    **more: Any,
) -> tuple[CallEnd, list[str]]:
    texts: list[str] = []
    asked = ChildCall(function=function, argument=argument, messages=TYPES, grace=0.3, **more)
    end = run_in_child(
        asked, lambda noted: texts.append(noted.text), watch=watch or Deadline(60.0), server=server
    )
    return end, texts


def value(server: ForkServer | None, function: Any, argument: object = None) -> dict[str, Any]:
    end, _ = call(server, function, argument)
    assert isinstance(end, Returned), end
    assert isinstance(end.value, dict)
    return end.value


@pytest.fixture
def server(faults: ModuleType) -> Iterator[ForkServer]:
    """A server that has nothing of a framework loaded."""
    del faults  # its folder is on the path before the server starts
    with ForkServer(("numpy",)) as one:
        yield one


@pytest.fixture
def with_torch(faults: ModuleType) -> Iterator[ForkServer]:
    del faults
    with ForkServer(("torch", "a_module_that_is_not_there")) as one:
        yield one
        assert one.failure == ""


def test_a_child_inherits_what_a_new_process_does(server: ForkServer, faults: ModuleType) -> None:
    assert value(server, faults.describe_process) == value(None, faults.describe_process)
    assert value(server, faults.read_mark)["parent"] == server.process


def test_torch_is_as_in_a_new_process(with_torch: ForkServer, faults: ModuleType) -> None:
    assert value(with_torch, faults.describe_torch) == value(None, faults.describe_torch)


def test_nothing_passes_from_one_child_to_the_next(
    with_torch: ForkServer, faults: ModuleType, tmp_path: Path
) -> None:
    functions = (faults.describe_process, faults.describe_torch)
    before = [value(with_torch, one) for one in functions]
    end, _ = call(with_torch, faults.leak_everything, str(tmp_path))
    assert isinstance(end, Returned), end
    assert [value(with_torch, one) for one in functions] == before


def test_children_draw_different_numbers(with_torch: ForkServer, faults: ModuleType) -> None:
    one, other = (value(with_torch, faults.draw_numbers) for _ in range(2))
    assert all(one[name] != other[name] for name in ("python", "numpy", "torch"))


def test_others_see_the_mark_of_a_child(server: ForkServer, faults: ModuleType) -> None:
    marks = [value(server, faults.read_mark) for _ in range(2)]
    assert all(mark["seen"] == [f"MODELC_WORKER={mark['own']}"] for mark in marks)
    assert marks[0]["own"] != marks[1]["own"]


def test_what_leaves_the_tree_without_a_new_program_is_ended(
    server: ForkServer, faults: ModuleType
) -> None:
    end, texts = call(server, faults.escape)
    assert isinstance(end, Returned)
    assert not psutil.pid_exists(int(texts[0])) or (
        psutil.Process(int(texts[0])).status() == psutil.STATUS_ZOMBIE
    )


@pytest.mark.parametrize(
    "change",
    ["variable", "folder of modules", "absent module", "umask", "limit", "priority", "threads"],
)
def test_another_start_is_for_a_new_process(
    server: ForkServer, faults: ModuleType, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    ours = value(server, faults.read_mark)["parent"]
    assert ours == server.process
    threads = None
    with monkeypatch.context() as patch:
        if change == "variable":
            patch.setenv("CUDA_VISIBLE_DEVICES", "7")
        elif change == "folder of modules":
            patch.syspath_prepend("/nowhere")
        elif change == "absent module":
            patch.setitem(__import__("sys").modules, "absent_module", None)
        elif change == "threads":
            threads = 1
        umask = os.umask(0o077) if change == "umask" else None
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        if change == "limit":
            resource.setrlimit(resource.RLIMIT_NOFILE, (limits[0] - 1, limits[1]))
        patch.setattr(os, "getpriority", lambda *_: 3 if change == "priority" else 0)
        try:
            end, _ = call(server, faults.read_mark, threads=threads)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            if umask is not None:
                os.umask(umask)
    assert isinstance(end, Returned)
    assert isinstance(end.value, dict)
    assert end.value["parent"] == os.getpid()
    assert value(server, faults.read_mark)["parent"] == ours


def test_the_working_folder_may_change(
    server: ForkServer, faults: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    value(server, faults.read_mark)
    monkeypatch.chdir(tmp_path)
    assert value(server, faults.describe_process)["folder"] == str(tmp_path)


def test_a_child_that_changes_what_libraries_import_begins_again(
    with_torch: ForkServer, faults: ModuleType
) -> None:
    for what in faults.CHANGES:
        end, texts = call(with_torch, faults.change_before_libraries_load, what)
        assert isinstance(end, Returned), (what, end)
        assert isinstance(end.value, dict)
        assert (end.value["parent"], texts) == (os.getpid(), ["went on"]), what
    end, _ = call(with_torch, faults.change_before_libraries_load, "nothing")
    assert isinstance(end, Returned)
    assert isinstance(end.value, dict)
    assert end.value["parent"] == with_torch.process


def test_a_child_outlives_the_server(server: ForkServer, faults: ModuleType) -> None:
    assert call(server, faults.kill_the_server) == (Returned(value={"value": 5}), ["alive"])
    first = value(server, faults.read_mark)["parent"]
    assert first == os.getpid()  # a new process, as the server is gone
    assert value(server, faults.read_mark)["parent"] == server.process  # that of another server
    assert server.failure == ""


def test_a_server_that_keeps_failing_is_not_asked_again(
    server: ForkServer, faults: ModuleType
) -> None:
    for number in range(3):
        server.start()
        assert (server.process is not None, bool(server.failure)) == (True, False), number
        assert value(server, faults.kill_the_server) == {"value": 5}
        assert value(server, faults.read_mark)["parent"] == os.getpid()  # a new process
    server.start()
    assert (server.process, bool(server.failure)) == (None, True)


def test_a_call_without_descriptors_leaves_the_server_to_the_others(
    server: ForkServer, faults: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = value(server, faults.read_mark)["parent"]
    real, left = socket.socketpair, [OSError(errno.EMFILE, "Too many open files")]
    monkeypatch.setattr(
        "socket.socketpair", lambda *a: real(*a) if not left else _raise(left.pop())
    )
    assert value(server, faults.read_mark)["parent"] == os.getpid()
    assert value(server, faults.read_mark)["parent"] == ours


def test_a_fork_that_the_system_refuses_ends_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    from modelc.core.children.fork_main import _Server

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr("os.fork", lambda: _raise(OSError(errno.EAGAIN, "no more processes")))
    serving = _Server(requests=ours, environment={}, mark=None)  # type: ignore[arg-type]  # unused
    assert serving._fork(theirs)
    assert ours.recv(100) == b"refused no more processes"
    assert not serving.children
    ours.close()


def _raise(error: OSError) -> Any:
    raise error


def test_a_child_that_dies_after_the_server_is_noticed(
    server: ForkServer, faults: ModuleType
) -> None:
    end, _ = call(server, faults.kill_the_server_and_fail)
    assert isinstance(end, ProcessEnd)
    assert end.code != 0


def test_a_server_that_cannot_start_is_replaced_by_new_processes(
    faults: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "_START_CODE", "import os; os._exit(9)")
    with ForkServer(()) as server:
        assert value(server, faults.read_mark)["parent"] == os.getpid()
        assert "9" in server.failure


def test_a_module_that_starts_a_thread_is_not_forked(
    faults: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
    (tmp_path / "with_a_thread.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with ForkServer(("with_a_thread",)) as server:
        assert value(server, faults.read_mark)["parent"] == os.getpid()
        assert "1 threads" in server.failure


def test_a_module_that_opens_a_gpu_is_not_forked(
    faults: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = tmp_path / "libcuda.so.1"
    driver.write_bytes(b"\0" * 4096)
    text = f"import mmap\nf = open({str(driver)!r}, 'rb')\n"
    text += "held = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)\n"
    (tmp_path / "with_a_gpu.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with ForkServer(("with_a_gpu",)) as server:
        assert value(server, faults.read_mark)["parent"] == os.getpid()
        assert "libcuda.so" in server.failure


def test_the_memory_limit_ends_a_forked_child(
    with_torch: ForkServer, faults: ModuleType, tmp_path: Path
) -> None:
    watch = ChildWatchdog(ProcessLimits(memory=256 * MIB, timeout=60.0), tmp_path)
    end, _ = call(with_torch, faults.fill_memory, watch=watch)
    assert isinstance(end, ProcessEnd)
    assert end.code == -signal.SIGKILL
    assert end.overrun is not None
    assert "--memory" in end.overrun.text
    assert isinstance(call(with_torch, faults.double, 2)[0], Returned)


def test_threads_may_use_one_server(server: ForkServer, faults: ModuleType) -> None:
    found: list[CallEnd] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(call(server, faults.double, n)[0]))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = sorted(end.value for end in found if isinstance(end, Returned))  # type: ignore[type-var]
    assert numbers == [2 * n for n in range(8)]


def test_the_server_ends_with_its_context(faults: ModuleType) -> None:
    with ForkServer(()) as server:
        value(server, faults.read_mark)
        process = psutil.Process(server.process)
        started = [process, *process.children(recursive=True)]
    until = time.monotonic() + 10.0
    while any(map(_runs, started)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(_runs, started))
    assert value(server, faults.read_mark)["parent"] == os.getpid()


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
