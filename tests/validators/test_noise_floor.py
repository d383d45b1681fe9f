"""FP32 by the noise floor: eager's own distance from float64 is the measure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from modelc.core.kinds import Precision, ReasonCode
from modelc.core.verdict import Excuse, Limits, State, Verdict
from modelc.validators.feeds import NamedFeed
from modelc.validators.output_pairs import ArtifactOutputs, ReferenceOutputs
from modelc.validators.tolerance import TOLERANCES, override_limits

from .judging import verdict_on

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Model = Callable[[Array], Array]

F, D = np.float32, np.float64
X = "x:float32[batch,6]"
RNG = np.random.default_rng(5)
FIRST, SECOND = RNG.standard_normal((6, 300)), RNG.standard_normal((300, 8))


def exact(x: Array, first: Array = FIRST, second: Array = SECOND) -> Array:
    return np.tanh(x.astype(D) @ first) @ second


def multiply(x: Array, weight: Array, step: int = 1) -> Array:
    """The product in float32, summed in order: a BLAS rounds differently on each CPU."""
    terms = x[:, ::step, None] * weight.astype(F)[::step]
    return np.asarray(np.cumsum(terms, axis=1, dtype=F)[:, -1])


def eager(x: Array) -> Array:
    """The same in float32."""
    return multiply(np.tanh(multiply(x, FIRST)), SECOND)


def reordered(x: Array) -> Array:
    """A good conversion: the sums of eager in another order."""
    return multiply(np.tanh(multiply(x, FIRST, -1)), SECOND, -1)


def judged(
    artifact: Model,
    reference: Model = eager,
    truth: Model | None = exact,
    draws: Sequence[Model] = (),
    only: Collection[str] | None = None,
    **limits: float,
) -> Verdict:
    generator = np.random.default_rng(11)  # the same feeds in whatever order tests run
    feeds = [generator.standard_normal((4, 6)).astype(F) for _ in range(8)]
    references, replies = [], []
    for number, x in enumerate(feeds):
        references.append(
            ReferenceOutputs(
                feed=NamedFeed(name=f"seed-{number}", arrays={"x": x}, sizes={"batch": 4}),
                outputs={"y": reference(x)},
                exact={"y": truth(x)}
                if truth is not None and (only is None or f"seed-{number}" in only)
                else None,
                again=tuple({"y": draw(x)} for draw in draws),
            )
        )
        replies.append(ArtifactOutputs(outputs={"y": np.array(artifact(x), dtype=F)}))
    tolerance = override_limits(TOLERANCES[Precision.FP32], Limits(**limits))
    return verdict_on(references, replies, tolerance=tolerance, signature=X)


def altered(place: tuple[int, int], times: float) -> Model:
    """A conversion with one weight of the first layer off."""
    weight = FIRST.copy()
    weight[place] *= times
    return lambda x: np.asarray(np.tanh(x @ weight.astype(F)) @ SECOND.astype(F))


def test_sums_in_another_order_pass_with_a_margin() -> None:
    verdict = judged(reordered)
    assert verdict.passed
    assert all(o.times_floor is not None and o.times_floor < 3 for o in verdict.outputs)
    assert verdict.headroom is not None
    assert 0 < verdict.headroom < 40


@pytest.mark.parametrize("times", [1.1, 1.01, 1.001])
def test_one_weight_of_two_thousand_off_by_a_thousandth_fails(times: float) -> None:
    place = (0, int(np.abs(FIRST[0]).argmax()))
    verdict = judged(altered(place, times))
    assert verdict.state is State.FAILED
    assert "float64" in verdict.reason
    assert "limit 5" in verdict.reason
    assert any(o.times_floor is not None and o.times_floor > 5 for o in verdict.outputs)
    assert verdict.headroom is not None
    assert verdict.headroom < 0


def test_the_same_weight_off_by_a_thousandth_passes_the_table() -> None:
    place = (0, int(np.abs(FIRST[0]).argmax()))
    assert judged(altered(place, 1.0001), min_sqnr=90).passed


def cancelling(dtype: Any, order: int = 0, off: float = 0.0) -> Model:
    """Two weights of 3e4 cancel, the one of them off: float32 keeps 60 dB."""

    def model(x: Array) -> Array:
        large = np.full((4, 8), 3e4).astype(dtype)
        terms = [x.astype(dtype) @ FIRST[:, :8].astype(dtype), large, -large * dtype(1 + off)]
        total = terms[order] + terms[(order + 1) % 3]
        return np.asarray(total + terms[(order + 2) % 3])

    return model


MOVING = [cancelling(F, off=sign * share) for share in (1.2e-7, 2.4e-7) for sign in (1, -1)]


def test_an_ill_conditioned_model_passes_though_the_table_rejects_it() -> None:
    """Eager itself has 60 dB: large terms cancel."""
    models = cancelling(F, 1), cancelling(F), cancelling(D)
    verdict = judged(*models, draws=MOVING)
    assert verdict.passed, verdict.reason
    below = [o for o in verdict.outputs if o.sqnr is not None and o.sqnr < 90]
    assert below
    assert all(o.excuse is Excuse.ILL_CONDITIONED and o.moved for o in below)
    assert any("ill-conditioned" in note for note in verdict.notes)
    assert judged(*models, draws=MOVING, min_sqnr=90).state is State.FAILED


def test_nothing_is_ill_conditioned_before_eager_was_seen_to_move() -> None:
    models = cancelling(F, 1), cancelling(F), cancelling(D)
    assert judged(*models).state is State.FAILED
    still = judged(*models, draws=[cancelling(F)] * 6)
    assert still.state is State.FAILED
    assert all(o.moved == 0 for o in still.outputs)


def on_one_feed(change: Model, model: Model) -> Model:
    """The model, changed where the first element of the feed is that of the third feed."""
    generator = np.random.default_rng(11)
    third = [generator.standard_normal((4, 6)).astype(F) for _ in range(3)][2]

    def changed(x: Array) -> Array:
        return change(model(x)) if x[0, 0] == third[0, 0] else model(x)

    return changed


STILL = [lambda x, s=s: eager(x * F(1 + s)) for s in (1e-7, -1e-7, 2e-7, -2e-7)]


@pytest.mark.parametrize("draws", [[], STILL], ids=["first look", "with draws"])
@pytest.mark.parametrize("times", [1.05, 1.5, 1 + 1e-5])
def test_float64_that_is_another_function_on_one_feed_excuses_nothing_there(
    draws: list[Model], times: float
) -> None:
    """Float64 is half as much again there, and eager does not move: the artifact is held to it."""
    truth = on_one_feed(lambda y: y * 1.5, exact)
    wrong = on_one_feed(lambda y: y * F(times), reordered)
    verdict = judged(wrong, truth=truth, draws=draws)
    assert verdict.state is State.FAILED
    assert [o.feed for o in verdict.outputs if not o.passed] == ["seed-2"]
    right = judged(reordered, truth=truth, draws=draws)
    assert right.passed, right.reason


def test_rows_in_which_float64_is_another_function_are_held_to_eager() -> None:
    def one_row(y: Array) -> Array:
        y = y.copy()
        y[1] = 0
        return y

    truth = on_one_feed(one_row, exact)
    assert judged(on_one_feed(one_row, reordered), truth=truth, draws=STILL).state is State.FAILED
    assert judged(reordered, truth=truth, draws=STILL).passed


def test_an_error_of_more_than_a_hundredth_of_the_peak_is_no_roundoff() -> None:
    """Eager moves by a tenth, and an artifact that is a third off is held to eager all the same."""
    chaos = [lambda x, s=s: eager(x) * F(1 + s) for s in (0.1, -0.1, 0.2, -0.2)]
    verdict = judged(
        lambda x: eager(x) * F(1.3), truth=lambda x: exact(x) * (1 + 5e-3), draws=chaos
    )
    assert verdict.state is State.FAILED
    assert not any(o.passed for o in verdict.outputs)


def test_feeds_without_float64_are_held_to_eager_by_what_it_usually_errs() -> None:
    few = {"seed-0", "seed-1", "seed-2"}
    assert judged(reordered, only=few).passed
    wrong = judged(on_one_feed(lambda y: y * F(1 + 3e-5), reordered), only=few - {"seed-2"})
    assert wrong.state is State.FAILED
    assert [o.feed for o in wrong.outputs if not o.passed] == ["seed-2"]
    assert next(o for o in wrong.outputs if o.feed == "seed-2").floor is None


def test_a_verdict_that_passed_without_a_reason_on_record_is_an_internal_error() -> None:
    verdict = judged(cancelling(F, 1), cancelling(F), cancelling(D), draws=MOVING)
    outputs = tuple(replace(output, excuse=None) for output in verdict.outputs)
    with pytest.raises(RuntimeError):
        replace(verdict, outputs=outputs).check_explained()


def test_one_element_of_many_that_is_off_fails_though_l2_does_not_see_it() -> None:
    def off(x: Array) -> Array:
        y = reordered(x).copy()
        y[2, 3] += 3e-4
        return y

    assert judged(off).state is State.FAILED


@pytest.mark.parametrize("only", [None, ("seed-0", "seed-1"), ("seed-5",)])
def test_a_channel_that_is_off_on_every_feed_fails_and_is_named(
    only: Collection[str] | None,
) -> None:
    scale = np.ones(8)
    scale[5] = 1 + 4.5e-6

    def off(x: Array) -> Array:
        return np.asarray(reordered(x) * scale).astype(F)

    verdict = judged(off, only=only)
    assert verdict.state is State.FAILED
    assert "channel 5 of axis -1" in verdict.reason


def test_a_channel_of_little_signal_is_held_to_its_noise_where_float64_was_run() -> None:
    """It is near zero by cancelling, so that its noise is large beside its signal."""
    wide = [SECOND.copy(), np.full_like(SECOND, 1e-6)]
    wide[0][:, 2], wide[1][:, 2] = 20.0, -20.0 * (1 - 1e-4)
    both = np.concatenate(wide)

    def model(kind: type[Any], step: int) -> Model:
        def run(x: Array) -> Array:
            hidden = np.tanh(x.astype(kind) @ FIRST.astype(kind))
            twice = np.concatenate([hidden, hidden], axis=1)[:, ::step]
            return np.asarray(twice @ np.ascontiguousarray(both.astype(kind)[::step]))

        return run

    def wrong(x: Array) -> Array:
        y = model(F, -1)(x)
        y[:, 2] += np.abs(y[:, 3]) * F(1e-3)
        return y

    few = ("seed-0", "seed-1", "seed-2")
    for only in (None, few):
        assert judged(model(F, -1), model(F, 1), model(D, 1), only=only).passed
        assert not judged(wrong, model(F, 1), model(D, 1), only=only).passed


def test_a_small_row_beside_large_ones_is_judged_at_its_own_noise() -> None:
    scale = np.array([[1e3], [1e3], [1e3], [1.0]])

    def scaled(model: Model) -> Model:
        return lambda x: np.asarray(model(x) * scale.astype(model(x).dtype))

    wide = np.tile(SECOND, (1, 5))

    def wrong(x: Array) -> Array:
        y = np.tile(reordered(x), (1, 5)) * scale.astype(F)
        y[3] *= F(1 + 2e-5)
        return np.asarray(y)

    verdict = judged(
        wrong,
        scaled(lambda x: np.tile(eager(x), (1, 5))),
        scaled(lambda x: exact(x, second=wide)),
    )
    assert verdict.state is State.FAILED


def test_float64_that_is_another_function_is_not_believed() -> None:
    verdict = judged(reordered, truth=lambda x: 1.5 * exact(x))
    assert verdict.passed
    assert all(o.times_floor is None for o in verdict.outputs)
    assert any("the table" in note for note in verdict.notes)
    wrong = judged(lambda x: np.asarray(1.5 * exact(x)), truth=lambda x: 1.5 * exact(x))
    assert wrong.state is State.FAILED


def test_without_float64_the_table_judges() -> None:
    verdict = judged(reordered, truth=None)
    assert verdict.passed
    assert verdict.outputs[0].floor is None


def test_a_tolerance_that_was_asked_for_puts_the_floor_aside() -> None:
    place = (0, int(np.abs(FIRST[0]).argmax()))
    assert judged(altered(place, 1.01), min_sqnr=30, rtol=1.0).passed
    assert judged(altered(place, 1.01), min_sqnr=30, rtol=1.0, floor_factor=5).state is State.FAILED


def test_an_output_that_eager_computes_without_error_allows_an_ulp() -> None:
    double = judged(
        lambda x: x * F(2) * F(1 + 2**-23), lambda x: x * F(2), lambda x: x.astype(D) * 2
    )
    assert double.passed
    wrong = judged(
        lambda x: x * F(2) * F(1 + 2**-19), lambda x: x * F(2), lambda x: x.astype(D) * 2
    )
    assert wrong.state is State.FAILED


def test_more_draws_of_eagers_noise_take_its_luck_out() -> None:
    """One element of many errs, and eager's own draw of it came out near float64 by chance."""
    truth = np.full((4, 100), 1.0)
    truth[0, 0] = 1000.0
    lucky, artifact = truth.astype(F), truth.astype(F)
    lucky[0, 0] = F(1000.0)
    artifact[0, 0] = F(1000.02)
    draws = [truth.copy() for _ in range(6)]
    for draw, error in zip(draws, (0.01, -0.02, 0.015, -0.01, 0.02, -0.015), strict=True):
        draw[0, 0] += error

    def verdict(again: list[Array]) -> Verdict:
        feed = NamedFeed(name="opt", arrays={"x": np.zeros((4, 6), F)}, sizes={})
        one = ReferenceOutputs(
            feed=feed,
            outputs={"y": lucky},
            exact={"y": truth},
            again=tuple({"y": draw.astype(F)} for draw in again),
        )
        return verdict_on([one], [ArtifactOutputs(outputs={"y": artifact})], signature=X)

    assert verdict([]).state is State.FAILED
    assert verdict(draws).passed


