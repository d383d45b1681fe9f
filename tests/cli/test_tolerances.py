"""`--tolerance` and modelc.toml."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelc.cli.judging_options import read_limits
from modelc.core.errors import UsageError
from modelc.core.verdict import Limits

if TYPE_CHECKING:
    from pathlib import Path


def test_limits_for_all_outputs_and_for_one(tmp_path: Path) -> None:
    texts = ["floor-factor=8", "logits:min-sqnr=60,atol=1e-3", "logits:rtol=0.1"]
    shared, by_output = read_limits(texts, tmp_path / "none.toml")
    assert shared == Limits(floor_factor=8)
    assert by_output == {"logits": Limits(min_sqnr=60, atol=1e-3, rtol=0.1)}


def test_the_file_gives_what_no_option_says(tmp_path: Path) -> None:
    file = tmp_path / "modelc.toml"
    file.write_text('[tolerance]\nmin-sqnr = 70\nrtol = 0.1\n[tolerance."aux.energy"]\natol = 2\n')
    shared, by_output = read_limits(["min-sqnr=50", "aux.energy:rtol=1"], file)
    assert shared == Limits(min_sqnr=50, rtol=0.1)
    assert by_output == {"aux.energy": Limits(atol=2, rtol=1)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sqnr=3", "unknown tolerance 'sqnr'"),
        ("min-sqnr", "'min-sqnr' is not KEY=VALUE"),
        ("y:atol=much", "'much' is not a number"),
        ("y:", "'' is not KEY=VALUE"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        read_limits([text], tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tolerance", "modelc.toml: Expected"),
        ("tolerance = 3", "tolerance is not a table"),
        ("[tolerance]\natol = true", "True is not a number"),
        (f"[tolerance]\natol = 1{'0' * 400}", "0 is not a number"),
        ("[tolerance.y]\nsqnr = 3", r"unknown tolerance in .*modelc.toml: 'sqnr'"),
        ("[tolerances]\natol = 3", r"unknown key in .*modelc.toml: 'tolerances'"),
        ("min-sqnr = 3", r"unknown key in .*modelc.toml: 'min-sqnr'"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "modelc.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=says):
        read_limits([], file)
