"""A program that crashes, hangs or answers nonsense is a failed run, and nothing else."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from modelc.core.contract import Feed
from modelc.core.errors import RunnerError
from modelc.runtimes import program_runner
from modelc.runtimes.program_runner import ProgramCall, ProgramRunner, Records
from modelc.runtimes.tensor_names import PortNames

pytestmark = pytest.mark.skipif(os.name == "nt", reason="scripts are POSIX")

# A program in Python, which returns its only input; a test replaces one of the names in capitals.
DOUBLE = """#!{python}
import os, pathlib, signal, struct, sys, time
model, description = sys.argv[1:3]
record = [b"input", b"8", b"x"], [b"output", b"8", b"y"]
pack = lambda number: struct.pack("<Q", number)
fields = lambda row: pack(len(row)) + b"".join(pack(len(one)) + one for one in row)
pathlib.Path(description).write_bytes(pack(2) + b"".join(map(fields, record)))
{OPENING}
print("ready", flush=True)
for line in sys.stdin:
    serial, given, made = line.rstrip("\\n").split("\\t")
    content = pathlib.Path(given).read_bytes()
    answer = "ok " + serial
    {FEED}
    pathlib.Path(made).write_bytes(content)
    {WRITTEN}
    print(answer, flush=True)
"""
FEED: Feed = {"x": np.arange(3, dtype=np.float32)}


def name_ports(records: Records) -> PortNames:
    assert records == (("input", "8", "x"), ("output", "8", "y"))
    return PortNames(inputs=("x",), dtypes=("float32",), outputs=("y",))


Opens = Callable[..., ProgramRunner]


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., ProgramCall]:
    def make(seconds: float = 15.0, **parts: str) -> ProgramCall:
        texts = {"OPENING": "pass", "FEED": "pass", "WRITTEN": "pass", **parts}
        path = tmp_path / "double"
        path.write_text(DOUBLE.format(python=sys.executable, **texts))
        path.chmod(0o700)
        return ProgramCall(program=path, model=tmp_path / "model", seconds=seconds)

    return make


@contextmanager
def running(call: ProgramCall) -> Iterator[ProgramRunner]:
    with ProgramRunner(call, name_ports) as runner:
        yield runner


def test_one_process_answers_several_feeds(program: Callable[..., ProgramCall]) -> None:
    with running(program()) as runner:
        outputs = [runner.run({"x": np.full(2, value, np.float32)})["y"] for value in (1, 2)]
    assert [array.tolist() for array in outputs] == [[1, 1], [2, 2]]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"FEED": "os.kill(os.getpid(), signal.SIGSEGV)"}, "SIGSEGV"),
        ({"FEED": "sys.exit(3)"}, "exit code 3"),
        ({"FEED": "print('noise', flush=True)"}, "noise"),
        ({"FEED": "answer = 'error ' + serial + ' no such size'"}, "no such size"),
        ({"FEED": r"answer = 'error ' + serial + ' a file\x1f at frame 1'"}, "^a file$"),
        ({"FEED": "answer = 'ok 0'"}, "ok 0"),
        ({"FEED": "content = content[:-1]"}, "cannot be read"),
        ({"FEED": "content = b'garbage'"}, "cannot be read"),
        ({"WRITTEN": "os.unlink(made)"}, "wrote no"),
        ({"OPENING": "os.kill(os.getpid(), signal.SIGABRT)"}, "SIGABRT"),
        ({"OPENING": "print('error 0 not a model', flush=True); sys.exit()"}, "not a model"),
        ({"OPENING": "pathlib.Path(description).write_bytes(b'x')"}, "cannot be read"),
    ],
)
def test_what_a_program_does_wrong_is_said(
    program: Callable[..., ProgramCall], fault: dict[str, str], said: str
) -> None:
    with pytest.raises(RunnerError, match=said), running(program(**fault)) as runner:
        runner.run(FEED)


def test_a_program_that_hangs_is_ended(program: Callable[..., ProgramCall]) -> None:
    hangs = program(seconds=0.3, FEED="time.sleep(600)")
    with running(hangs) as runner, pytest.raises(RunnerError, match="no answer"):
        runner.run(FEED)


def test_a_reply_to_an_earlier_feed_is_not_taken(program: Callable[..., ProgramCall]) -> None:
    late = program(FEED="answer = 'ok ' + str(max(1, int(serial) - 1))")
    with running(late) as runner:
        runner.run(FEED)
        with pytest.raises(RunnerError, match="ok 1"):
            runner.run(FEED)


def test_outputs_that_are_too_large_are_not_read(
    program: Callable[..., ProgramCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_runner, "MAX_OUTPUT_BYTES", 1 << 20)
    large = program(WRITTEN="os.truncate(made, 1 << 21)")
    with running(large) as runner, pytest.raises(RunnerError, match="more than"):
        runner.run(FEED)


def test_nothing_is_left_of_a_program(
    program: Callable[..., ProgramCall], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with pytest.raises(RunnerError), running(program(FEED="sys.exit(1)")) as runner:
        runner.run(FEED)
    assert list((tmp_path / "temporary").iterdir()) == []
