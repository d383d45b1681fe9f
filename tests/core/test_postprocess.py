"""The language of `--postprocess`."""

from __future__ import annotations

import pytest

from modelc.core.errors import UsageError
from modelc.core.postprocess import Postprocess, Suppression, class_axis


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
     "argmax,topk=3", "output=x", "nms=0.5", "softmax,topk=99999999", "nms,topk=5", "nms,iou=2",
     "nms,iou=nan", "nms,max=0", "nms,max=1.5", "nms,candidates=9999", "nms,form=xywh",
     "nms,output=x", "nms,boxes=x,scores=x", "nms,sigmoid", "nms,iou=0.4,iou=0.5", "iou=0.4"],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Postprocess.parse(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("nms,max=1e3", "nms,max=1e3 is not a number"), ("iou=0.5,nms,iou=0.6", "iou is given twice")],
)
def test_a_wrong_key_of_nms_gets_an_example_of_nms(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        Postprocess.parse(text)
    assert problem in caught.value.message
    assert "sigmoid,nms,iou=0.5" in str(caught.value.hint)


def test_the_axis_of_classes_follows_the_rank() -> None:
    assert [class_axis(rank) for rank in (2, 3, 4)] == [1, -1, 1]


def test_nms_records_its_numbers_and_reads_them_back() -> None:
    steps = Postprocess.parse("sigmoid,nms,iou=0.45,boxes=places,form=cxcywh")
    assert steps.nms == Suppression(iou=0.45, boxes="places", corners=False)
    assert Postprocess.parse(str(steps)) == steps
    assert "score=0.25,max=100,candidates=1000" in str(steps)
    assert steps.outputs == ("boxes", "scores", "class_ids", "count")