def test_an_element_that_a_draw_makes_nan_of_is_judged_all_the_same() -> None:
    """A square root of 0 is NaN where the input is off to below."""
    truth = np.random.default_rng(3).random((4, 100)) + 1
    truth[0, 0] = 0.5
    plain = truth.astype(F)
    draws = [truth * (1 + s * 2**-24) for s in (1, -1)]
    for draw in draws:
        draw[0] = np.nan
    wrong = plain.copy()
    wrong[0, 0] = 0.75
    feed = NamedFeed(name="opt", arrays={"x": np.zeros((4, 6), F)}, sizes={})
    one = ReferenceOutputs(
        feed=feed,
        outputs={"y": plain},
        exact={"y": truth},
        again=tuple({"y": draw.astype(F)} for draw in draws),
    )
    verdict = verdict_on([one], [ArtifactOutputs(outputs={"y": wrong})], signature=X)
    assert verdict.state is State.FAILED


@pytest.mark.parametrize("wrong", ["shape", "nan"])
def test_float64_that_cannot_be_compared_with_eager_is_noted(wrong: str) -> None:
    def truth(x: Array) -> Array:
        return exact(x)[:3] if wrong == "shape" else exact(x) * np.nan

    verdict = judged(reordered, truth=truth)
    assert verdict.passed
    assert any("the table" in note for note in verdict.notes)


