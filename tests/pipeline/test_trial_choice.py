"""Which quantizer's artifact is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec
import pytest

from modelc.converters.quantizers.quantizer_registry import QUANTIZERS
from modelc.core.contract import Converted
from modelc.core.kinds import Precision
from modelc.core.records import FileRecord, Latency
from modelc.core.verdict import OutputVerdict, State, Verdict
from modelc.pipeline.attempt import Recipe, Trial
from modelc.pipeline.eager_reference import EagerReference
from modelc.pipeline.trial_choice import choose_trial
from modelc.validators.ruling import Judgment, Ruling
from modelc.validators.tolerance import TOLERANCES


def trial(
    sqnr: float,
    milliseconds: float,
    *,
    passed: bool = True,
    parent: float = 10,
    noise: float = 0.02,
    size: int = 0,
) -> Trial:
    """A quantizer's artifact with this SQNR in dB and this latency, its parent taking 10 ms."""
    output = OutputVerdict(
        feed="held-out-1", output="y", passed=passed, reason="", shape=(1,), dtype="float32",
        exact=False, sqnr=sqnr,
    )  # fmt: skip
    verdict = Verdict(
        artifact="a",
        state=State.PASSED if passed else State.FAILED,
        reasons=(),
        device="cpu",
        tolerance=TOLERANCES[Precision.INT8],
        feeds=("held-out-1",),
        outputs=(output,),
    )
    latency = Latency(milliseconds=milliseconds, parent=parent, device="cpu", runs=9, noise=noise)
    return Trial(
        recipe=Recipe(quantizer=QUANTIZERS[0]),
        workplace=Path(),
        converted=Converted(files=(), versions={}),
        files=(FileRecord(name="a.onnx", sha256="", size=size),),
        judgment=Judgment(measured=verdict, rulings=(Ruling(latency=latency),)),
        judged=cast("EagerReference", None),  # choosing does not look at it
        frozen=(),
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
        pytest.param(
            trial(30, 5.2, noise=0.1, size=1),
            [trial(30, 5, size=2)],
            id="the smaller, in the noise",
        ),
        pytest.param(
            trial(30, 5, noise=0.01, size=2), [trial(30, 5.4, noise=0.01, size=1)], id="the faster"
        ),
    ],
)
def test_the_best_is_kept(best: Trial, others: list[Trial]) -> None:
    assert choose_trial([best, *others]) is best
    assert choose_trial([*others, best]) is best


def test_an_artifact_is_slower_beyond_its_own_noise_only() -> None:
    quiet = Latency(milliseconds=10.5, parent=10, device="cpu", runs=9, noise=0.01)
    assert quiet.slower
    assert not replace(quiet, low=0.97).slower
    assert not replace(quiet, low=1.02).slower, "too little to be a difference"


def test_an_old_record_has_the_interval_of_its_noise() -> None:
    text = b'{"milliseconds": 3.0, "parent": 2.0, "device": "cpu", "runs": 7, "noise": 0.1}'
    found = msgspec.json.decode(text, type=Latency)
    assert (found.ratio, found.low, found.high) == pytest.approx((1.5, 1.35, 1.65))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Latency) == found
