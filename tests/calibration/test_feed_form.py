"""Where the batch axis is, and how samples become feeds."""

from __future__ import annotations

import numpy as np
import pytest

from modelc.calibration.feed_form import FeedForm
from modelc.calibration.sample_content import PromptForm, SampleError, complete_prompt

from .conftest import normal, signature_of


def form_of(*inputs: str) -> FeedForm:
    return FeedForm.of(signature_of(*inputs))


@pytest.mark.parametrize(
    ("text", "per_feed"),
    [
        ("x:float32[batch,3]", 1),
        ("x:float32[N=1..8,3]", 1),
        ("x:float32[batch_size=2..8,3]", 2),
        ("x:float32[1,3]", 1),
        ("x:float32[16,3]", 16),
        ("x:float32[seq=1..9,3]", 0),
        ("x:float32[]", 0),
    ],
)
def test_a_feed_holds_the_fewest_samples_that_the_signature_takes(text: str, per_feed: int) -> None:
    assert form_of(text).per_feed == per_feed


def test_a_telling_name_counts_before_the_first_input() -> None:
    form = form_of("anchors:float32[9,4]", "x:float32[batch,3]")
    assert (form.axes, form.per_feed) == ({"x": 0}, 1)


def test_an_input_without_the_batch_axis_goes_with_every_row() -> None:
    form = form_of("x:float32[batch,3]", "anchors:float32[9,4]")
    x, anchors = normal(5, 3), normal(9, 4)
    rows = form.rows({"x": x, "anchors": anchors})
    assert len(rows) == 5
    assert all(row["anchors"] is anchors for row in rows)


def test_states_of_a_recurrent_layer_have_their_batch_axis_second() -> None:
    form = form_of("x:float32[batch=2..8,seq=1..9,3]", "h:float32[2,batch,4]")
    assert (form.axes, form.per_feed) == ({"x": 0, "h": 1}, 2)
    whole = {"x": normal(6, 5, 3), "h": normal(2, 6, 4)}
    rows = form.rows(whole)
    assert {(row["x"].shape, row["h"].shape) for row in rows} == {((1, 5, 3), (2, 1, 4))}
    joined = form.stack(rows)
    assert all(np.array_equal(joined[name], whole[name]) for name in whole)
    (single,) = form.rows({"x": normal(5, 3), "h": normal(2, 4)})
    assert (single["x"].shape, single["h"].shape) == ((1, 5, 3), (2, 1, 4))
    assert form.count_missing(form.fit(single)) == 1


@pytest.mark.parametrize(("shape", "count"), [((3,), 1), ((1, 3), 1), ((4, 3), 4), ((12, 3), 12)])
def test_a_batch_is_cut_into_rows_of_one(shape: tuple[int, ...], count: int) -> None:
    array = normal(*shape)
    rows = form_of("x:float32[batch=1..8,3]").rows({"x": array})
    assert {row["x"].shape for row in rows} == {(1, 3)}
    np.testing.assert_array_equal(np.concatenate([r["x"] for r in rows]), array.reshape(count, 3))


def test_a_sequence_is_not_cut_into_its_steps() -> None:
    rows = form_of("x:float32[seq=1..9,3]").rows({"x": normal(7, 3)})
    assert [row["x"].shape for row in rows] == [(7, 3)]


def test_an_image_without_a_batch_axis_is_not_cut_into_its_channels() -> None:
    form = form_of("x:float32[3,8,8]")
    (row,) = form.rows({"x": normal(3, 8, 8)})
    assert form.count_missing(row) == 0


def test_rows_are_stacked_where_a_feed_takes_several() -> None:
    form = form_of("x:float32[4,3]")
    rows = form.rows({"x": normal(6, 3)})
    assert [form.count_missing(row) for row in rows] == [3] * 6
    np.testing.assert_array_equal(form.stack(rows[:4])["x"], normal(6, 3)[:4])


