"""A checkpoint that is written to while a run reads it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from modelc.checkpoints.checkpoint_files import ChangeGuard, identify, make_change_guard
from modelc.core.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "a.pt")
    return tmp_path / "a.pt"


def stamped(path: Path) -> ChangeGuard:
    return make_change_guard(identify(path, factory="torch.nn:Linear", factory_args={}))


def test_a_file_that_stays_as_it_is_is_fine(path: Path) -> None:
    stamped(path).check()


def test_a_file_that_is_written_to_is_told(path: Path) -> None:
    stamp = stamped(path)
    with path.open("r+b") as stream:
        stream.write(b"PK")
    with pytest.raises(CheckpointError, match=r"a\.pt"):
        stamp.check()


def test_a_file_that_another_took_the_place_of_does_no_harm(path: Path) -> None:
    stamp = stamped(path)
    other = path.with_name("b.pt")
    torch.save(nn.Linear(2, 2).state_dict(), other)
    other.replace(path)
    stamp.check()
