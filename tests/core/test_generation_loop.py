"""Tests of the loop that is found from an artifact's names."""

from __future__ import annotations

import pytest

from modelc.core.dims import Dim
from modelc.core.generation import CacheState, DecoderLoop
from modelc.core.signature import InputSpec

DECODER = ("input_ids", "attention_mask", "position_ids")
PAIRS = tuple(f"past_key_values.{n}.{part}" for n in (0, 1) for part in ("key", "value"))
MADE = ("logits", *(name.replace("past_key_values", "present") for name in PAIRS))


def test_a_decoder_has_ids_mask_positions_and_pairs_in_the_order_of_its_inputs() -> None:
    loop = DecoderLoop.find(iter((*DECODER, *PAIRS)), iter(MADE))
    assert loop is not None
    assert (loop.ids, loop.mask, loop.positions, loop.logits) == (*DECODER, "logits")
    assert loop.cache[1] == CacheState(past=PAIRS[1], present="present.0.value")
    assert len(loop.cache) == 4
    assert loop.constant == ()
    outputs = {name: index for index, name in enumerate(MADE)}
    assert loop.next_cache(outputs) == dict(zip(PAIRS, range(1, 5), strict=True))  # type: ignore[arg-type]


def test_mask_positions_and_cache_may_be_missing() -> None:
    assert DecoderLoop.find(["input_ids"], ["logits"]) == DecoderLoop(
        ids="input_ids", mask=None, positions=None, cache=(), constant=()
    )


def test_states_of_other_names_are_pairs_too() -> None:
    loop = DecoderLoop.find(
        ("input_ids", "past_key_values.0.conv", "past_key_values.1.ssm"),
        ("logits", "present.1.ssm", "present.0.conv"),
    )
    assert loop is not None
    assert [one.present for one in loop.cache] == ["present.0.conv", "present.1.ssm"]


@pytest.mark.parametrize("returned", [(), ("present.0.encoder.key",)])
def test_states_of_an_encoder_stay(returned: tuple[str, ...]) -> None:
    constant = ("encoder_hidden_states", "encoder_attention_mask", "past_key_values.0.encoder.key")
    own = ("past_key_values.0.decoder.key", "present.0.decoder.key")
    loop = DecoderLoop.find(("input_ids", *constant, own[0]), ("logits", own[1], *returned))
    assert loop is not None
    assert loop.constant == constant
    assert loop.cache == (CacheState(past=own[0], present=own[1]),)


def test_inputs_without_a_prefix_are_the_encoders_beside_decoder_input_ids() -> None:
    inputs = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
    loop = DecoderLoop.find(inputs, ["logits"])
    assert loop is not None
    assert (loop.ids, loop.mask) == ("decoder_input_ids", "decoder_attention_mask")
    assert loop.constant == ("input_ids", "attention_mask")


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (("x",), ("logits",)),
        (("input_ids",), ("last_hidden_state",)),
        (("input_ids", "token_type_ids"), ("logits",)),
        (("input_ids", *PAIRS), MADE[:-1]),  # a state is not returned
        (("input_ids", *PAIRS[:-1]), MADE),  # a state is not taken
        (("input_ids",), MADE),  # a prompt alone
    ],
)
def test_what_cannot_be_continued_has_no_loop(
    inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> None:
    assert DecoderLoop.find(inputs, outputs) is None


def test_only_a_state_with_a_place_for_each_token_can_be_cut() -> None:
    loop = DecoderLoop.find(("input_ids", *PAIRS), MADE)
    assert loop is not None
    batch, past = Dim(name="batch", low=1, opt=4, high=8), Dim(name="past", low=0, opt=4, high=8)
    two = Dim.of_size(2)
    keys = InputSpec(name=PAIRS[0], dtype="float32", dims=(batch, two, past, two))
    assert loop.position_axis(keys, "batch") == 2
    ssm = InputSpec(name="past_key_values.0.ssm", dtype="float32", dims=(batch, two, two))
    assert loop.position_axis(ssm, "batch") is None