def test_a_complex_channel_is_judged_by_its_imaginary_part_too() -> None:
    def spectrum(x: Array) -> Array:
        return np.asarray((x @ FIRST[:, :8]) * (1 + 1j) * 10.0 ** (-0.7 * np.arange(8))).astype(
            np.complex64
        )

    def wrong(x: Array) -> Array:
        y = spectrum(x)
        y.imag[:, 7] *= -1
        return y

    references, replies, good = [], [], []
    for number in range(3):
        x = np.random.default_rng(number).standard_normal((4, 6)).astype(F)
        feed = NamedFeed(name=f"seed-{number}", arrays={"x": x}, sizes={})
        references.append(ReferenceOutputs(feed=feed, outputs={"y": spectrum(x)}))
        replies.append(ArtifactOutputs(outputs={"y": wrong(x)}))
        good.append(ArtifactOutputs(outputs={"y": spectrum(x) * np.complex64(1 + 1e-7)}))

    assert verdict_on(references, good, signature=X).passed
    (channel,) = verdict_on(references, replies, signature=X).reasons
    assert channel.code is ReasonCode.CHANNEL_DIFFERS
    assert "channel 7" in channel.text


def test_float64_numbers_whose_squares_overflow_are_judged_by_the_table() -> None:
    def scaled(model: Model) -> Model:
        return lambda x: np.asarray(model(x).astype(D) * 1e300)

    feed = NamedFeed(name="opt", arrays={"x": np.ones((4, 6), F)}, sizes={})
    truth = scaled(exact)(np.ones((4, 6), F))
    for times, passes in ((1 + 1e-15, True), (1.5, False)):
        one = ReferenceOutputs(feed=feed, outputs={"y": truth}, exact={"y": truth.copy()})
        verdict = verdict_on([one], [ArtifactOutputs(outputs={"y": truth * times})], signature=X)
        assert verdict.passed == passes
