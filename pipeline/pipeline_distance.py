"""How far eager is from the user's Python pipeline, how far it may be, and what explains more.

A resize inside the model rounds nothing, and Pillow rounds to whole levels. What that does to the
outputs is measured on each feed: the model runs on Pillow's image, and with the same rounding
errors at other places. A pipeline may be twice as far away, besides the roundoff of float32. So a
small error that is the same in all pixels, as a scale of 1/256, is not taken for rounding.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..calibration.sample_content import SampleError
from ..checkpoints.image_steps import make_scale_constants, preprocess_images
from ..core.contract import Array, Feed, Outputs
from ..core.errors import CheckpointError, Hint, UsageError
from ..core.findings import PipelineDrift
from ..core.kinds import Precision
from ..core.postprocess import CLASS_IDS, SCORES, class_axis
from ..core.torch_tools import to_array
from ..validators.feeds import describe_named_feed
from ..validators.judge import ReferenceOutputs
from ..validators.metrics import CLASSES, Measures, measure_arrays, to_decibel
from ..validators.tolerance import TOLERANCES
from .eager_reference import EagerReference
from .float64_reference import SHARES
from .pipeline_causes import (
    TORCH_FILTERS,
    Cause,
    InnerModel,
    read_images_as,
    read_images_with_torch,
)
from .suppression_choices import OwnBoxes, SuppressedModel

_FACTOR = 2.0  # times the effect of Pillow's rounding
_EXPLAINED = 3  # feeds on which a cause must explain the difference
_TIED = 0.1  # of whole numbers may differ where a cause explains the rest


@dataclass(frozen=True, kw_only=True)
class PipelineReply:
    """The outputs of the pipeline on one feed."""

    reference: ReferenceOutputs
    outputs: Outputs


@dataclass(frozen=True, kw_only=True)
class PipelineProblem:
    """Why the pipeline is not the model: text that follows its name, a hint, and a feed."""

    text: str
    hint: Hint
    feed: str


@dataclass(frozen=True, kw_only=True)
class _Allowed:
    """The largest error of an output on one feed, and the largest root of its mean square."""

    worst: float
    rms: float

    def excess(self, found: Measures) -> float:
        """Return how many times too large an error is; up to 1 it is allowed."""
        if found.nonfinite_mismatch:
            return math.inf
        pairs = ((found.max_abs or 0.0, self.worst), (math.sqrt(found.noise), self.rms))
        return max((a / b if b else math.inf) if a else 0.0 for a, b in pairs)


@dataclass(frozen=True, kw_only=True)
class _Distance:
    """One output on one feed beside the pipeline's; `excess` above 1 is too far away."""

    reply: PipelineReply
    output: str
    found: Measures
    allowed: _Allowed
    excess: float
    is_whole: bool
    compared: int
    differing: int


def measure_drifts(
    eager: EagerReference, replies: Sequence[PipelineReply]
) -> tuple[tuple[PipelineDrift, ...], PipelineProblem | None]:
    """Return the drift of each output on its worst feed, and what is wrong if it is too large."""
    meter = _DriftMeter(eager, replies)
    replies = [meter.follow_boxes(one) for one in replies]
    found = [
        meter.measure(reply, name)
        for reply in replies
        for name in reply.outputs
        if name not in reply.reference.left_out
    ]
    wrong = sorted((one for one in found if one.excess > 1), key=lambda one: -one.excess)
    drifts = tuple(_summarize([one for one in found if one.output == name])
                   for name in dict.fromkeys(one.output for one in found))  # fmt: skip
    return drifts, _describe_problem(wrong, len(replies), meter, drifts) if wrong else None


def _summarize(found: Sequence[_Distance]) -> PipelineDrift:
    worst = max(found, key=lambda one: one.excess)
    return PipelineDrift(
        output=worst.output,
        feed=worst.reply.reference.feed.name,
        max_abs=worst.found.max_abs,
        sqnr=worst.found.sqnr,
        allowed=None if worst.is_whole else to_decibel(worst.found.signal, worst.allowed.rms**2),
        is_whole=worst.is_whole,
        compared=sum(one.compared for one in found),
        differing=sum(one.differing for one in found),
    )


