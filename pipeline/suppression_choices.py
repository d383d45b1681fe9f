"""Compare the boxes that suppression inside a model leaves with the model's own boxes and scores.

Roundoff decides between equal scores and at limits of score and overlap. A list of boxes is right
if each of its decisions is, within the errors that noise of the precision causes in the model's own
boxes and scores. The values of a right list are then compared with eager's at the same boxes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from ..checkpoints.eager_perturbations import perturb_feed, perturb_weights
from ..checkpoints.enclosed_module import (
    find_box_output,
    find_class_output,
    record_inner_outputs,
)
from ..checkpoints.module_outputs import split_outputs
from ..core.contract import Array
from ..core.errors import CheckpointError
from ..core.kinds import QUANTIZED
from ..core.postprocess import BOXES, CLASS_IDS, COUNT, SCORES, Postprocess, Suppression
from ..core.torch_tools import to_array
from ..validators.output_pairs import ReferenceOutputs
from ..validators.ruling import Ruling
from .eager_reference import EagerReference
from .float64_reference import PAIRS, SHARES, has_same_shapes
from .reply_evidence import JudgedEvidence, find_failed_feeds

if TYPE_CHECKING:
    import torch

    from ..core.contract import Feed, Outputs
    from ..validators.box_suppression_check import Candidates

_SIGMAS = 4.0  # of the movement of a value under noise: the largest of ten thousand normal errors
# Errors beyond these shares of the shorter side of a box and of the range of scores decide nothing.
_MOST = 0.05
_MOST_SHARES = 500  # and beyond so many shares of the precision: 0.1 % for FP32
_ROUNDINGS = 8  # of the dtype, for what the steps themselves compute
_CHOSEN = "boxes as the artifact chose them"


def run_inner_module(eager: EagerReference, arrays: Feed) -> dict[str, torch.Tensor]:
    """Return the outputs of the user's module within its steps, by name."""
    with record_inner_outputs(eager.model.module) as held:
        eager.model.run_with_deadline(arrays)
    return split_outputs(held[-1]).tensors


def activate(scores: Array, steps: Postprocess, axis: int) -> Array:
    """Return the scores in float64 after the activation."""
    import numpy as np

    values: Array = scores.astype(np.float64)
    if steps.activation == "softmax":
        values = np.exp(values - values.max(axis=axis, keepdims=True))
        values = values / values.sum(axis=axis, keepdims=True)
    elif steps.activation == "sigmoid":
        values = 0.5 * (1 + np.tanh(values / 2))
    return values


@dataclass(frozen=True, kw_only=True)
class OwnBoxes:
    """The model's own corners (N, M, 4) and scores (N, M, C) on a feed, or the errors of these."""

    corners: Array
    scores: Array


