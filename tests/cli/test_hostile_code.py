"""What a model's own code may do to the process that runs it: how it is told, what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

Ran = subprocess.CompletedProcess[str]
HEAD = "import os, signal, sys, time, torch\nfrom torch import nn\n"
FACTORIES = {
    "interrupt": "def build():\n    raise KeyboardInterrupt",
    "exit": "def build():\n    sys.exit('no licence for this model')",
    "exit_forward": "class build(nn.Linear):\n"
    "    def __init__(self): super().__init__(3, 2)\n"
    "    def forward(self, x): sys.exit('no licence for this model')",
    "generator": "def build():\n    raise GeneratorExit('of the model')",
    "generator_forward": "class build(nn.Linear):\n"
    "    def __init__(self): super().__init__(3, 2)\n"
    "    def forward(self, x): raise GeneratorExit('of the model')",
    "own_base": "class Odd(BaseException): pass\ndef build():\n    raise Odd('not caught')",
    "leaves": "class build(nn.Linear):\n"
    "    def __init__(self): super().__init__(3, 2)\n"
    "    def forward(self, x): os._exit(0)",
    "no_text": "class Bad(Exception):\n    def __str__(self): raise ValueError('no text')\n"
    "def build():\n    raise Bad",
    "surrogate": "def build():\n    raise ValueError('bad \\udcff name')",
    "itself": "def build():\n    net = nn.Linear(3, 2)\n    net.inner = net\n    return net",
    "fork": "def build():\n"
    "    if not os.fork():\n        time.sleep(0.3)\n    return nn.Linear(3, 2)",
    "fork_forward": "class build(nn.Linear):\n"
    "    def __init__(self): super().__init__(3, 2)\n"
    "    def forward(self, x):\n        os.fork()\n        return super().forward(x)",
    "gone": "def build():\n    os.rmdir(os.getcwd())\n    return nn.Linear(3, 2)",
    "daemon": "def build():\n"
    "    if not os.fork():\n        os.setsid()\n"
    "        if not os.fork():\n            os.close(0); os.closerange(3, 64); time.sleep(60)\n"
    "        os._exit(0)\n    return nn.Linear(3, 2)",
    "sleeps": "def build():\n    time.sleep(30)",
}
TOLD = {
    "interrupt": "KeyboardInterrupt",
    "exit": "no licence for this model",
    "exit_forward": "no licence for this model",
    "generator": "GeneratorExit",
    "generator_forward": "GeneratorExit",
    "own_base": "not caught",
    "no_text": "Bad",
    "surrogate": "bad \\udcff name",
    "itself": "contains itself",
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "nets.py").write_text(HEAD)
    for name, source in FACTORIES.items():
        (tmp_path / f"{name}.py").write_text(f"{HEAD}{source}\n")
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "a.pt")
    return tmp_path


def command(place: Path, name: str, *more: str) -> list[str]:
    given = ["--model", f"{name}:build", "--input", "x:float32[2,3]", "--to", "torchscript"]
    start = [sys.executable, "-P", "-m", "modelc", "export", str(place / "a.pt")]
    return [*start, *given, "-o", str(place / "out"), *more]


@pytest.fixture
def export(place: Path, surroundings: dict[str, str]) -> Callable[..., Ran]:
    def run(name: str, *more: str) -> Ran:
        cwd = place
        if name == "gone":
            cwd = place / "work"
            cwd.mkdir()
        return subprocess.run(
            command(place, name, *more),
            cwd=cwd,
            env={**surroundings, "PYTHONPATH": f"{surroundings['PYTHONPATH']}:{place}"},
            capture_output=True,
            check=False,
            text=True,
            timeout=100,
        )

    return run


@pytest.mark.slow
@pytest.mark.parametrize("isolate", ["--isolate", "--no-isolate"])
@pytest.mark.parametrize("name", list(TOLD))
def test_what_a_models_code_does_is_told_as_the_models(
    export: Callable[..., Ran], name: str, isolate: str
) -> None:
    ran = export(name, isolate)
    told = [line for line in ran.stderr.splitlines() if line.startswith("error:")]
    assert ran.returncode == 3, ran.stderr
    assert len(told) == 1
    assert TOLD[name] in told[0]


@pytest.mark.slow
@pytest.mark.parametrize("isolate", ["--isolate", "--no-isolate"])
def test_a_model_that_leaves_the_process_with_0_leaves_no_record(
    export: Callable[..., Ran], place: Path, isolate: str
) -> None:
    ran = export("leaves", isolate)
    assert ran.returncode == (3 if isolate == "--isolate" else 0)  # its own exit ends the command
    assert not list((place / "out").rglob("manifest.json"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_process_in_a_session_of_its_own_does_not_survive(
    export: Callable[..., Ran], place: Path
) -> None:
    ran = export("daemon", "--isolate")
    assert ran.returncode == 0, ran.stderr
    left = [one for one in Path("/proc").glob("[0-9]*/environ") if str(place).encode() in read(one)]
    assert left == []


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
@pytest.mark.parametrize("isolate", ["--isolate", "--no-isolate"])
def test_a_working_folder_that_goes_is_no_bug_of_modelc(
    export: Callable[..., Ran], isolate: str
) -> None:
    assert export("gone", isolate).returncode in (0, 2, 3)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("isolate", ["--isolate", "--no-isolate"])
def test_quick_signals_leave_no_empty_folder(
    place: Path, surroundings: dict[str, str], isolate: str
) -> None:
    process = subprocess.Popen(
        command(place, "sleeps", isolate),
        cwd=place,
        env={**surroundings, "PYTHONPATH": f"{surroundings['PYTHONPATH']}:{place}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while not list(place.glob("out/logs/checkpoint.log")) and time.monotonic() < until:
        time.sleep(0.05)
    for _ in range(12):
        process.send_signal(signal.SIGINT)
        time.sleep(0.004)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 130, told
    assert "Traceback" not in told
    assert not (place / "out").exists()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("wait", [0.03, 0.08, 0.15, 0.25])
def test_an_early_interrupt_shows_no_traceback(surroundings: dict[str, str], wait: float) -> None:
    code = "import os, sys, modelc.__main__ as m; os.write(1, b'.'); m.main()"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code, "targets"],
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    os.read(process.stdout.fileno(), 1)
    time.sleep(wait)
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)[1]
    assert "Traceback" not in told
    assert process.returncode in (0, 130, -signal.SIGINT)  # a shell calls both 130
