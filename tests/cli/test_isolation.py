"""The options of isolation, and what a signal to the command leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from modelc.cli.run_options import process_bounds
from modelc.core.errors import UsageError
from modelc.pipeline.call_options import CallOptions

MODULE = "modelc.tests.nets.crash_net"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """The checkpoint of the net that can die."""
    from safetensors.torch import save_file

    from modelc.tests.nets.crash_net import net

    save_file(net().state_dict(), tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors"


def command(weights: Path, *more: str) -> list[str]:
    """An export of the net."""
    model = ("--model", f"{MODULE}:net", "--input", "x:float32[batch=1..4,4]")
    return [sys.executable, "-m", "modelc", "export", str(weights), *model, "-o", "out", *more]


@pytest.fixture
def isolated(surroundings: dict[str, str]) -> dict[str, str]:
    """The environment of a user's command, which is isolated."""
    return {**surroundings, "MODELC_ISOLATE": "1"}


def test_bounds_are_read_as_people_write_them() -> None:
    bounds = process_bounds(CallOptions(timeout="10 min", memory="2GiB"))
    assert bounds is not None
    assert (bounds.timeout, bounds.memory) == (600.0, 2 << 30)


def test_a_bound_asks_for_a_process_of_its_own() -> None:
    assert process_bounds(CallOptions()) is None  # as this suite is run
    assert process_bounds(CallOptions(isolate=True)) is not None
    assert process_bounds(CallOptions(timeout="5")) is not None


@pytest.mark.parametrize(
    "given", [{"timeout": "5"}, {"memory": "8GB"}], ids=lambda given: next(iter(given))
)
def test_a_bound_without_a_process_to_hold_to_it_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="--no-isolate"):
        process_bounds(CallOptions(isolate=False, **given))


@pytest.mark.parametrize("given", [{"timeout": "soon"}, {"memory": "much"}, {"memory": "5"}])
def test_what_is_no_bound_is_refused(given: Any) -> None:
    with pytest.raises(UsageError):
        process_bounds(CallOptions(**given))


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("sent", "code", "told"),
    [
        (signal.SIGINT, 130, "error: interrupted"),
        (signal.SIGTERM, 143, "error: ended by SIGTERM"),
        (signal.SIGHUP, 129, "error: ended by SIGHUP"),
    ],
)
def test_a_signal_ends_the_run_and_leaves_what_was_proven(
    weights: Path, tmp_path: Path, isolated: dict[str, str], sent: int, code: int, told: str
) -> None:
    hang = ("--to", "onnx", "--to", "torchscript", "--patch", f"{MODULE}:untraced")
    process, kin = hanging(command(weights, *hang), tmp_path, isolated)
    process.send_signal(sent)
    assert process.wait(60) == code
    lines = (tmp_path / "stderr").read_text().splitlines()
    assert [line for line in lines if line.startswith(("error", "Trace"))] == [told]
    assert lines[-1].startswith("hint:")
    assert not alive(kin)
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {"logs", "manifest.json", "model.debug.json", "model.onnx", "worst"}


@pytest.mark.slow
def test_a_command_that_is_killed_takes_its_child_with_it(
    weights: Path, tmp_path: Path, isolated: dict[str, str]
) -> None:
    hang = ("--to", "torchscript", "--patch", f"{MODULE}:untraced")
    process, kin = hanging(command(weights, *hang), tmp_path, isolated)
    process.kill()
    process.wait()
    psutil.wait_procs(kin, timeout=20)
    assert not alive(kin)


def hanging(
    words: list[str], folder: Path, environment: dict[str, str]
) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    """The command once its conversion hangs, and the processes below it."""
    log = folder / "stderr"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=stream
        )
    mark = folder / "out" / "logs" / "torchscript.log"
    until = time.monotonic() + 300
    while not (mark.exists() and mark.read_bytes()) and time.monotonic() < until:
        time.sleep(0.2)
        assert process.poll() is None, log.read_text()
    return process, psutil.Process(process.pid).children(recursive=True)


def alive(processes: list[psutil.Process]) -> list[int]:
    """Which of them still run."""
    return [
        one.pid for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.slow
def test_a_crash_says_the_same_as_text_and_as_json(
    weights: Path, tmp_path: Path, isolated: dict[str, str]
) -> None:
    crash = ("--to", "torchscript", "--patch", f"{MODULE}:segfault", "--json", "-q")
    ran = subprocess.run(
        command(weights, *crash), cwd=tmp_path, env=isolated, capture_output=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (5, b"")
    document = json.loads(ran.stdout)
    assert document.pop("exit_code") == ran.returncode
    assert document == json.loads((tmp_path / "out" / "manifest.json").read_text())
