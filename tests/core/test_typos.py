"""Dims that are nearly another's name are typos; names that differ by intent are not."""

from __future__ import annotations

import pytest

from modelc.core.dims import check_typos
from modelc.core.errors import UsageError
from modelc.core.grammar import parse_input


def check(*texts: str, known: tuple[str, ...] = ()) -> None:
    check_typos([d for text in texts for d in parse_input(text).dims or () if d], known)


@pytest.mark.parametrize(
    ("text", "meant"), [("m[bacth]", "batch"), ("m[n=sqe+1]", "seq"), ("m[btch]", "batch")]
)
def test_a_typo_names_the_dim_that_was_meant(text: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean '{meant}'"):
        check("ids[batch=1..4,seq=1..9]", text)


def test_a_typo_of_a_dim_that_the_checkpoint_names_is_found() -> None:
    with pytest.raises(UsageError, match="did you mean 'sequence'"):
        check("ids[4,seqence]", known=("batch", "sequence"))


@pytest.mark.parametrize(
    "text",
    ["m[seq2]", "m[q_len,k_len]", "m[bacth=1..3]", "m[bacth,bacth]", "m[batch,seq]", "m[h,w]"],
)
def test_names_that_are_meant_are_let_through(text: str) -> None:
    check("ids[batch=1..4,seq=1..9]", text)
