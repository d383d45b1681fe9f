"""The tokens of a runtime for generation, judged against a reference: a double of the runtime."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from modelc.core.kinds import Precision, ReasonCode
from modelc.core.records import Artifact
from modelc.core.verdict import State, Verdict
from modelc.pipeline import generated_tokens as judge

TOKENS = (3, 1, 4, 1, 5, 9, 2, 6)
END = 15


def make_text(tie: dict[int, tuple[int, float]] | None = None) -> Any:
    """A text of `TOKENS` after a prompt; `tie` has another id and its logit by place."""
    logits = np.zeros((len(TOKENS), 16), np.float32)
    logits[range(len(TOKENS)), TOKENS] = 10
    for place, (token, value) in (tie or {}).items():
        logits[place, token] = value
    return judge._Text(prompt=(7,), tokens=TOKENS, logits=tuple(logits), agreed=len(TOKENS))


class Double:
    """A runtime that gives the tokens of the reference, but for some, by place."""

    def __init__(self, others: dict[int, int], ends: int | None = None) -> None:
        self.others, self.ends = others, ends
        self.calls: list[tuple[int, int]] = []

    def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        start = len(prompt) - 1
        self.calls.append((start, count))
        made = [self.others.get(place, TOKENS[place]) for place in range(start, start + count)]
        return made if self.ends is None else made[: max(self.ends - start, 0)]

    def __enter__(self) -> Double:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def judged(text: Any, runtime: Double, precision: Precision = Precision.FP32) -> Verdict:
    artifact = Artifact(
        name="onnx", target="onnx", precision=precision, files=(), parent="", made_from=""
    )
    return judge._make_verdict(artifact, [(text, judge._compare(text, runtime, END))])


def test_equal_tokens_pass() -> None:
    verdict = judged(make_text(), Double({}))
    assert (verdict.state, verdict.reasons) == (State.PASSED, ())
    (note,) = verdict.notes
    assert re.findall(r"\d+", note) == ["8", "1"]  # tokens, and the prompt's length


def test_another_token_is_rejected_with_its_place_and_margin() -> None:
    verdict = judged(make_text(), Double({4: 0}))
    assert verdict.state is State.FAILED
    (reason,) = verdict.reasons
    assert reason.code is ReasonCode.GENERATED_TOKENS
    place, count, prompt, token, expected = re.findall(r"\d+", reason.text)[:5]
    assert (place, count, prompt, token, expected) == ("5", "8", "1", "0", "5")
    assert "100.0%" in reason.text


def test_a_tie_passes_and_the_text_goes_on_after_it() -> None:
    runtime = Double({4: 0})
    verdict = judged(make_text({4: (0, 9.9995)}), runtime)
    assert verdict.passed
    assert runtime.calls == [(0, 8), (5, 3)]
    assert verdict.notes[0].endswith("but for 1 tie")


@pytest.mark.parametrize(("precision", "passes"), [(Precision.FP32, False), (Precision.INT4, True)])
def test_lower_precisions_round_to_other_neighbours(precision: Precision, passes: bool) -> None:
    text = make_text({4: (0, 9.9)})
    assert judged(text, Double({4: 0}), precision).passed is passes


def test_a_text_that_ends_early_is_rejected() -> None:
    assert judged(make_text(), Double({}, ends=5)).state is State.FAILED


def test_a_token_that_the_model_does_not_have_is_rejected() -> None:
    assert judged(make_text(), Double({2: 99})).state is State.FAILED


def test_a_runtime_that_ties_everywhere_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    text = make_text(dict.fromkeys(range(len(TOKENS)), (0, 10.0)))
    monkeypatch.setattr(judge, "_MAX_TIES", 3)
    assert judged(text, Double(dict.fromkeys(range(8), 0))).state is State.FAILED


def test_the_end_token_is_in_no_text() -> None:
    assert judge._find_unused([make_text()]) == 0
