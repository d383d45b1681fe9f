"""The language of `--postprocess`."""

from __future__ import annotations

import pytest

from modelc.core.errors import UsageError
from modelc.core.postprocess import Postprocess, class_axis


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        ("softmax", ("probabilities",)),
        ("sigmoid,output=logits", ("probabilities",)),
        ("argmax", ("class_ids",)),
        ("topk=5", ("scores", "class_ids")),
        ("softmax,topk=5,output=logits", ("scores", "class_ids")),
    ],
)
def test_steps_read_back_and_name_their_outputs(text: str, outputs: tuple[str, ...]) -> None:
    steps = Postprocess.parse(text)
    assert str(steps) == text
    assert steps.outputs == outputs


@pytest.mark.parametrize(
    "text",
    ["", "soft", "topk", "topk=0", "topk=x", "topk=-1", "argmax,softmax", "softmax,softmax",
     "argmax,topk=3", "output=x", "nms=0.5", "softmax,topk=99999999"],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Postprocess.parse(text)


def test_the_axis_of_classes_follows_the_rank() -> None:
    assert [class_axis(rank) for rank in (2, 3, 4)] == [1, -1, 1]
