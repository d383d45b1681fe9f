"""Which quantizer's artifact is kept."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from modelc.converters.quantizers.registry import QUANTIZERS
from modelc.core.contract import Converted
from modelc.core.precision import Precision
from modelc.core.records import Latency
from modelc.core.verdict import OutputVerdict, State, Verdict
from modelc.pipeline.choosing import chosen
from modelc.pipeline.subject import Subject
from modelc.pipeline.trying import Trial, Way
from modelc.validators.tolerance import TOLERANCES


def trial(sqnr: float, milliseconds: float, *, passed: bool = True, parent: float = 10) -> Trial:
    """A quantizer's artifact with this SQNR in dB and this latency, its parent taking 10 ms."""
    output = OutputVerdict(
        feed="held-out-1", output="y", passed=passed, reason="", shape=(1,), dtype="float32",
        exact=False, sqnr=sqnr,
    )  # fmt: skip
    verdict = Verdict(
        artifact="a",
        state=State.PASSED if passed else State.FAILED,
        reason="",
        device="cpu",
        tolerance=TOLERANCES[Precision.INT8],
        feeds=("held-out-1",),
        outputs=(output,),
    )
    return Trial(
        way=Way(quantizer=QUANTIZERS[0]),
        workplace=Path(),
        converted=Converted(files=(), versions={}),
        files=(),
        verdict=verdict,
        judged=cast("Subject", None),  # choosing does not look at it
        frozen=(),
        latency=Latency(milliseconds=milliseconds, parent=parent, device="cpu", runs=9),
    )


@pytest.mark.parametrize(
    ("best", "others"),
    [
        pytest.param(trial(30, 5), [trial(25, 4)], id="the most exact"),
        pytest.param(trial(29.8, 4), [trial(30, 5)], id="the fastest of those as exact"),
        pytest.param(trial(25, 5), [trial(30, 12)], id="none that is slower than its parent"),
        pytest.param(trial(16, 5), [trial(30, 5, passed=False)], id="none that failed"),
        pytest.param(trial(30, 12), [trial(25, 15)], id="where all are slow, the most exact"),
        pytest.param(
            trial(12, 5, passed=False),
            [trial(3, 4, passed=False)],
            id="where all failed, the least wrong",
        ),
    ],
)
def test_the_best_is_kept(best: Trial, others: list[Trial]) -> None:
    assert chosen([best, *others]) is best
    assert chosen([*others, best]) is best
