"""The judge rejects wrong artifacts, and says what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from modelc.core.errors import RunnerError
from modelc.core.kinds import ReasonCode
from modelc.core.verdict import State
from modelc.validators.feeds import NamedFeed
from modelc.validators.output_pairs import ArtifactOutputs, ReferenceOutputs

from ..reasons import reason_codes
from .judging import verdict_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from modelc.core.verdict import Verdict

    Array = NDArray[Any]
    Feed = dict[str, Array]
    Outputs = dict[str, Array]
    Judged = Callable[..., Verdict]

X = "x:float32[batch=1..8,6]"
MASK = "mask:float32[batch,6]"
WEIGHT = np.random.default_rng(7).standard_normal((6, 4)).astype(np.float32)
OTHER = np.random.default_rng(8).standard_normal((6, 4)).astype(np.float32)


def linear(feed: Feed) -> Outputs:
    return {"y": feed["x"] @ WEIGHT}


def heads(feed: Feed) -> Outputs:
    return {"a": feed["x"] @ WEIGHT, "b": feed["x"] @ OTHER}


def masked(feed: Feed) -> Outputs:
    return {"y": (feed["x"] * feed["mask"]) @ WEIGHT}


def with_first(array: Array, value: float) -> Array:
    """A copy with its very first element replaced."""
    changed = array.copy()
    changed.reshape(-1)[0] = value
    return changed


def test_a_single_element_just_above_the_limit_fails(judged: Judged) -> None:
    def artifact(feed: Feed) -> Outputs:
        y = linear(feed)["y"]
        limit = 1e-6 + 1e-4 * float(np.abs(y).max())
        return {"y": with_first(y, float(y.flat[0]) + 30 * limit)}

    verdict = judged(linear, artifact, X)
    assert verdict.state is State.FAILED
    assert [reason.output for reason in verdict.reasons] == ["y"]
    assert verdict.reasons[0].feed in {output.feed for output in verdict.outputs}
    assert "max abs" in verdict.reason
    assert "SQNR" in verdict.reason


def test_one_weight_off_by_a_percent_fails(judged: Judged) -> None:
    wrong = WEIGHT.copy()
    wrong[2, 1] *= np.float32(1.01)
    assert judged(linear, lambda feed: {"y": feed["x"] @ wrong}, X).state is State.FAILED


def test_the_reason_is_one_line_with_value_and_limit(judged: Judged) -> None:
    verdict = judged(linear, lambda feed: {"y": feed["x"] @ OTHER}, X)
    assert "\n" not in verdict.reason
    assert " dB < 90" in verdict.reason
    assert "(batch=" in verdict.reason


def test_a_nan_where_eager_has_none_fails_and_is_counted(judged: Judged) -> None:
    verdict = judged(linear, lambda feed: {"y": with_first(linear(feed)["y"], np.nan)}, X)
    assert "1 of 4" in verdict.outputs[0].reason
    first = verdict.outputs[0]
    assert (first.nonfinite_eager, first.nonfinite_artifact) == (0, 1)
    assert verdict.state is State.FAILED


@pytest.mark.parametrize(
    ("eager", "artifact", "nonfinite"),
    [(0.0, -np.inf, (0, 1)), (-np.inf, np.inf, (1, 1)), (np.nan, 0.0, (1, 0))],
)
def test_another_nonfinite_value_fails(
    judged: Judged, eager: float, artifact: float, nonfinite: tuple[int, int]
) -> None:
    def starting_with(value: float) -> Callable[[Feed], Outputs]:
        return lambda feed: {"y": with_first(linear(feed)["y"], value)}

    verdict = judged(starting_with(eager), starting_with(artifact), X)
    first = verdict.outputs[0]
    assert (first.nonfinite_eager, first.nonfinite_artifact) == nonfinite
    assert reason_codes(verdict) == [ReasonCode.OUTPUT_DIFFERS]


def test_nothing_but_nan_in_eager_is_nothing_to_compare(judged: Judged) -> None:
    def nothing(feed: Feed) -> Outputs:
        return {"y": np.full((len(feed["x"]), 4), np.nan, np.float32)}

    verdict = judged(nothing, nothing, X)
    assert ReasonCode.OUTPUT_DIFFERS in reason_codes(verdict)
    assert all(output.nonfinite_eager for output in verdict.outputs)
    assert not any(output.exact for output in verdict.outputs)


def test_outputs_swapped_in_value_are_recognised(judged: Judged) -> None:
    def swapped(feed: Feed) -> Outputs:
        return {"a": heads(feed)["b"], "b": heads(feed)["a"]}

    verdict = judged(heads, swapped, X)
    assert verdict.outputs[0].output == "a"
    assert "'b'" in verdict.outputs[0].reason
    assert "swapped" in verdict.reason


def test_outputs_of_different_shapes_that_are_swapped_are_recognised(judged: Judged) -> None:
    def eager(feed: Feed) -> Outputs:
        return {"a": linear(feed)["y"], "b": feed["x"] + 1}

    verdict = judged(eager, lambda f: {"a": eager(f)["b"], "b": eager(f)["a"]}, X)
    assert verdict.reasons[0].output == "a"
    for value in ("[1, 6]", "[1, 4]", "'b'"):
        assert value in verdict.reason


def test_outputs_in_another_order_fail_by_name(judged: Judged) -> None:
    verdict = judged(heads, lambda feed: {"b": heads(feed)["b"], "a": heads(feed)["a"]}, X)
    assert reason_codes(verdict) == [ReasonCode.OUTPUT_NAMES]
    assert "reordered" in verdict.reason
    assert verdict.reason.index("b, a") < verdict.reason.index("a, b")


def test_a_missing_output_fails_on_every_feed(judged: Judged) -> None:
    verdict = judged(heads, lambda feed: {"a": heads(feed)["a"]}, X)
    assert reason_codes(verdict) == [ReasonCode.OUTPUT_NAMES]
    assert [o.output for o in verdict.outputs if not o.passed] == ["b"] * 5


def test_a_renamed_output_is_both_missing_and_extra(judged: Judged) -> None:
    verdict = judged(linear, lambda feed: {"output_0": linear(feed)["y"]}, X)
    assert reason_codes(verdict) == [ReasonCode.OUTPUT_NAMES] * 2
    missing, extra = (reason.text for reason in verdict.reasons)
    assert "'y'" in missing
    assert "missing" in missing
    assert "'output_0'" in extra
    assert "extra" in extra


def test_another_shape_fails(judged: Judged) -> None:
    verdict = judged(linear, lambda feed: {"y": linear(feed)["y"][..., None]}, X)
    assert reason_codes(verdict) == [ReasonCode.OUTPUT_DIFFERS]
    assert verdict.reason.index("[1, 4, 1]") < verdict.reason.index("[1, 4]")


def test_another_dtype_fails_though_the_values_are_right(judged: Judged) -> None:
    verdict = judged(linear, lambda feed: {"y": linear(feed)["y"].astype(np.float64)}, X)
    assert reason_codes(verdict) == [ReasonCode.OUTPUT_DIFFERS]
    assert verdict.reason.index("float64") < verdict.reason.index("float32")


def test_a_cast_to_half_is_recognised(judged: Judged) -> None:
    def halved(feed: Feed) -> Outputs:
        return {"y": linear(feed)["y"].astype(np.float16).astype(np.float32)}

    verdict = judged(linear, halved, X)
    assert "float16" in verdict.reason
    assert "half" in verdict.reason


def test_zeros_are_not_called_a_cast_to_half(judged: Judged) -> None:
    verdict = judged(linear, lambda feed: {"y": np.zeros_like(linear(feed)["y"])}, X)
    assert verdict.state is State.FAILED
    assert "half" not in verdict.reason


def test_a_frozen_batch_fails_on_the_feed_that_was_rejected(judged: Judged) -> None:
    def frozen(feed: Feed) -> Outputs:
        if len(feed["x"]) != 4:
            raise RunnerError("expected batch 4\nat node 7", hint="")
        return linear(feed)

    verdict = judged(linear, frozen, X)
    assert verdict.state is State.FAILED
    (refusal,) = (r for r in verdict.reasons if r.code is ReasonCode.FEED_REFUSED)
    assert refusal.feed == "min"
    assert "(batch=1)" in refusal.text
    assert "more)" in refusal.text
    assert refusal.text.endswith("batch 4")


def test_an_artifact_that_rejects_every_feed_is_an_error(judged: Judged) -> None:
    def refuse(_: Feed) -> Outputs:
        raise RunnerError("no kernel for Foo", hint="")

    verdict = judged(linear, refuse, X)
    assert verdict.state is State.ERROR
    assert reason_codes(verdict) == [ReasonCode.FEED_REFUSED]
    assert "Foo" in verdict.reason


def test_an_ignored_input_is_named(judged: Judged) -> None:
    verdict = judged(masked, linear, X, MASK)
    assert verdict.state is State.FAILED
    assert verdict.reasons[0].code is ReasonCode.INPUT_IGNORED
    assert "'mask'" in verdict.reasons[0].text
    assert "input 'x'" not in verdict.reason


def test_an_input_with_a_small_effect_is_found_ignored_though_the_numbers_pass(
    judged: Judged,
) -> None:
    def eager(feed: Feed) -> Outputs:
        return {"y": linear(feed)["y"] + np.float32(2e-5) * feed["mask"][:, :4]}

    verdict = judged(eager, linear, "x:float32[batch=4..8,6]", MASK)
    assert all(output.passed for output in verdict.outputs)
    assert verdict.reasons[0].code is ReasonCode.INPUT_IGNORED
    assert "'mask'" in verdict.reasons[0].text


def test_an_input_that_the_artifact_does_not_take_fails_if_eager_uses_it(judged: Judged) -> None:
    verdict = judged(masked, linear, X, MASK, taken=["x"])
    (ignored,) = (r for r in verdict.reasons if r.code is ReasonCode.INPUT_IGNORED)
    assert "'mask'" in ignored.text
    assert "take" in ignored.text


def test_an_only_input_is_found_ignored(judged: Judged) -> None:
    def stuck(feed: Feed) -> Outputs:
        return {"y": np.ones_like(feed["x"]) @ WEIGHT}

    (ignored,) = (r for r in judged(linear, stuck, X).reasons if r.code is ReasonCode.INPUT_IGNORED)
    assert "'x'" in ignored.text


def test_a_constant_output_is_named(judged: Judged) -> None:
    def constant(feed: Feed) -> Outputs:
        return heads(feed) | {"b": np.full((len(feed["x"]), 4), 0.25, np.float32)}

    verdict = judged(heads, constant, X)
    (constants,) = (r for r in verdict.reasons if r.code is ReasonCode.OUTPUT_CONSTANT)
    assert constants.output == "b"
    assert "input 'x'" not in verdict.reason


def test_an_integer_output_must_be_exact(judged: Judged) -> None:
    def labels(feed: Feed) -> Outputs:
        return {"label": linear(feed)["y"].argmax(-1)}

    verdict = judged(labels, lambda feed: {"label": labels(feed)["label"] + 1}, X)
    assert reason_codes(verdict)[0] is ReasonCode.OUTPUT_DIFFERS
    assert {output.max_abs for output in verdict.outputs} == {1}


def test_a_bool_output_must_be_exact(judged: Judged) -> None:
    def signs(feed: Feed) -> Outputs:
        return {"sign": linear(feed)["y"] > 0}

    verdict = judged(signs, lambda feed: {"sign": ~signs(feed)["sign"]}, X)
    assert reason_codes(verdict)[0] is ReasonCode.OUTPUT_DIFFERS
    assert "4 of 4" in verdict.outputs[0].reason


def test_the_worst_output_is_the_one_named(judged: Judged) -> None:
    def wrong(feed: Feed) -> Outputs:
        good = heads(feed)
        return {"a": good["a"] * np.float32(1.001), "b": good["b"] * np.float32(1.5)}

    verdict = judged(heads, wrong, X)
    assert "output 'b'" in verdict.reason
    assert "(and 9 more)" in verdict.reason


def test_a_mask_fill_does_not_hide_a_wrong_answer(judged: Judged) -> None:
    def filled(feed: Feed) -> Outputs:
        return {"y": with_first(linear(feed)["y"], -1e9)}

    def wrong(feed: Feed) -> Outputs:
        return {"y": with_first(linear(feed)["y"] * np.float32(1.01), -1e9)}

    assert judged(filled, filled, X).passed
    assert judged(filled, wrong, X).state is State.FAILED


def test_comparing_an_array_with_itself_is_an_internal_error() -> None:
    y: Array = np.ones(3, np.float32)
    feed = NamedFeed(name="opt", arrays={}, sizes={})
    with pytest.raises(RuntimeError, match="shares memory"):
        verdict_on(
            [ReferenceOutputs(feed=feed, outputs={"y": y})], [ArtifactOutputs(outputs={"y": y[:]})]
        )


def test_judging_without_feeds_is_an_internal_error() -> None:
    with pytest.raises(RuntimeError, match="no feeds"):
        verdict_on([], [])


def test_values_that_are_halves_in_eager_too_are_not_called_a_cast(judged: Judged) -> None:
    def eager(feed: Feed) -> Outputs:
        return {"y": np.round(linear(feed)["y"] * 100)}

    verdict = judged(eager, lambda feed: {"y": eager(feed)["y"] + np.float32(1)}, X)
    assert verdict.state is State.FAILED
    assert "half" not in verdict.reason


def test_an_input_that_moves_the_artifact_on_some_feed_is_not_called_ignored(
    judged: Judged,
) -> None:
    def even(feed: Feed) -> Outputs:
        return {"y": np.abs(feed["x"]) @ WEIGHT}

    verdict = judged(linear, even, "x:float32[4,6]")
    assert verdict.state is State.FAILED
    assert "ignored" not in verdict.reason


def test_an_input_that_is_not_taken_is_ignored_though_the_outputs_have_other_names(
    judged: Judged,
) -> None:
    def constant(feed: Feed) -> Outputs:
        return {"4": np.zeros((len(feed["x"]), 4), np.float32)}

    verdict = judged(linear, constant, X, taken=[])
    (ignored,) = (r for r in verdict.reasons if r.code is ReasonCode.INPUT_IGNORED)
    assert "'x'" in ignored.text
    assert "take" in ignored.text
    assert not [note for note in verdict.notes if "'x'" in note]