def _describe_problem(
    wrong: Sequence[_Distance], count: int, meter: _DriftMeter, drifts: Sequence[PipelineDrift]
) -> PipelineProblem:
    worst = wrong[0]
    feeds = {one.reply.reference.feed.name: one.reply for one in wrong}
    text = f"differs from the model on {len(feeds)} of {count} feeds, most on "
    text += f"{describe_named_feed(worst.reply.reference.feed)}: {worst.output!r}"
    if worst.found.max_abs and not worst.is_whole:
        text += f" by up to {worst.found.max_abs:.3g} ({worst.allowed.worst:.2g} is allowed)"
    for one in drifts:
        if one.differing:
            what = f"values of {one.output!r}" if one.is_whole else "best classes"
            text += f"; {one.differing} of {one.compared} {what} differ"
    cause = meter.find_cause(list(feeds.values())[:_EXPLAINED])
    hint = Hint("compare both on this feed in Python, step by step")
    if cause is not None:
        text, hint = f"{text}; the pipeline agrees with {cause.text}", cause.hint
    return PipelineProblem(text=text, hint=hint, feed=worst.reply.reference.feed.name)


class _DriftMeter:
    """Measures outputs, with what Pillow's rounding does to them on each feed."""

    def __init__(self, eager: EagerReference, replies: Sequence[PipelineReply]) -> None:
        self._inner, self._suppressed = InnerModel(eager), SuppressedModel.of(eager)
        self._rounded: dict[str, list[tuple[Outputs, Array | None]]] = {}
        by_name: dict[str, list[Measures]] = {}
        for reply in replies:
            for name, array in reply.reference.outputs.items():
                by_name.setdefault(name, []).append(measure_arrays(array, array))
        self._usual = {
            name: (
                statistics.median(one.peak or 0.0 for one in found),
                statistics.median(math.sqrt(one.signal) for one in found),
            )
            for name, found in by_name.items()
        }

    def measure(self, reply: PipelineReply, name: str) -> _Distance:
        """Measure one output on one feed."""
        ours, theirs = reply.reference.outputs[name], reply.outputs[name]
        found = measure_arrays(ours, theirs)
        allowed = self._roundoff(found, name)
        if not found.exact and allowed.excess(found) > 1:
            allowed = self._allow_rounding(reply.reference, name, allowed)
        excess, is_whole = allowed.excess(found), ours.dtype.kind in "iub"
        if is_whole:
            wrong = int(self._find_wrong(reply.reference, theirs, name).sum())
            excess = 1 + wrong / ours.size if wrong else 0.0
        compared, differing = _count_classes(ours, theirs, name)
        return _Distance(
            reply=reply,
            output=name,
            found=found,
            allowed=allowed,
            excess=excess,
            is_whole=is_whole,
            compared=compared,
            differing=differing,
        )

    def _roundoff(self, found: Measures, name: str) -> _Allowed:
        """Return the limits of FP32, at the usual scale of the output if that is larger."""
        limit, (peak, rms) = TOLERANCES[Precision.FP32], self._usual[name]
        return _Allowed(
            worst=limit.rtol * max(found.peak or 0.0, peak),
            rms=10 ** (-limit.min_sqnr / 20) * max(math.sqrt(found.signal), rms),
        )

    def _allow_rounding(
        self, reference: ReferenceOutputs, name: str, allowed: _Allowed
    ) -> _Allowed:
        ours = reference.outputs[name]
        moved = [measure_arrays(ours, one[name]) for one, _ in self._round_image(reference)]
        return _Allowed(
            worst=allowed.worst + _FACTOR * max((one.max_abs or 0.0 for one in moved), default=0.0),
            rms=allowed.rms + _FACTOR * math.sqrt(max((one.noise for one in moved), default=0.0)),
        )

    def _find_wrong(self, reference: ReferenceOutputs, theirs: Array, name: str) -> Array:
        """Return where whole numbers differ, but for places where the rounding decides."""
        import numpy as np

        ours = reference.outputs[name]
        wrong: Array = ours != theirs
        if not wrong.any():
            return wrong
        rounded = self._round_image(reference)
        after = None if self._inner.steps is None else self._inner.steps.after
        _, scores = self._inner.run(reference.feed.arrays)
        if after is None or scores is None or name != CLASS_IDS:
            for outputs, _ in rounded:
                wrong &= outputs[name] == ours
            return wrong
        moved = max(
            (np.abs(one - scores).max() for _, one in rounded if one is not None), default=0
        )
        axis, count = class_axis(scores.ndim), scores.shape[class_axis(scores.ndim)]
        ids = [np.expand_dims(one, axis) if after.argmax else one for one in (ours, theirs)]
        known = (ids[1] >= 0) & (ids[1] < count)
        values = [np.take_along_axis(scores, one.clip(0, count - 1), axis=axis) for one in ids]
        bound = _FACTOR * moved + TOLERANCES[Precision.FP32].rtol * np.abs(scores).max()
        tied = known & (np.abs(values[0] - values[1]) <= bound)
        wrong &= ~(tied.squeeze(axis) if after.argmax else tied)
        return wrong

    def _round_image(self, reference: ReferenceOutputs) -> list[tuple[Outputs, Array | None]]:
        """Return what the model makes of Pillow's image, and of its errors at other places."""
        known = self._rounded.get(reference.feed.name)
        if known is None:
            arrays = reference.feed.arrays
            runs = (self._inner.run(arrays, image=one) for one in self._list_images(arrays))
            shapes = [one.shape for one in reference.outputs.values()]
            known = [run for run in runs if [one.shape for one in run[0].values()] == shapes]
            self._rounded[reference.feed.name] = known
        return known

    def _list_images(self, arrays: Feed) -> list[Array]:
        import numpy as np
        import torch

        steps = self._inner.steps
        if steps is None or steps.before is None or not steps.before.resize:
            return []
        before, images = steps.before, arrays[steps.image]
        constants = make_scale_constants(before)
        ours = to_array(preprocess_images(torch.from_numpy(images.copy()), before, constants))
        noise = read_images_as(images, before) - ours
        axes = (1, 2) if before.layout == "NHWC" else (2, 3)
        others = [noise, -noise, np.roll(noise, 1, axes), np.flip(noise, axes)]
        if before.interpolation in TORCH_FILTERS:  # it clips at other places than Pillow
            others.append(read_images_with_torch(images, before, antialias=True) - ours)
        return [(ours + one).astype(np.float32) for one in others]

    def follow_boxes(self, reply: PipelineReply) -> PipelineReply:
        """Put eager's values of the boxes that the pipeline chose in place of eager's own choice.

        A choice that is not right within roundoff and the rounding is left for `measure` to refuse.
        """
        import numpy as np

        if self._suppressed is None:
            return reply
        reference, arrays = reply.reference, reply.reference.feed.arrays
        own = self._suppressed.find_boxes(arrays)
        noise = self._suppressed.measure_noise(own, arrays, SHARES[Precision.FP32])
        corners, scores = noise.corners, noise.scores
        for image in self._list_images(arrays):
            with self._inner.use_image(image):
                moved = self._suppressed.find_boxes(arrays)
            corners = np.maximum(corners, _FACTOR * np.abs(moved.corners - own.corners))
            scores = np.maximum(scores, _FACTOR * np.abs(moved.scores - own.scores))
        errors = OwnBoxes(corners=corners, scores=scores)
        made, problem = self._suppressed.follow(reply.outputs, own, errors)
        if problem:
            return reply
        outputs = {**reference.outputs, **made}
        return replace(reply, reference=replace(reference, outputs=outputs))

    def find_cause(self, replies: Sequence[PipelineReply]) -> Cause | None:
        """Return the single change of the model that makes it the pipeline; None without one."""
        for causes in (self._inner.list_causes(), self._inner.list_moved_crops()):
            best, least = None, 1.0
            for cause in causes:
                excess = max(self._excess_of(cause, reply) for reply in replies)
                if excess <= least:
                    best, least = cause, excess
            if best is not None:
                return best
        return None

    def _excess_of(self, cause: Cause, reply: PipelineReply) -> float:
        try:
            outputs = cause.run(reply.reference)
        except (CheckpointError, SampleError, UsageError, ValueError):  # not possible on this feed
            return math.inf
        worst = 0.0
        for name, theirs in reply.outputs.items():
            if outputs[name].shape != theirs.shape:
                return math.inf
            found = measure_arrays(outputs[name], theirs)
            if theirs.dtype.kind in "iub":
                if found.differing > _TIED * theirs.size:
                    return math.inf
                continue
            allowed = self._roundoff(found, name)
            allowed = self._allow_rounding(reply.reference, name, allowed)
            worst = max(worst, allowed.excess(found))
        return worst


def _count_classes(ours: Array, theirs: Array, name: str) -> tuple[int, int]:
    """Count the best classes, or whole numbers, and those that differ."""
    if ours.dtype.kind in "iub":
        return ours.size, int((ours != theirs).sum())
    if ours.ndim not in (2, 4) or name == SCORES:  # of rank 3 they may be boxes
        return 0, 0
    axis = class_axis(ours.ndim)
    if ours.shape[axis] not in CLASSES or ours.dtype.kind != "f":
        return 0, 0
    best = ours.argmax(axis)
    return best.size, int((best != theirs.argmax(axis)).sum())