def test_rows_of_different_sizes_are_not_stacked() -> None:
    form = form_of("x:float32[2,seq=1..9]")
    rows = [form.rows({"x": normal(size)})[0] for size in (3, 4)]
    with pytest.raises(SampleError, match=r"1x3.*1x4"):
        form.stack(rows)


def test_unequal_batches_and_a_lone_batch_axis_are_misfits() -> None:
    form = form_of("a:float32[batch,3]", "b:float32[batch,3]")
    with pytest.raises(SampleError, match=r"2.*4"):
        form.rows({"a": normal(2, 3), "b": normal(4, 3)})
    with pytest.raises(SampleError, match="b "):
        form.rows({"a": normal(2, 3), "b": normal(3)})


def test_what_is_fed_is_a_contiguous_copy_of_the_inputs_dtype() -> None:
    form = form_of("x:float32[batch,3]")
    source = np.asfortranarray(normal(5, 3).astype(">f8"))
    row = form.fit(form.rows({"x": source})[2])
    assert row["x"].dtype == np.float32
    assert row["x"].dtype.isnative
    assert row["x"].flags.c_contiguous
    assert not np.shares_memory(row["x"], source)


def test_a_sample_keeps_the_relations_of_its_dims() -> None:
    form = form_of("x:float32[batch,h=8*k]", "y:float32[batch,n=k+1]")
    assert set(form.fit({"x": normal(1, 16), "y": normal(1, 3)})) == {"x", "y"}
    with pytest.raises(SampleError, match=r"h=17.* 8\*k"):
        form.fit({"x": normal(1, 17), "y": normal(1, 3)})
    with pytest.raises(SampleError, match=r"2.*4.*y"):
        form.fit({"x": normal(1, 16), "y": normal(1, 5)})


def decoder() -> PromptForm:
    form = PromptForm.of(
        signature_of(
            "input_ids:int64[batch=1..4,seq=1..16]", "attention_mask:int64[batch,total=past+seq]",
            "position_ids:int64[batch,seq]", "past_key_values.0.key:float32[batch,2,past=0..16,8]",
            "past_key_values.0.value:float32[batch,2,past,8]",
        ).with_outputs(("logits", "present.0.key", "present.0.value"))
    )  # fmt: skip
    assert form is not None
    return form


@pytest.mark.parametrize("bare", [False, True])
def test_token_ids_become_a_prompt_of_a_decoder(*, bare: bool) -> None:
    ids = np.arange(10).reshape(2, 5)
    found = complete_prompt(ids if bare else {"input_ids": ids}, decoder())
    assert isinstance(found, dict)
    assert np.array_equal(found["input_ids"], ids)
    assert np.array_equal(found["attention_mask"], np.ones((2, 5)))
    assert np.array_equal(found["position_ids"], [[0, 1, 2, 3, 4]] * 2)
    pasts = [found[f"past_key_values.0.{name}"] for name in ("key", "value")]
    assert [(one.shape, one.dtype) for one in pasts] == [((2, 2, 0, 8), np.float32)] * 2


def test_positions_of_a_prompt_follow_its_mask() -> None:
    given = {"input_ids": np.ones((1, 4), int), "attention_mask": np.array([[0, 0, 1, 1]])}
    found = complete_prompt(given, decoder())
    assert isinstance(found, dict)
    assert found["attention_mask"] is given["attention_mask"]
    assert np.array_equal(found["position_ids"], [[0, 0, 0, 1]])


def test_a_part_of_a_past_is_not_completed() -> None:
    given = {"input_ids": np.ones((1, 4)), "past_key_values.0.key": np.ones((1, 2, 3, 8))}
    found = complete_prompt(given, decoder())
    assert isinstance(found, dict)
    assert "past_key_values.0.value" not in found


@pytest.mark.parametrize("value", [np.ones(3), {"x": np.ones((1, 2))}, {"input_ids": [1, 2]}])
def test_what_holds_no_rows_of_ids_stays(value: object) -> None:
    assert complete_prompt(value, decoder()) is value
    assert PromptForm.of(signature_of("x:float32[batch,3]")) is None
