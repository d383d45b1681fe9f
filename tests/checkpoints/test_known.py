"""What a checkpoint assumes of its inputs gives way to what is said of one of them."""

from __future__ import annotations

import pytest
import torch

from modelc.checkpoints.loaded_module import LoadedModule, merge_known_inputs
from modelc.core.grammar import parse_input
from modelc.core.signature import merge_inputs

IDS, MASK = "ids:int64[batch=1..4,seq=2..64]", "mask:int64[batch=1..4,seq=2..64]"


def settled(*inputs: str, assumed: bool = True) -> list[str]:
    known = {
        spec.name: spec for spec in merge_inputs([parse_input(IDS), parse_input(MASK)], {}).inputs
    }
    module = torch.nn.Identity()
    loaded = LoadedModule(kind="test", module=module, takes=(), known=known, assumed=assumed)
    patterns = [parse_input(text) for text in inputs]
    return [
        str(spec) for spec in merge_inputs(patterns, merge_known_inputs(loaded, patterns)).inputs
    ]


@pytest.mark.parametrize("given", ["ids:int64[batch=1..4,seq=1..100]", "ids[_,seq=1..100]"])
def test_a_range_that_is_given_once_holds_in_the_other_inputs(given: str) -> None:
    assert settled(given) == [
        "ids:int64[batch=1..4,seq=1..100]", "mask:int64[batch=1..4,seq=1..100]",
    ]  # fmt: skip


def test_a_relation_that_is_given_once_holds_in_the_other_inputs() -> None:
    assert settled("ids:int64[batch=1..4,seq=8*(k=1..4)]")[1] == (
        "mask:int64[batch=1..4,seq=8*(k=1..4)]"
    )


def test_without_a_range_the_other_inputs_say_it() -> None:
    assert settled("ids:int64[batch,seq]") == [IDS, MASK]


def test_what_a_program_says_of_itself_does_not_give_way() -> None:
    assert settled(IDS, assumed=False) == [IDS, MASK]
