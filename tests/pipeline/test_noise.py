"""What frameworks print goes to a log, and the terminal is given back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from modelc.checkpoints.run_limits import WorkExceededError
from modelc.core.errors import CheckpointError
from modelc.pipeline.run_progress import redirect_output


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "step.log"


@contextmanager
def streams_of_the_terminal() -> Iterator[None]:
    """Python's streams as they are outside pytest: on the file descriptors 1 and 2."""
    with (
        open(1, "w", closefd=False) as out,
        open(2, "w", closefd=False) as err,
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        yield


def test_prints_go_to_the_log(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with streams_of_the_terminal(), redirect_output(log):
        print("to stdout")  # noqa: T201
        print("to stderr", file=sys.stderr)  # noqa: T201
    assert set(log.read_text().splitlines()) == {"to stdout", "to stderr"}
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("descriptor", [1, 2])
def test_output_of_native_code_goes_to_the_log(
    log: Path, capfd: pytest.CaptureFixture[str], descriptor: int
) -> None:
    with redirect_output(log):
        os.write(descriptor, b"native\n")
    assert log.read_text() == "native\n"
    assert capfd.readouterr() == ("", "")


def test_only_the_output_of_the_block_is_in_the_log(
    log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with streams_of_the_terminal():
        print("before")  # noqa: T201
        with redirect_output(log):
            print("inside")  # noqa: T201
        print("after")  # noqa: T201
    assert log.read_text() == "inside\n"
    assert capfd.readouterr().out == "before\nafter\n"


def test_warnings_go_to_the_log_even_where_they_are_errors(log: Path) -> None:
    code = (
        "import sys, warnings; from pathlib import Path\n"
        "from modelc.pipeline.run_progress import redirect_output\n"
        "with redirect_output(Path(sys.argv[1])):\n warnings.warn('gap-7')\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(log)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "UserWarning: gap-7" in log.read_text()
    assert (done.stdout, done.stderr) == ("", "")


def test_the_traceback_of_an_error_goes_to_the_log_and_the_error_is_raised(log: Path) -> None:
    with pytest.raises(ValueError, match="thing-7"), redirect_output(log):
        raise ValueError("thing-7")
    assert "Traceback" in log.read_text()
    assert "ValueError: thing-7" in log.read_text()


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("x"), ValueError),
        (KeyboardInterrupt(), (KeyboardInterrupt, CheckpointError)),
        (SystemExit(3), CheckpointError),  # of the user's code, as this test is
        (GeneratorExit("x"), CheckpointError),
        (BaseException("x"), CheckpointError),
        (WorkExceededError(), WorkExceededError),  # of modelc
    ],
)
def test_the_descriptors_are_given_back_after_an_error(
    log: Path,
    capfd: pytest.CaptureFixture[str],
    error: BaseException,
    raised: type[BaseException] | tuple[type[BaseException], ...],
) -> None:
    before = (os.fstat(1), os.fstat(2))
    with pytest.raises(raised), redirect_output(log):
        raise error
    assert (os.fstat(1), os.fstat(2)) == before
    os.write(1, b"seen\n")
    assert capfd.readouterr().out == "seen\n"


def test_no_descriptor_is_left_open(log: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(ValueError, match="x"), redirect_output(log):
            raise ValueError("x")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_log_is_appended_to(log: Path) -> None:
    for text in (b"one\n", b"two\n"):
        with redirect_output(log):
            os.write(1, text)
    assert log.read_text() == "one\ntwo\n"


def test_a_log_that_cannot_be_opened_leaves_the_terminal_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FileNotFoundError), redirect_output(tmp_path / "absent" / "step.log"):
        pass
    os.write(1, b"seen\n")
    assert capfd.readouterr().out == "seen\n"


def test_filters_of_warnings_are_given_back(log: Path) -> None:
    import warnings

    before = list(warnings.filters)
    with redirect_output(log):
        pass
    assert list(warnings.filters) == before
