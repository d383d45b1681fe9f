"""Suppression in torch operators, beside a loop over boxes."""

from __future__ import annotations

import pytest
import torch

from modelc.checkpoints.box_suppression import suppress_boxes
from modelc.core.postprocess import Suppression

Image = list[tuple[list[float], float, int]]


def _iou(one: torch.Tensor, other: torch.Tensor) -> float:
    low, high = torch.maximum(one[:2], other[:2]), torch.minimum(one[2:], other[2:])
    shared = (high - low).clamp(min=0).prod()
    areas = (one[2:] - one[:2]).prod() + (other[2:] - other[:2]).prod()
    return float(shared / (areas - shared))


def greedy(boxes: torch.Tensor, scores: torch.Tensor, steps: Suppression) -> Image:
    """Return (box, score, class) of one image by the textbook's loop; ties keep their order."""
    pairs = [(box, kind) for box in range(len(boxes)) for kind in range(scores.shape[1])]
    pairs = [pair for pair in pairs if float(scores[pair]) > steps.score]
    pairs = sorted(pairs, key=lambda pair: -float(scores[pair]))[: steps.candidates]
    kept: list[tuple[int, int]] = []
    for box, kind in pairs:
        if all(other != kind or _iou(boxes[box], boxes[one]) <= steps.iou for one, other in kept):
            kept.append((box, kind))
    return [(boxes[b].tolist(), float(scores[b, kind]), kind) for b, kind in kept[: steps.most]]


def list_images(boxes: torch.Tensor, scores: torch.Tensor, steps: Suppression) -> list[Image]:
    """Return the same of the steps inside a model; check that 0 follows."""
    made = suppress_boxes(boxes, scores, steps)
    images = []
    for row, count in enumerate(made["count"].tolist()):
        parts = [made[name][row] for name in ("boxes", "scores", "class_ids")]
        assert not any(bool(part[count:].any()) for part in parts)
        images.append(list(zip(*(part[:count].tolist() for part in parts), strict=True)))
    assert made["boxes"].shape == (len(boxes), steps.most, 4)
    return images


def draw(seed: int, count: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    """Return crowded boxes and scores of three classes, of one to four images."""
    generator = torch.Generator().manual_seed(seed)
    middle = torch.rand(seed % 4 + 1, count, 2, generator=generator) * 40
    half = torch.rand(middle.shape, generator=generator) * 12 + 2
    scores = torch.rand(*middle.shape[:2], 3, generator=generator)
    return torch.cat([middle - half, middle + half], 2), scores


@pytest.mark.parametrize("seed", range(12))
def test_the_boxes_are_those_of_the_loop(seed: int) -> None:
    boxes, scores = draw(seed)
    iou, most, best = (0.3, 0.5, 0.7)[seed % 3], (3, 200)[seed % 2], (1_000, 20)[seed // 2 % 2]
    steps = Suppression(iou=iou, score=0.2, most=most, candidates=best)
    expected = [greedy(*image, steps) for image in zip(boxes, scores, strict=True)]
    assert list_images(boxes, scores, steps) == expected


def test_nothing_above_the_limit_and_nan_are_no_boxes() -> None:
    boxes, scores = draw(1)
    steps = Suppression(score=2.0, most=5)
    assert list_images(boxes, scores, steps) == [[], []]
    scores[:, 0] = torch.nan
    boxes[:, 1] = torch.nan
    assert list_images(boxes, scores, Suppression(most=2, candidates=4))[0]
    assert list_images(boxes, torch.full_like(scores, torch.nan), Suppression())[0] == []


def test_of_equal_boxes_with_equal_scores_one_remains_in_each_class() -> None:
    boxes, scores = torch.tensor([[[0.0, 0, 8, 8]] * 50]), torch.full((1, 50, 3), 0.5)
    (image,) = list_images(boxes, scores, Suppression())
    assert sorted(image) == [([0.0, 0, 8, 8], 0.5, kind) for kind in range(3)]


def test_empty_and_inverted_boxes_suppress_nothing() -> None:
    boxes = torch.tensor([[[1.0, 1, 1, 5], [1, 1, 1, 5], [4, 4, 2, 2], [4, 4, 2, 2]]])
    assert len(list_images(boxes, torch.full((1, 4, 1), 0.5), Suppression())[0]) == 4


def test_centre_and_size_are_given_as_corners() -> None:
    boxes = torch.tensor([[[10.0, 10, 4, 8]]])
    (image,) = list_images(boxes, torch.ones(1, 1, 1), Suppression(corners=False))
    assert image == [([8.0, 6, 12, 14], 1.0, 0)]
