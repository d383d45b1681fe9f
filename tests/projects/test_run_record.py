"""`run.json` is there whole, is of the last run, or is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelc.core.errors import UsageError
from modelc.projects.ci_documents import clear_documents
from modelc.projects.run_record import FILE, clear_record, record_of_run, write_record


def test_a_place_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file of somebody's")
    record = record_of_run((), seconds=0.0)
    with pytest.raises(UsageError, match=r"cannot write to .*out: File exists"):
        write_record(record, tmp_path / "out")
    for clear in (clear_record, clear_documents):
        with pytest.raises(UsageError, match=r"cannot write to .*out: Not a directory"):
            clear(tmp_path / "out")


def test_the_record_of_an_earlier_run_goes_and_none_is_needed(tmp_path: Path) -> None:
    write_record(record_of_run((), seconds=0.0), tmp_path)
    clear_record(tmp_path)
    clear_record(tmp_path)
    assert not (tmp_path / FILE).exists()
