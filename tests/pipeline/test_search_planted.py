"""Faults that a few random feeds do not show, each caught by the feeds of a plain export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from modelc.core.errors import CheckpointError
from modelc.core.kinds import Precision, ReasonCode
from modelc.core.signature import Signature
from modelc.core.verdict import State, Verdict
from modelc.pipeline.dim_constraints import RejectedSizesError
from modelc.pipeline.reply_evidence import beyond_feeds
from modelc.pipeline.run_reference import ReferenceRun, run_reference
from modelc.validators.edge_case_feeds import draw_edge_case_feeds
from modelc.validators.feeds import NamedFeed, draw_feeds
from modelc.validators.judge import ArtifactOutputs, ReferenceOutputs

from ..open_models import evidence_of, signature_of
from ..reasons import reason_codes

Floats = NDArray[np.float32]
Net = Callable[[Floats], Floats]


def net(x: Floats) -> Floats:
    """Each row alone, at every length: normalised as a layer norm does, then bent."""
    centred = x - x.mean(axis=1, keepdims=True)
    scale = np.sqrt((centred**2).mean(axis=1, keepdims=True) + x.dtype.type(1e-5))
    return np.asarray(np.tanh(centred / scale) + x.dtype.type(0.01) * x)


def draw_all(signature: Signature) -> tuple[NamedFeed, ...]:
    return (*draw_feeds(signature), *draw_edge_case_feeds(signature))


def judged(
    faulty: Net, *, text: str = "x:float32[batch=1..8,seq=4..16]", precision: str = "fp32"
) -> Verdict:
    """The verdict on `faulty` beside `net`, on the feeds that are drawn by default."""
    signature = signature_of(text, outputs=("y",))
    references = tuple(
        ReferenceOutputs(
            feed=feed,
            outputs={"y": net(x := feed.arrays["x"])},
            exact={"y": net(x.astype(np.float64))},
        )
        for feed in draw_all(signature)
    )
    replies = tuple(ArtifactOutputs(outputs={"y": faulty(r.feed.arrays["x"])}) for r in references)
    kind = Precision(precision)
    loose = beyond_feeds(references, kind)
    return evidence_of(references, replies, signature, precision=kind, loose=loose).verdict


def good(x: Floats) -> Floats:
    """The same sums in another order."""
    return net(x[:, ::-1])[:, ::-1].copy()


def only(where: Callable[[Floats], bool], by: float = 1.01) -> Net:
    """Off by one percent where it holds."""
    return lambda x: np.asarray(good(x) * np.float32(by)) if where(x) else good(x)


def epsilon(x: Floats) -> Floats:
    centred = x - x.mean(axis=1, keepdims=True)
    scale = np.sqrt((centred**2).mean(axis=1, keepdims=True) + np.float32(1e-6))
    return np.asarray(np.tanh(centred / scale) + np.float32(0.01) * x)


def mixing(x: Floats) -> Floats:
    """The scale of the whole batch instead of each row's."""
    centred = x - x.mean(axis=1, keepdims=True)
    scale = np.sqrt((centred**2).mean() + np.float32(1e-5))
    return np.asarray(np.tanh(centred / scale) + np.float32(0.01) * x)


def last_row(x: Floats) -> Floats:
    """The third row by another kernel."""
    y = good(x)
    y[2:3] *= np.float32(1.001)
    return y


def overflowing(x: Floats) -> Floats:
    y = good(x)
    return np.where(np.abs(x) > 500, np.float32(np.nan), y)


FAULTS: dict[str, Net] = {
    "batch 3": only(lambda x: len(x) == 3),
    "batch 7": only(lambda x: len(x) == 7),
    "batch 1": only(lambda x: len(x) == 1),
    "the largest length": only(lambda x: x.shape[1] == 16),
    "the largest length alone": only(lambda x: x.shape == (1, 16)),
    "the largest batch alone": only(lambda x: x.shape == (8, 4)),
    "odd lengths": only(lambda x: x.shape[1] % 2 == 1),
    "rows that mix": mixing,
    "the third row": last_row,
    "zeros": lambda x: good(x) + np.float32(0 if x.any() else 1e-3),
    "all one value": only(lambda x: bool((x == x[0, 0]).all() and x.any())),
    "large values": lambda x: good(np.clip(x, -50, 50)),
    "an epsilon": epsilon,
    "one element": only(lambda x: bool(((x != 0).sum(axis=1) == 1).all())),
    "a slope for negative values": lambda x: np.asarray(
        np.where(x.mean() < 0, np.float32(0.99), np.float32(1)) * good(x)
    ),
}


def test_a_good_artifact_passes() -> None:
    verdict = judged(good)
    assert verdict.passed, verdict.reason
    assert len(verdict.feeds) == 22


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught_by_default(fault: str) -> None:
    verdict = judged(FAULTS[fault])
    assert verdict.state is State.FAILED
    assert (verdict.headroom or 0.0) < 0