@dataclass(frozen=True, kw_only=True)
class SuppressedModel:
    """An eager model with suppression after it, and access to what is suppressed."""

    eager: EagerReference
    steps: Postprocess
    nms: Suppression

    @classmethod
    def of(cls, eager: EagerReference) -> Self | None:
        """Return the model; None if it has no suppression, or is not here."""
        steps = eager.suppression
        if steps is None or steps.nms is None:
            return None
        return cls(eager=eager, steps=steps, nms=steps.nms)

    def find_boxes(self, arrays: Feed) -> OwnBoxes:
        """Run a feed and compute what the suppression is given.

        Raises:
            CheckpointError: eager rejects the feed.
        """
        import numpy as np

        tensors = run_inner_module(self.eager, arrays)
        name = find_class_output(tensors, self.steps)
        boxes = to_array(tensors[find_box_output(tensors, name, self.nms)])
        if not self.nms.corners:
            centre, half = boxes[..., :2], boxes[..., 2:] / 2
            boxes = np.concatenate([centre - half, centre + half], axis=-1)
        scores = to_array(tensors[name])
        return OwnBoxes(corners=boxes, scores=activate(scores, self.steps, -1).astype(scores.dtype))

    def measure_noise(self, own: OwnBoxes, feed: Feed, share: float) -> OwnBoxes:
        """Return the errors of corners and scores under a perturbation of weights and inputs.

        Raises:
            CheckpointError: eager rejects a perturbed feed.
        """
        import numpy as np

        corners, scores = [], []
        for seed in range(PAIRS):
            for sign in (1, -1):
                with perturb_weights(self.eager.model.module, sign * share, seed):
                    found = self.find_boxes(perturb_feed(feed, sign * share, seed))
                with np.errstate(invalid="ignore"):
                    corners.append(found.corners.astype(np.float64) - own.corners)
                    scores.append(found.scores.astype(np.float64) - own.scores)
        return OwnBoxes(corners=_error_of(corners), scores=_error_of(scores))

    def follow(
        self, outputs: Outputs, own: OwnBoxes, errors: OwnBoxes, share: float = 0.0
    ) -> tuple[dict[str, Array], str]:
        """Return the model's own values of the boxes in `outputs`, or what is wrong with these.

        Each value may have its error, and be rounded by `share` of itself.
        """
        import numpy as np

        from ..validators.box_suppression_check import find_choice

        rows, most = len(own.corners), self.nms.most
        made = {
            BOXES: np.zeros((rows, most, 4), own.corners.dtype),
            SCORES: np.zeros((rows, most), own.scores.dtype),
            CLASS_IDS: np.zeros((rows, most), np.int64),
            COUNT: np.zeros(rows, np.int64),
        }
        for name, array in made.items():
            if outputs[name].shape != array.shape:
                return {}, f"{name} have the shape {outputs[name].shape}, not {array.shape}"
        for row in range(rows):
            candidates = self._list_candidates(own, errors, row, share)
            found = {name: outputs[name][row] for name in made}
            choice = find_choice(candidates, found, self.nms)
            if choice.problem:
                return {}, f"image {row} of the batch: {choice.problem}"
            count, (boxes, kinds) = len(choice.pairs), choice.pairs.T
            made[BOXES][row, :count] = own.corners[row, boxes]
            made[SCORES][row, :count] = own.scores[row, boxes, kinds]
            made[CLASS_IDS][row, :count], made[COUNT][row] = kinds, count
        return made, ""

    def _list_candidates(
        self, own: OwnBoxes, errors: OwnBoxes, row: int, share: float
    ) -> Candidates:
        """Bound the errors of a row, and add the roundoff of the steps themselves."""
        import numpy as np

        from ..validators.box_suppression_check import Candidates

        corners, scores = (one[row].astype(np.float64) for one in (own.corners, own.scores))
        finite = np.nan_to_num(corners, posinf=0, neginf=0)
        unit = _ROUNDINGS * float(np.finfo(own.corners.dtype).eps)
        sides = np.abs(finite[:, 2:] - finite[:, :2]).min(axis=1, keepdims=True)
        by_noise = np.abs(errors.corners[row]).max(axis=1, keepdims=True)
        most = min(_MOST, _MOST_SHARES * share) if share else _MOST
        usable = scores[np.isfinite(scores)]
        spread = float(np.ptp(usable)) if usable.size else 0.0
        levels = np.abs(np.nan_to_num(scores, posinf=0, neginf=0))
        by_steps = share * levels + (unit * np.maximum(1, levels) if self.steps.activation else 0)
        return Candidates(
            corners=corners,
            scores=scores,
            box_error=max(unit, share) * np.abs(finite).max(axis=1, keepdims=True)
            + np.minimum(by_noise, most * sides),
            score_error=by_steps + np.minimum(np.abs(errors.scores[row]), most * spread),
            floor=float(own.scores.dtype.type(self.nms.score)),
        )


