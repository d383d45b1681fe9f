"""Greedy non-maximum suppression per class, in operators that every format takes.

Candidates are pairs of a box and a class. The `candidates` best of them, sorted by score, have a
matrix of which suppresses which. A step takes the best one that is left and removes what it
suppresses. `most` steps give the first `most` boxes of the greedy algorithm, exactly: a box that is
taken never depends on a lower score. All tensors have fixed sizes, so that batches are possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.postprocess import BOXES, CLASS_IDS, COUNT, SCORES, Suppression

if TYPE_CHECKING:
    import torch


def suppress_boxes(
    boxes: torch.Tensor, scores: torch.Tensor, steps: Suppression
) -> dict[str, torch.Tensor]:
    """Return boxes (N, most, 4) in corners, scores and class ids (N, most), and their count (N).

    Args:
        boxes: (N, M, 4), corners (x1, y1, x2, y2) or centre and size.
        scores: (N, M, C). A NaN is no candidate.
        steps: thresholds and numbers. What follows the boxes found is 0.
    """
    import torch
    from torch.nn.functional import pad

    classes, spare = scores.shape[2], -(-(steps.candidates + 1) // scores.shape[2])
    floor = torch.full((), steps.score, dtype=scores.dtype)
    passed = torch.where(scores > floor, scores, floor)
    flat = pad(passed, (0, 0, 0, spare), value=steps.score).flatten(1)
    # One more candidate than asked for: the last one stands for none.
    best, order = torch.topk(flat, steps.candidates + 1, dim=1)
    class_ids = order % classes
    place = torch.div(order, classes, rounding_mode="floor")[:, :, None].expand(-1, -1, 4)
    corners = pad(_to_corners(boxes, steps), (0, 0, 0, spare)).gather(1, place)
    ranks = torch.arange(steps.candidates, -1, -1, device=scores.device)
    ranks = torch.where(best > floor, ranks, 0)
    found = _take_best(find_suppressed(corners, class_ids, steps.iou), ranks, steps.most)
    kept, chosen = found > 0, steps.candidates - found
    boxes = corners.gather(1, chosen[:, :, None].expand(-1, -1, 4))
    return {
        BOXES: torch.where(kept[:, :, None], boxes, 0),
        SCORES: torch.where(kept, best.gather(1, chosen), 0),
        CLASS_IDS: torch.where(kept, class_ids.gather(1, chosen), 0),
        COUNT: kept.sum(1),
    }


def _to_corners(boxes: torch.Tensor, steps: Suppression) -> torch.Tensor:
    import torch

    if steps.corners:
        return boxes
    centre, half = boxes[:, :, :2], boxes[:, :, 2:] / 2
    return torch.cat([centre - half, centre + half], dim=2)


def find_suppressed(corners: torch.Tensor, class_ids: torch.Tensor, iou: float) -> torch.Tensor:
    """Return (N, K, K): whether boxes of one class overlap by more than `iou`, or are the same.

    A product in place of the quotient: two empty boxes do not overlap.
    """
    import torch

    low, high = corners[:, :, :2], corners[:, :, 2:]
    area = (high - low).clamp(min=0).prod(2)
    shared = torch.minimum(high[:, :, None], high[:, None])
    shared = (shared - torch.maximum(low[:, :, None], low[:, None])).clamp(min=0).prod(3)
    union = area[:, :, None] + area[:, None] - shared
    places = torch.arange(corners.shape[1], device=corners.device)
    same = class_ids[:, :, None] == class_ids[:, None]
    return ((shared > iou * union) & same) | (places[:, None] == places)


def _take_best(suppressed: torch.Tensor, ranks: torch.Tensor, most: int) -> torch.Tensor:
    """Return the ranks (N, most) of the candidates that are taken, in order; 0 is none."""
    import torch

    count = ranks.shape[1]
    rows = torch.arange(1, ranks.shape[0] + 1, device=ranks.device)[:, None] * count - 1
    table, taken = suppressed.flatten(0, 1), []
    ranks = ranks[:, None]
    for _ in range(most):
        rank = ranks.amax(2)
        taken.append(rank)
        ranks = torch.where(table[rows - rank], 0, ranks)
    return torch.cat(taken, dim=1)