@pytest.mark.parametrize(
    ("fault", "text", "feed"),
    [
        ("batch 3", "x:float32[batch=1..8,6]", "batch-3"),
        ("batch 7", "x:float32[batch=1..8,6]", "batch-7"),
        ("zeros", "x:float32[batch=1..8,6]", "zeros"),
        ("large values", "x:float32[2,6]", "large"),
        ("an epsilon", "x:float32[2,6]", "small"),
        ("odd lengths", "x:float32[1,seq=2..8..10]", "odd"),
    ],
)
def test_the_feed_that_is_meant_for_a_fault_reveals_it(fault: str, text: str, feed: str) -> None:
    verdict = judged(FAULTS[fault], text=text)
    assert feed in {output.feed for output in verdict.outputs if not output.passed}


# Fewer bits: what lies beyond is said and does not count.


def test_nan_beyond_the_declared_range_fails_fp32() -> None:
    assert judged(overflowing).state is State.FAILED


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_nan_beyond_the_declared_range_is_a_note_below_fp32(precision: str) -> None:
    verdict = judged(overflowing, precision=precision)
    assert verdict.passed, verdict.reason
    assert any("overflows" in note and "large (batch=2" in note for note in verdict.notes)
    (large,) = [o for o in verdict.outputs if o.feed == "large"]
    assert large.loose
    assert large.nonfinite_artifact
    assert "count" in large.reason


def test_low_sqnr_beyond_the_declared_range_is_a_note() -> None:
    verdict = judged(FAULTS["large values"], precision="fp16")
    assert verdict.passed
    assert any("dB" in note and "large" in note for note in verdict.notes)


def test_nan_on_a_usual_feed_fails_fp16() -> None:
    verdict = judged(lambda x: good(x) * np.float32(np.nan if len(x) == 3 else 1), precision="fp16")
    assert verdict.state is State.FAILED
    assert "(batch=3" in verdict.reason


def test_rows_that_differ_fail_fp16_within_its_tolerance() -> None:
    def third(x: Floats) -> Floats:
        y = good(x)
        y[2:3] *= np.float32(0.991)  # 41 dB: fp16 may be off by as much
        return y

    verdict = judged(third, precision="fp16")
    assert verdict.state is State.FAILED
    assert ReasonCode.EQUAL_ROWS_DIFFER in reason_codes(verdict)
    assert verdict.faults


# What eager rejects.


@dataclass(frozen=True, kw_only=True)
class Picky:
    """Eager that rejects some feeds and gives NaN on others."""

    rejects: str = ""
    nan: str = ""
    error: CheckpointError = field(
        default_factory=lambda: CheckpointError("eager rejects it: no good", hint="none")
    )

    def __call__(self, feed: NamedFeed) -> ReferenceOutputs:
        if feed.name == self.rejects:
            raise self.error
        y = net(feed.arrays["x"])
        return ReferenceOutputs(
            feed=feed, outputs={"y": y * np.float32(np.nan if feed.name == self.nan else 1)}
        )


def answers(picky: Picky) -> ReferenceRun:
    feeds = draw_all(signature_of("x:float32[batch=1..8,6]"))
    found = run_reference(feeds, picky, lambda _done, _total: None)
    assert [record.name for record in found.records] == [feed.name for feed in feeds]
    return found


@pytest.mark.parametrize(("feed", "kind"), [("batch-7", "batch"), ("zeros", "value")])
def test_an_edge_case_feed_that_eager_rejects_is_skipped(feed: str, kind: str) -> None:
    found = answers(Picky(rejects=feed))
    assert feed not in [reference.feed.name for reference in found.references]
    (skipped,) = [record for record in found.records if record.skipped]
    assert (skipped.name, skipped.kind) == (feed, kind)
    assert skipped.skipped.endswith("no good")
    assert skipped.gap is (kind == "batch")
    text, other = (found.warning, found.note) if skipped.gap else (found.note, found.warning)
    assert feed in text
    assert text.endswith("no good")
    assert not other


def test_sizes_that_eager_rejects_whatever_the_values_are_an_error() -> None:
    with pytest.raises(RejectedSizesError, match="odd"):
        answers(
            Picky(
                rejects="batch-7",
                error=RejectedSizesError("eager rejects it: h is odd", hint="no", sizes={}),
            )
        )


@pytest.mark.parametrize("feed", ["min", "opt", "max"])
def test_a_basic_feed_that_eager_rejects_is_an_error(feed: str) -> None:
    with pytest.raises(CheckpointError, match="no good"):
        answers(Picky(rejects=feed))


@pytest.mark.parametrize("feed", ["large", "zeros"])
def test_edge_case_values_on_which_eager_gives_nan_are_skipped(feed: str) -> None:
    found = answers(Picky(nan=feed))
    assert feed not in [reference.feed.name for reference in found.references]
    assert f"{feed}: eager gives NaN or Inf in 'y'" in found.note


def test_nan_by_design_skips_nothing() -> None:
    def always(feed: NamedFeed) -> ReferenceOutputs:
        return ReferenceOutputs(feed=feed, outputs={"y": np.full(3, np.nan)})

    feeds = draw_all(signature_of("x:float32[batch=1..8,6]"))
    assert not run_reference(feeds, always, lambda _done, _total: None).note
