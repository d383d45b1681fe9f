"""A list of boxes is checked by what suppression means, within errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from modelc.checkpoints.box_suppression import suppress_boxes
from modelc.core.contract import Array
from modelc.core.postprocess import Suppression
from modelc.validators.box_suppression_check import Candidates, find_choice

STEPS = Suppression(iou=0.5, score=0.25, most=12)


def draw(seed: int, error: float = 0.0) -> Candidates:
    rng = np.random.default_rng(seed)
    middle, half = rng.uniform(0, 40, (30, 2)), rng.uniform(2, 14, (30, 2))
    corners = np.concatenate([middle - half, middle + half], 1).astype(np.float32)
    scores = rng.uniform(0, 1, (30, 3)).astype(np.float32)
    return Candidates(
        corners=corners.astype(np.float64),
        scores=scores.astype(np.float64),
        box_error=np.full((30, 1), 1e-5 + 40 * error),
        score_error=np.full((30, 3), error),
        floor=STEPS.score,
    )


def suppress(drawn: Candidates, steps: Suppression = STEPS) -> dict[str, Array]:
    boxes, scores = (torch.from_numpy(one[None]) for one in (drawn.corners, drawn.scores))
    return {
        name: one[0].numpy().copy() for name, one in suppress_boxes(boxes, scores, steps).items()
    }


def _swap(found: dict[str, Array]) -> None:
    for name in ("boxes", "scores", "class_ids"):
        found[name][:2] = found[name][1::-1].copy()


def _shorten(found: dict[str, Array]) -> None:
    found["count"] -= 1
    for name in ("boxes", "scores", "class_ids"):
        found[name][found["count"] :] = 0


def _drop_first(found: dict[str, Array]) -> None:
    for name in ("boxes", "scores", "class_ids"):
        found[name][:-1] = found[name][1:].copy()
    _shorten(found)


def _repeat(found: dict[str, Array]) -> None:
    for name in ("boxes", "scores", "class_ids"):
        found[name][1] = found[name][0]


def _leave_rest(found: dict[str, Array]) -> None:
    found["count"] -= 1


def _other_class(found: dict[str, Array]) -> None:
    found["class_ids"][0] = (found["class_ids"][0] + 1) % 3


def _no_class(found: dict[str, Array]) -> None:
    found["class_ids"][0] = 7


def _move(found: dict[str, Array]) -> None:
    found["boxes"][3, 2] += 1


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("most", [12, 90])
def test_the_result_of_suppression_is_right(seed: int, most: int) -> None:
    for best in (1000, 25):
        steps, drawn = replace(STEPS, most=most, candidates=best), draw(seed)
        choice = find_choice(drawn, suppress(drawn, steps), steps)
        assert not choice.problem
        assert len(choice.pairs) == suppress(drawn, steps)["count"]


@pytest.mark.parametrize(
    "fault",
    [_swap, _shorten, _drop_first, _repeat, _leave_rest, _other_class, _no_class, _move],
)
def test_another_list_is_not(fault: Callable[[dict[str, Array]], None]) -> None:
    drawn = draw(3)
    found = suppress(drawn)
    fault(found)
    assert find_choice(drawn, found, STEPS).problem


@pytest.mark.parametrize("error", [0.0, 1e-3])
def test_other_limits_are_found(error: float) -> None:
    others: list[dict[str, Any]] = [
        {"iou": 0.45},
        {"iou": 0.55},
        {"score": 0.3},
        {"score": 0.2},
        {"candidates": 20},
    ]
    steps = replace(STEPS, most=90)
    for change in others:
        wrong = [
            bool(find_choice(drawn, suppress(drawn, replace(steps, **change)), steps).problem)
            for drawn in (draw(seed, error) for seed in range(8))
        ]
        assert any(wrong), change
    drawn = draw(0, error)
    assert find_choice(drawn, suppress(drawn, replace(steps, most=89)), steps).problem


def test_suppression_across_classes_is_found() -> None:
    drawn = draw(2)
    alike = suppress_boxes(
        torch.from_numpy(drawn.corners[None]),
        torch.from_numpy(drawn.scores.max(1)[None, :, None]),
        replace(STEPS, most=90),
    )
    found = {name: one[0].numpy() for name, one in alike.items()}
    assert find_choice(drawn, found, replace(STEPS, most=90)).problem


def test_roundoff_decides_at_the_limits_and_nowhere_else() -> None:
    """Two boxes overlap by exactly half; the third has a score at the limit."""
    corners = np.array([[0.0, 0, 3, 1], [1, 0, 4, 1], [9, 9, 10, 10]])
    scores = np.array([[0.9], [0.8], [0.25]])

    def given(error: float) -> Candidates:
        return Candidates(corners=corners, scores=scores, box_error=np.full((3, 1), error),
                          score_error=np.full((3, 1), error), floor=0.25)  # fmt: skip

    steps = Suppression(iou=0.5, most=3)
    both = {"boxes": np.array([*corners[:2], np.zeros(4)]), "scores": np.array([0.9, 0.8, 0]),
            "class_ids": np.zeros(3, int), "count": np.array(2)}  # fmt: skip
    assert not find_choice(given(0.0), both, steps).problem
    one = {name: array.copy() for name, array in both.items()}
    one["boxes"][1], one["scores"][1], one["count"] = 0, 0, np.array(1)
    assert find_choice(given(0.0), one, steps).problem
    assert not find_choice(given(1e-6), one, steps).problem
    third = {"boxes": corners.copy(), "scores": scores[:, 0].copy(),
             "class_ids": np.zeros(3, int), "count": np.array(3)}  # fmt: skip
    assert find_choice(given(0.0), third, steps).problem
    assert not find_choice(given(1e-6), third, steps).problem
