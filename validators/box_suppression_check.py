"""Check that a list of boxes is a result of greedy non-maximum suppression, without running it.

A list is the greedy result if each box of it is a candidate, scores descend, no box suppresses
another, and each missing candidate is suppressed by one with a higher score or comes after the end
of a full list. Each of these decisions may go either way where the errors of coordinates and scores
decide it: equal scores, an overlap at the limit. Any other choice is a fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.contract import Array

if TYPE_CHECKING:
    from ..core.contract import Feed
    from ..core.postprocess import Suppression

_LEAST_AREA, _LARGEST_AREA = 1e-37, 1e38


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The boxes of one image: corners (M, 4), scores (M, C), and the errors that they may have.

    `box_error` (M, 1) is in units of coordinates, `score_error` (M, C) in units of scores. Scores
    above `floor` are candidates.
    """

    corners: Array
    scores: Array
    box_error: Array
    score_error: Array
    floor: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The candidates of a list in order, box and class (count, 2), and what is wrong with it."""

    pairs: Array
    problem: str = ""


def find_choice(all_: Candidates, found: Feed, steps: Suppression) -> Choice:
    """Return which candidates a list consists of, and how it is not a result of suppression.

    Args:
        all_: the candidates of one image.
        found: the list: boxes (most, 4), scores and class_ids (most), count ().
        steps: the declared suppression.
    """
    import numpy as np

    count = int(found["count"])
    if found["boxes"].shape != (steps.most, 4) or not 0 <= count <= steps.most:
        return _reject(f"{count} boxes in a list of {len(found['boxes'])}, not {steps.most}")
    if any(np.any(found[name][count:] != 0) for name in ("boxes", "scores", "class_ids")):
        return _reject("what follows the last box is not 0")
    pairs: list[tuple[int, int]] = []
    for place in range(count):
        pair = _match(all_, found, place, pairs)
        if pair is None:
            return _reject(f"box {place} is none of the model's own boxes with its class and score")
        pairs.append(pair)
    chosen = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    problem = _check_chosen(all_, chosen, steps) or _check_missing(all_, chosen, steps)
    return Choice(pairs=chosen, problem=problem)


def _reject(problem: str) -> Choice:
    import numpy as np

    return Choice(pairs=np.zeros((0, 2), np.int64), problem=problem)


def _match(
    all_: Candidates, found: Feed, place: int, used: list[tuple[int, int]]
) -> tuple[int, int] | None:
    """Return the nearest candidate with the class of a box in the list, within its error."""
    import numpy as np

    kind = int(found["class_ids"][place])
    if not 0 <= kind < all_.scores.shape[1]:
        return None
    apart = _distance(all_.corners, found["boxes"][place]).max(axis=1)
    by_score = _distance(all_.scores[:, kind], found["scores"][place])
    able = (apart <= all_.box_error[:, 0]) & (by_score <= all_.score_error[:, kind])
    able[[box for box, other in used if other == kind]] = False
    if not able.any():
        return None
    box_scale, score_scale = all_.box_error[:, 0] + 1e-30, all_.score_error[:, kind] + 1e-30
    return int(np.where(able, apart / box_scale + by_score / score_scale, np.inf).argmin()), kind


def _distance(values: Array, other: Array) -> Array:
    """Return the absolute difference; 0 for equal infinities and for two NaN."""
    import numpy as np

    other = np.asarray(other, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        found = np.abs(values - other)
    found[(values == other) | (np.isnan(values) & np.isnan(other))] = 0.0
    return np.where(np.isnan(found), np.inf, found)


def _select_candidates(all_: Candidates, count: int) -> tuple[Array, Array]:
    """Return which pairs may be among the `count` best candidates, and which must be."""
    import numpy as np

    may, sure = all_.scores + all_.score_error, all_.scores - all_.score_error
    possible, certain = may > all_.floor, sure > all_.floor
    highest, least = may[possible], sure[certain]
    if len(least) > count:
        possible &= may >= np.partition(least, -count)[-count]
    if len(highest) > count:
        certain &= sure > np.partition(highest, -count - 1)[-count - 1]
    return possible, certain


def _check_chosen(all_: Candidates, chosen: Array, steps: Suppression) -> str:
    """Return why the boxes of the list cannot be together in it, in this order."""
    import numpy as np

    boxes, kinds = chosen.T
    able, _ = _select_candidates(all_, steps.candidates)
    scores, errors = all_.scores[boxes, kinds], all_.score_error[boxes, kinds]
    wrong = np.flatnonzero(~able[boxes, kinds])
    if wrong.size:
        return f"box {wrong[0]} has a score of {scores[wrong[0]]:.6g}, which is not above the limit"
    if np.any(scores[1:] - errors[1:] > scores[:-1] + errors[:-1]):
        return "scores do not descend"
    for place, (box, kind) in enumerate(chosen):
        least, _ = _overlap_limits(all_, box, boxes, steps.iou)
        wrong = np.flatnonzero(least & (kinds == kind))
        wrong = wrong[wrong > place]
        if wrong.size:
            return f"box {place} and box {wrong[0]} of one class overlap by more than {steps.iou:g}"
    return ""


def _check_missing(all_: Candidates, chosen: Array, steps: Suppression) -> str:
    """Return a candidate that is not in the list and should be."""
    import numpy as np

    _, missing = _select_candidates(all_, steps.candidates)
    sure = all_.scores - all_.score_error
    missing[chosen[:, 0], chosen[:, 1]] = False
    if len(chosen) == steps.most:
        box, kind = chosen[-1]
        missing &= sure > all_.scores[box, kind] + all_.score_error[box, kind]
    every = np.arange(len(all_.corners))
    for box, kind in chosen:
        _, most = _overlap_limits(all_, box, every, steps.iou)
        highest = all_.scores[box, kind] + all_.score_error[box, kind]
        missing[:, kind] &= ~(most & (sure[:, kind] <= highest))
    if not missing.any():
        return ""
    box, kind = np.argwhere(missing)[0]
    return (
        f"box {box} of class {kind} with a score of {all_.scores[box, kind]:.6g} is missing, and "
        "no box of the list suppresses it"
    )


def _overlap_limits(all_: Candidates, box: int, others: Array, iou: float) -> tuple[Array, Array]:
    """Return whether a box overlaps others by more than `iou`: surely, and possibly."""
    import numpy as np

    one, rest = all_.corners[box], all_.corners[others]
    with np.errstate(invalid="ignore", over="ignore"):
        sides = np.minimum(one[2:], rest[:, 2:]) - np.maximum(one[:2], rest[:, :2])
        error = all_.box_error[box, 0] + all_.box_error[others, 0]
        shared = np.clip(sides, 0, None).prod(axis=1)
        at_least = np.clip(sides - error[:, None], 0, None).prod(axis=1)
        at_most = np.clip(sides + error[:, None], 0, None).prod(axis=1)
        (area, off), (areas, offs) = (_areas(all_, part) for part in (np.array([box]), others))
        union, off = area + areas - shared, off + offs
        surely = at_least > iou * (union + off + shared - at_least)
        possibly = at_most > iou * (union - off - (at_most - shared))
    return surely & (at_least > 0), possibly & (at_most > 0)


def _areas(all_: Candidates, boxes: Array) -> tuple[Array, Array]:
    """Return areas and their largest errors: float32 ends below and above."""
    import numpy as np

    sides = np.clip(all_.corners[boxes, 2:] - all_.corners[boxes, :2], 0, None)
    error = 2 * all_.box_error[boxes]
    area: Array = sides.prod(axis=1)
    off = (sides + error).prod(axis=1) - area + _LEAST_AREA
    return area, np.where(area < _LARGEST_AREA, off, np.inf)
