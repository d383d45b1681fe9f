"""The inputs of parts, as they follow from the calls of a function that composes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from modelc.core.call import Parameter
from modelc.core.contract import Feed, Outputs
from modelc.core.errors import CheckpointError, ErrorCode, UsageError
from modelc.core.grammar import parse_input
from modelc.core.signature import Signature, merge_inputs
from modelc.pipeline.parts.compose_function import PartCall
from modelc.pipeline.parts.eager_parts import EagerParts, EagerRun
from modelc.pipeline.parts.part_inputs import CallRecorder, extra_feeds
from modelc.validators.feeds import draw_feeds

from ..reasons import has_code

Compose = Callable[[Callable[..., Any], Feed], object]


class Sums(EagerParts):
    """A part that returns the sum of its first argument."""

    def run(self, how: EagerRun, name: str, feed: Feed) -> Outputs:
        del how, name
        return {"output": np.asarray(next(iter(feed.values())).sum())}


def inputs_of(*specs: str) -> Signature:
    return merge_inputs([parse_input(text) for text in specs], {})


def infer(
    whole: Sequence[str], takes: Sequence[str], compose: Compose, stated: Sequence[str] = ()
) -> tuple[str, ...]:
    """The inputs of the part `p`, which `compose` calls on all feeds of the whole."""
    signature = inputs_of(*whole)
    recorder = CallRecorder(parts=Sums(modules={}), signature=signature)
    part = PartCall("p", [Parameter(name=name) for name in takes], recorder.record_call)
    for feed in (*draw_feeds(signature, count=8), *extra_feeds(signature, 0, None)):
        recorder.begin(feed)
        compose(part, feed.arrays)
    found = recorder.describe_inputs("p", stated)
    inputs_of(*found)  # they are in the language of --input, and fit each other
    return found


IMAGE = "x:float32[batch=1..3,3,h=8*(k=2..6),w=8*(m=2..6)]"
TEXT = "ids:int64[batch=1..3,seq=8..24]{0..99}"


@pytest.mark.parametrize(
    ("whole", "compose", "found"),
    [
        ((TEXT,), lambda p, a: p(a["ids"]), "y:int64[batch=1..3,seq=8..24]{0..99}"),
        # rows are doubled, and the sequence has one more
        (
            (TEXT,),
            lambda p, a: p(np.pad(np.vstack([a["ids"]] * 2), ((0, 0), (0, 1)))),
            "y:int64[y_0=2*(batch=1..3),y_1=9..25]{0..99}",
        ),
        ((TEXT,), lambda p, a: p(a["ids"][:1, :4]), "y:int64[1,4]{0..99}"),
        # an image, and what a stride of 8 leaves of it
        ((IMAGE,), lambda p, a: p(a["x"]), "y:float32[batch=1..3,3,y_2=8*(k=2..6),y_3=8*(m=2..6)]"),
        (
            (IMAGE,),
            lambda p, a: p(a["x"][:, :1, ::8, ::8]),
            "y:float32[batch=1..3,1,k=2..6,m=2..6]",
        ),
        # a number that differs in each call
        (
            (TEXT,),
            lambda p, a: [p(np.full(len(a["ids"]), t, np.float32)) for t in (0.25, 0.5)],
            "y:float32[batch=1..3]{0.25..0.5}",
        ),
        # other integers than those of the whole
        (
            (TEXT,),
            lambda p, a: p(1000 + np.arange(len(a["ids"]))),
            "y:int64[batch=1..3]{1000..1002}",
        ),
        # a loop of its own
        (
            (TEXT,),
            lambda p, _: [p(np.zeros((1, n), np.float32)) for n in range(1, 6)],
            "y:float32[1,y_1=1..5]{0..0}",
        ),
    ],
    ids=["as it is", "doubled", "fixed", "image", "stride", "number", "integers", "loop"],
)
def test_the_input_of_a_part(whole: tuple[str, ...], compose: Compose, found: str) -> None:
    assert infer(whole, ["y"], compose) == (found,)


def test_two_dims_do_not_agree_by_chance() -> None:
    """At all corners, seq is eight times the batch."""
    found = infer([TEXT], ["y"], lambda p, a: p(a["ids"].astype(np.float32)))
    assert found == ("y:float32[batch=1..3,seq=8..24]",)


def test_a_size_follows_others_of_the_part() -> None:
    def loop(part: Callable[..., Any], _: Feed) -> None:
        for past in range(4):
            for new in (1, 2):
                one = np.zeros((1, past, 4), np.float32)
                part(one, np.ones((1, new), np.int64), np.ones((1, past + new), np.int64))

    found = infer([TEXT], ["past", "ids", "mask"], loop)
    assert found == (
        "past:float32[1,past_1=0..3,4]",
        "ids:int64[1,ids_1=1..2]{1..1}",
        "mask:int64[1,ids_1+past_1]{1..1}",
    )


def test_what_the_user_states_is_kept() -> None:
    stated = "y:int64[n=1..64]{0..999}"
    assert infer([TEXT], ["y"], lambda p, a: p(np.arange(len(a["ids"]))), [stated]) == (stated,)
    part = ["y{0..9}", "y[_]{0..9}", "y[batch=1..64]"]
    found = [infer([TEXT], ["y"], lambda p, a: p(np.arange(len(a["ids"]))), [one]) for one in part]
    assert found == [
        ("y:int64[batch=1..3]{0..9}",), ("y:int64[batch=1..3]{0..9}",),
        ("y:int64[batch=1..64]{0..2}",),
    ]  # fmt: skip
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, naming="y[_,_]")):
        infer([TEXT], ["y"], lambda p, a: p(np.arange(len(a["ids"]))), ["y[_,_]"])
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_INPUT, naming="p.z")):
        infer([TEXT], ["y"], lambda p, a: p(a["ids"]), ["z:int64[3]"])


def test_another_rank_in_another_call_is_an_error() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.COMPOSE_FAILED, naming="'y'")):
        infer([TEXT], ["y"], lambda p, a: (p(a["ids"]), p(a["ids"][0])))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((np.ones(2), np.ones(2), np.ones(2)), "got 3 arguments by position, it takes x, y"),
        ((3,), "got 'x' as int, not as a numpy array"),
        ((None,), "got 'x' as NoneType"),
        (([1.0],), "got 'x' as list"),
        ((np.ones(2, complex),), "got 'x' as complex128, which no input can be"),
        ((np.array(["a"]),), "got 'x' as <U1"),
    ],
)
def test_a_call_with_something_else_than_arrays(given: tuple[Any, ...], message: str) -> None:
    part = PartCall("p", [Parameter(name="x"), Parameter(name="y")], lambda _, feed: dict(feed))
    with pytest.raises(CheckpointError) as raised:
        part(*given)
    assert message in raised.value.message


def test_arguments_go_by_position_and_name_and_results_have_the_form_of_the_method() -> None:
    part = PartCall("p", [Parameter(name="x"), Parameter(name="y")], lambda _, feed: dict(feed))
    found = part(y=np.ones(2), x=np.zeros(1))
    assert isinstance(found, dict)
    assert list(found) == ["x", "y"]
    assert isinstance(part(np.float32(3)), np.ndarray)  # one output
    pair = PartCall(
        "p", [Parameter(name="x")], lambda _, feed: {"output.0": feed["x"], "output.1": feed["x"]}
    )
    assert isinstance(pair(np.ones(2)), tuple)
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.INVALID_VALUE, naming="'z'")):
        part(z=np.ones(1))
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.INVALID_VALUE, naming="'x'")):
        part(np.ones(1), x=np.ones(1))
