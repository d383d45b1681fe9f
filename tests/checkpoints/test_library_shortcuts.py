"""Which branches on data are a library's shortcut, of which either arm computes the same."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from modelc.checkpoints.branch_tracer import Place
from modelc.checkpoints.data_branches import BranchReport, DataBranch, are_library_shortcuts
from modelc.core.findings import BranchRecord
from modelc.core.kinds import Capture
from modelc.pipeline.branch_coverage import BranchCoverage
from modelc.pipeline.frozen_places import RepeatableCapture, find_frozen_places

pytest.importorskip("transformers")


def inside(name: str, by: int = 1) -> Place:
    """A line of a function of transformers' masks, counted from its first."""
    code = getattr(import_module("transformers.masking_utils"), name).__code__
    return code.co_filename, code.co_firstlineno + by


def test_a_line_within_the_function_is_one_and_others_of_the_file_are_none() -> None:
    line = inside("_ignore_causal_mask_sdpa")
    assert are_library_shortcuts({line})
    assert not are_library_shortcuts({line, inside("prepare_padding_mask")})
    assert not are_library_shortcuts({inside("_ignore_causal_mask_sdpa", -1)})
    assert not are_library_shortcuts({(__file__, line[1])})
    assert not are_library_shortcuts(())


@pytest.mark.parametrize(
    ("function", "frozen"),
    [("_ignore_causal_mask_sdpa", ()), ("prepare_padding_mask", ("masking_utils.py:9",))],
)
def test_an_outcome_of_a_shortcut_that_no_feed_took_is_not_frozen(
    function: str, frozen: tuple[str, ...]
) -> None:
    record = BranchRecord(
        file="masking_utils.py", line=9, condition="full", arms={"false": "min"}, data=True
    )
    found = DataBranch(record=record, places=frozenset({inside(function)}), others=())
    seen = BranchCoverage(watched=BranchReport(found=(found,)))
    subject: Any = None  # nothing is left to look for in eager
    assert (
        find_frozen_places(
            Capture.EXPORT, (), seen, subject, RepeatableCapture(again=lambda _: None)
        )
        == frozen
    )
