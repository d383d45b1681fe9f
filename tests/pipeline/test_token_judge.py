"""Tests of the judge over tokens, with a decoder in numpy as eager and as the artifact."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from modelc.checkpoints.token_text import read_token_rows
from modelc.core.contract import Feed, Outputs
from modelc.core.errors import CheckpointError, ErrorCode, UsageError
from modelc.core.events import Event, Finished
from modelc.core.findings import SkippedCheck, WorstFeed
from modelc.core.generation import TokenPlan, TokenReport, WayKind
from modelc.core.kinds import Precision, ReasonCode
from modelc.core.manifest import FeedPlan
from modelc.core.signature import Signature
from modelc.core.verdict import State
from modelc.pipeline.eager_reference import open_reference, read_checkpoint
from modelc.pipeline.order import Judging, Source
from modelc.pipeline.run_progress import Progress
from modelc.pipeline.token_judge import check_tokens
from modelc.pipeline.token_reference import TokenReference, find_token_reference, plan_tokens
from modelc.pipeline.worst_feed import read_feed
from modelc.validators.ruling import Ruling
from modelc.validators.tolerance import TOLERANCES

from ..nets.numpy_decoder import IDS, KEY, SIGNATURE, decode
from ..reasons import has_code


class Silent:
    """Progress that nobody sees."""

    def step(self, *_: object, **__: object) -> Any:
        return nullcontext(SimpleNamespace(passed=None, detail=""))

    def advance(self, *_: object) -> None:
        """Ignore it."""

    note = advance


def make_eager(run: Any = decode, signature: Signature = SIGNATURE) -> Any:
    logits = np.zeros((1, 1, IDS), np.float32)
    model = SimpleNamespace(run=run, has_module=True, weights=dict, run_exact=run)
    skipped: list[SkippedCheck] = []
    return SimpleNamespace(
        signature=signature, model=model, example={}, feeds=FeedPlan(count=5, seed=0),
        references=[SimpleNamespace(outputs={"logits": logits})], token_references={},
        checkpoint=SimpleNamespace(path="."), has_source=True, skip=skipped.append, skipped=skipped,
    )  # fmt: skip


def judge_tokens(
    run: Any,
    eager: Any = None,
    precision: Precision = Precision.FP32,
    worst: WorstFeed | None = None,
    **options: Any,
) -> Ruling:
    judged: Any = SimpleNamespace(
        verdict=SimpleNamespace(
            state=State.PASSED, passed=True, faults=(), tolerance=TOLERANCES[precision], worst=worst
        )
    )
    opened = nullcontext(SimpleNamespace(run=run))
    request: Any = SimpleNamespace(
        candidate=SimpleNamespace(name="onnx", log="onnx", outputs=()),
        eager=eager or make_eager(), judging=Judging(**options), progress=Silent(),
        case=SimpleNamespace(open=lambda: opened),
    )  # fmt: skip
    return check_tokens(request, judged)


def report_of(ruling: Ruling) -> TokenReport:
    assert ruling.tokens is not None
    return ruling.tokens


def test_an_artifact_that_is_eager_takes_every_way_and_passes() -> None:
    ruling = judge_tokens(decode)
    assert ruling.last == ruling.first == ()
    report = report_of(ruling)
    assert [way.kind for way in report.ways] == list(WayKind)
    assert all(way.agreement == 1.0 and way.kl < 1e-12 for way in report.ways)
    assert report.longest == 15  # the domain's edge: 9 cached and 6 new tokens
    assert report.perplexity == pytest.approx(report.eager_perplexity)
    assert report.text.tokens >= 256


def late(feed: Feed) -> Outputs:
    """Read each cached token one place late."""
    cache = feed[KEY]
    index = np.maximum(np.arange(cache.shape[2]) - 1, 0)
    return decode({**feed, KEY: cache[:, :, index]})


def frozen(feed: Feed) -> Outputs:
    """Let each step of one token be at position 0."""
    places = feed["position_ids"]
    return decode({**feed, "position_ids": places * (places.shape[1] != 1)})


def shifted(feed: Feed) -> Outputs:
    """Move the mask by one place."""
    mask = feed["attention_mask"]
    return decode({**feed, "attention_mask": np.concatenate([mask[:, :1], mask[:, :-1]], axis=1)})


class Stale:
    """A runtime that keeps its own longer cache, and ignores one that was cut back."""

    def __init__(self) -> None:
        self.kept: Any = None

    def __call__(self, feed: Feed) -> Outputs:
        past = feed[KEY].shape[2]
        if self.kept is not None and past and past < self.kept.shape[2]:
            feed = {**feed, KEY: self.kept[:, :, -past:]}
        made = decode(feed)
        self.kept = made["present.0.key"]
        return made


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        (late, {WayKind.STEPS, WayKind.PARTS, WayKind.REUSED, WayKind.LONGEST}),
        (frozen, {WayKind.STEPS, WayKind.PARTS, WayKind.PADDED}),
        (shifted, {WayKind.PADDED}),
        (Stale(), {WayKind.ROLLED_BACK}),
    ],
)
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.INT4])
def test_a_wrong_loop_is_rejected(fault: Any, wrong: set[WayKind], precision: Precision) -> None:
    ruling = judge_tokens(fault, precision=precision)
    codes = {one.code for one in ruling.last}
    assert ReasonCode.LOOP_DIFFERS in codes
    found = {way.kind for way in report_of(ruling).ways if way.kl > 0.005 or way.own_kl}
    assert wrong <= found


def test_the_step_that_shows_a_wrong_loop_is_kept_as_the_worst_feed(tmp_path: Path) -> None:
    file = tmp_path / "worst.npz"
    worst = WorstFeed(
        feed="min", output="", headroom=3.0, file=str(file), replay="", searched=0, seed=0,
        seconds=0.0, before=None,
    )  # fmt: skip
    ruling = judge_tokens(late, worst=worst)
    assert ruling.worst is not None
    assert (ruling.worst.feed, ruling.worst.output) == ("tokens", "logits")
    feed = read_feed(file)
    assert feed[KEY].shape[2] > 0  # a step with a past
    assert judge_tokens(decode, worst=worst).worst is None


def noisy(feed: Feed) -> Outputs:
    """Err by 3 % of the logits, differently for each token, as rounded weights do."""
    made = decode(feed)
    other = np.roll(made["logits"], 1, axis=-1)
    return {**made, "logits": made["logits"] + 0.03 * other}


def test_errors_of_rounded_weights_pass_in_int4_and_not_in_fp32() -> None:
    assert judge_tokens(noisy, precision=Precision.INT4).last == ()
    ruling = judge_tokens(noisy)
    assert {one.code for one in ruling.last} == {ReasonCode.TOKENS_DIFFER, ReasonCode.LOOP_DIFFERS}
    difference = report_of(ruling).difference
    assert difference is not None
    assert not difference[1].tie


def test_an_artifact_whose_loop_fails_is_rejected() -> None:
    ruling = judge_tokens(lambda feed: {**decode(feed), "logits": np.zeros((1, 1, IDS))})
    assert [one.code for one in ruling.first] == [ReasonCode.LOOP_DIFFERS]
    assert ruling.tokens is None


def test_a_model_without_a_cache_is_judged_on_text_alone() -> None:
    inputs = tuple(replace(spec, dims=SIGNATURE.inputs[0].dims) for spec in SIGNATURE.inputs[:3])
    signature = Signature(inputs=inputs, outputs=("logits",))

    def whole(feed: Feed) -> Outputs:
        empty = np.zeros((len(feed["input_ids"]), 1, 0, 4), np.float32)
        return {"logits": decode({**feed, KEY: empty})["logits"]}

    report = report_of(judge_tokens(whole, make_eager(whole, signature)))
    assert [way.kind for way in report.ways] == [WayKind.TEXT]
    assert report.text.kl < 1e-12


def test_a_model_of_no_tokens_is_not_measured() -> None:
    signature = Signature(inputs=SIGNATURE.inputs[:2], outputs=("pooled",))
    assert judge_tokens(decode, make_eager(decode, signature)) == Ruling()


def test_the_same_sequences_are_drawn_again_and_recorded_ones_are_used() -> None:
    eager, progress = make_eager(), Silent()
    first = plan_tokens(eager, Judging(), progress)  # type: ignore[arg-type]
    assert first == plan_tokens(eager, Judging(), progress)  # type: ignore[arg-type]
    assert first != plan_tokens(eager, Judging(seed=1), progress)  # type: ignore[arg-type]
    assert first is not None
    other = replace(first, sequences=("1 2 3 4", "4 3 2 1"))
    eager.feeds = replace(eager.feeds, tokens=other)
    found = find_token_reference(eager, Judging(), progress)  # type: ignore[arg-type]
    assert isinstance(found, TokenReference)
    assert found.text[0].rows.ids.tolist() == [[1, 2, 3, 4], [4, 3, 2, 1]]


@pytest.mark.parametrize("tokens", [None, TokenPlan(sequences=("1 2 3", "3 2 1"))])
def test_the_verdict_says_why_tokens_are_not_judged(tokens: TokenPlan | None) -> None:
    runs = []

    def fail(feed: Feed) -> Outputs:
        runs.append(feed)
        raise CheckpointError("rejected", hint="")

    eager = make_eager(fail)
    eager.feeds = replace(eager.feeds, tokens=tokens)
    for _ in range(2):
        ruling = judge_tokens(decode, eager)
        assert ruling.tokens is None
        assert any("rejected" in note for note in ruling.notes)
    assert len(runs) == 1


@pytest.mark.parametrize("sequences", [(), ("",), ("1 x",), ("1 -2",), ("9" * 20,)])
def test_recorded_sequences_that_are_none_are_an_error(sequences: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"ids|int\(\)"):
        TokenPlan(sequences=sequences)


def test_stored_references_skip_the_tokens() -> None:
    eager = make_eager()
    eager.has_source = False
    eager.feeds = replace(eager.feeds, tokens=plan_tokens(eager, Judging(), Silent()))  # type: ignore[arg-type]
    assert judge_tokens(decode, eager) == Ruling()
    assert eager.skipped == [SkippedCheck.TOKENS]


def test_an_option_that_models_share_has_no_effect_on_one_that_is_no_decoder() -> None:
    signature = Signature(inputs=SIGNATURE.inputs[:2], outputs=("pooled",))
    judging = Judging(max_kl=0.1, shared=frozenset({"max-kl"}))
    assert plan_tokens(make_eager(decode, signature), judging, Silent()) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["text", "max_kl", "max_ppl_increase"])
def test_options_about_tokens_need_a_decoder(option: str) -> None:
    value: Any = {"text": Path("a.npy")}.get(option, 0.1)
    eager = make_eager(signature=Signature(inputs=SIGNATURE.inputs[:1], outputs=("pooled",)))
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_EFFECT)):
        plan_tokens(eager, Judging(**{option: value}), Silent())  # type: ignore[arg-type]


def test_text_of_ids_is_cut_into_sequences(tmp_path: Path) -> None:
    ids = tmp_path / "ids.npy"
    np.save(ids, np.arange(40) % IDS)
    report = report_of(judge_tokens(decode, text=ids))
    assert report.source == "ids.npy"
    assert report.text.tokens == 36
    plan = plan_tokens(make_eager(), Judging(text=ids), Silent())  # type: ignore[arg-type]
    assert plan is not None
    assert plan.sequences[1] == "6 7 8 9 10 0"
    assert len(plan.digest) == 64


def test_ids_may_be_rows_or_one_of_several_arrays(tmp_path: Path) -> None:
    rows = [[1, 2, 3], [4, 5, 6]]
    np.savez(tmp_path / "a.npz", mask=np.ones((2, 3)), input_ids=np.array(rows, np.int32))
    assert read_token_rows(tmp_path / "a.npz", tmp_path, 9) == rows


@pytest.mark.parametrize(
    ("name", "array", "code"),
    [
        ("none.npy", None, ErrorCode.NOT_FOUND),
        ("float.npy", np.ones(4), ErrorCode.INVALID_VALUE),
        ("deep.npy", np.ones((2, 2, 2), int), ErrorCode.INVALID_VALUE),
        ("large.npy", np.array([1, 2, 10]), ErrorCode.INVALID_VALUE),
        ("below.npy", np.array([1, -1]), ErrorCode.INVALID_VALUE),
        ("short.npy", np.array([1]), ErrorCode.INVALID_VALUE),
        ("object.npy", np.array([{}], dtype=object), ErrorCode.INVALID_VALUE),
    ],
)
def test_a_text_that_is_none_is_an_error(
    tmp_path: Path, name: str, array: Any, code: ErrorCode
) -> None:
    if array is not None:
        np.save(tmp_path / name, array, allow_pickle=True)
    with pytest.raises(UsageError, check=has_code(code)):
        read_token_rows(tmp_path / name, tmp_path, 9)


def test_a_text_that_is_not_there_is_an_error_before_the_model_is_loaded(
    gate_source: Source, tmp_path: Path
) -> None:
    told = list[Event]()
    progress = Progress(tell=told.append, logs=tmp_path)
    judging = Judging(text=tmp_path / "none.txt")
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_FOUND)):
        open_reference(gate_source, read_checkpoint(gate_source, progress), judging, progress)
    assert [one.step for one in told if isinstance(one, Finished)] == ["read checkpoint"]
