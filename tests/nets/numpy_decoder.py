"""A small decoder in numpy, with a cache, a mask and positions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from modelc.core.contract import Feed, Outputs
from modelc.core.dims import Dim, Relation
from modelc.core.generation import DecoderLoop
from modelc.core.signature import InputSpec, Signature
from modelc.validators.token_loop import LoopRunner

IDS, SIZE = 11, 4
BATCH = Dim(name="batch", low=1, opt=2, high=4)
TOKENS = Dim(name="sequence", low=1, opt=4, high=6)
PAST = Dim(name="past", low=0, opt=4, high=9)
TOTAL = Dim.follow("total", Relation(base="past", others=(("sequence", 1),)), PAST, TOKENS)
KEY = "past_key_values.0.key"
SIGNATURE = Signature(
    inputs=(
        InputSpec(name="input_ids", dtype="int64", dims=(BATCH, TOKENS)),
        InputSpec(name="attention_mask", dtype="int64", dims=(BATCH, TOTAL)),
        InputSpec(name="position_ids", dtype="int64", dims=(BATCH, TOKENS)),
        InputSpec(
            name=KEY,
            dtype="float32",
            dims=(BATCH, Dim.of_size(1), PAST, Dim.of_size(SIZE)),
        ),
    ),
    outputs=("logits", "present.0.key"),
)
TABLE = np.random.default_rng(0).normal(size=(IDS, SIZE)).astype(np.float32)
HEAD = np.random.default_rng(1).normal(size=(SIZE, IDS)).astype(np.float32)


def decode(feed: Feed) -> Outputs:
    """Average the embeddings of visible tokens, each scaled by its position, up to each one."""
    ids, mask, places = (feed[name] for name in ("input_ids", "attention_mask", "position_ids"))
    new = (TABLE[ids] * (1 + places[..., None] % 5)).astype(np.float32)[:, None]
    cache = np.concatenate([feed[KEY], new], axis=2)
    past, logits = feed[KEY].shape[2], []
    for token in range(ids.shape[1]):
        end = past + token + 1
        shown = mask[:, :end, None].astype(np.float32)
        mean = (cache[:, 0, :end] * shown).sum(1) / np.maximum(shown.sum(1), 1)
        logits.append(mean @ HEAD)
    return {"logits": np.stack(logits, axis=1), "present.0.key": cache}


def make_runner(run: Callable[[Feed], Outputs] = decode) -> LoopRunner:
    loop = DecoderLoop.find((spec.name for spec in SIGNATURE.inputs), SIGNATURE.outputs)
    assert loop is not None
    inputs = {spec.name: spec for spec in SIGNATURE.inputs}
    return LoopRunner(run=run, loop=loop, inputs=inputs, constant={})