def _error_of(movements: list[Array]) -> Array:
    """Return the error of each element: its own movement, or the usual one if that is larger.

    The usual one leaves out the tenth that moves most: in a mean of all, one ill-conditioned value
    would loosen the decisions on all others.
    """
    import numpy as np

    squares = np.mean([np.nan_to_num(one, posinf=0, neginf=0) ** 2 for one in movements], axis=0)
    usual = np.sort(squares, axis=None)[: squares.size - squares.size // 10]
    floor = usual.mean() if usual.size else 0.0
    found: Array = _SIGMAS * np.sqrt(np.maximum(squares, floor))
    return found


@dataclass(frozen=True, kw_only=True)
class SuppressionCheck:
    """How eager's boxes on a feed are not the result of suppression, if they are not.

    `cut` says whether `candidates` left out pairs that could have been in a list with room.
    """

    problem: str
    cut: bool


def check_suppression(model: SuppressedModel, one: ReferenceOutputs) -> SuppressionCheck:
    """Compare eager's boxes with the model's own boxes and scores.

    Raises:
        CheckpointError: eager rejects the feed.
    """
    import numpy as np

    own = model.find_boxes(one.feed.arrays)
    none = OwnBoxes(corners=np.zeros(own.corners.shape), scores=np.zeros(own.scores.shape))
    passed = (own.scores > own.scores.dtype.type(model.nms.score)).sum(axis=(1, 2))
    return SuppressionCheck(
        problem=model.follow(one.outputs, own, none)[1],
        cut=bool(((passed > model.nms.candidates) & (one.outputs[COUNT] < model.nms.most)).any()),
    )


def settle_suppression(judged: JudgedEvidence, eager: EagerReference) -> JudgedEvidence:
    """Judge again if the artifact was rejected for which boxes remain where roundoff decides.

    On each failed feed, the artifact's boxes are looked up among eager's, and each decision is
    checked. If all are right, eager's values of these boxes become the reference of the feed.
    Quantized artifacts are not settled: their noise would decide most.
    """
    evidence = judged.evidence
    failed = frozenset() if judged.passed else find_failed_feeds(judged.measured)
    model = SuppressedModel.of(eager) if failed else None
    if model is None or evidence.precision in QUANTIZED:
        return judged
    share = SHARES[evidence.precision]
    others: dict[str, ReferenceOutputs] = {}
    for one, reply in evidence.pairs:
        if one.feed.name in failed and one.settled in ("", _CHOSEN) and reply.outputs is not None:
            other = _follow_reply(one, reply.outputs, model, share)
            others |= {} if other is None else {one.feed.name: other}
    if not others:
        return judged
    references = tuple(others.get(one.feed.name, one) for one in evidence.references)
    again = JudgedEvidence.of(replace(evidence, references=references))
    note = (
        f"roundoff decides which boxes remain on {', '.join(others)}: each decision is right "
        "within it, and values are compared with eager's of the same boxes"
    )
    return judged.use_judgment(again).plus(Ruling(notes=(note,)))


def _follow_reply(
    reference: ReferenceOutputs, reply: Outputs, model: SuppressedModel, share: float
) -> ReferenceOutputs | None:
    """Return eager's values of the artifact's boxes; None if these are not right, or eager's."""
    import numpy as np

    if not has_same_shapes(reply, reference.outputs):
        return None
    known, feed = reference.outputs, reference.feed.arrays
    try:
        own = model.find_boxes(feed)
        largest = OwnBoxes(
            corners=np.full(own.corners.shape, np.inf), scores=np.full(own.scores.shape, np.inf)
        )
        if model.follow(reply, own, largest, share)[1]:
            return None  # no noise explains it; to measure noise takes runs
        errors = model.measure_noise(own, feed, share)
    except CheckpointError:
        return None
    made, problem = model.follow(reply, own, errors, share)
    if problem or all(np.array_equal(made[name], known[name], equal_nan=True) for name in made):
        return None
    return ReferenceOutputs(
        feed=reference.feed, outputs={**known, **made}, settled=_CHOSEN, left_out=reference.left_out
    )
