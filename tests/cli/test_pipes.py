"""A named pipe in place of a file is refused: to open one waits for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from modelc.calibration.sample_sources import list_sample_files
from modelc.checkpoints.checkpoint_files import identify
from modelc.core.errors import UsageError

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")


@pytest.mark.parametrize(
    "arguments",
    [
        ("export", "pipe.pt", "--to", "onnx"),
        ("export", "a.pt", "--samples", "pipe.pt", "--to", "onnx"),
        ("run", "-f", "pipe.pt"),
        ("calibrate", "pipe.pt", "--input", "x:float32[1]"),
    ],
)
def test_a_named_pipe_on_the_command_line_is_told(
    refuse: Callable[..., str],
    tmp_path: Path,
    arguments: tuple[str, ...],
) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    assert "pipe.pt" in refuse(*arguments, code=2)


def test_a_checkpoint_that_is_one_is_refused_where_there_is_no_command_line(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(UsageError, match="named pipe"):
        identify(tmp_path / "pipe.pt", factory=None, factory_args={})


def test_one_among_samples_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npz")
    assert not list_sample_files(tmp_path).groups
    assert list(list_sample_files(tmp_path).skip_counts.values()) == [1]
