"""How far eager is from the user's Python pipeline, how far it may be, and what explains more.

A resize inside the model rounds nothing, and Pillow rounds to whole levels. What that does to the
outputs is measured on each feed: the model runs on Pillow's image, and with the same rounding
errors at other places. A pipeline may be twice as far away, besides the roundoff of float32. So a
small error that is the same in all pixels, as a scale of 1/256, is not taken for rounding. Where
rounding changes an output by much, as before a top-k, it would excuse everything: such feeds
compare nothing, and enough others must.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..calibration.sample_content import SampleError
from ..core.contract import Array, Outputs
from ..core.errors import CheckpointError, Hint, UsageError
from ..core.findings import PipelineDrift
from ..core.kinds import Precision
from ..core.postprocess import BOXES, CLASS_IDS, COUNT, SCORES, class_axis
from ..validators.feeds import describe_named_feed
from ..validators.judge import ReferenceOutputs
from ..validators.metrics import CLASSES, Measures, measure_arrays, to_decibel
from ..validators.tolerance import TOLERANCES
from .eager_reference import EagerReference
from .float64_reference import SHARES
from .pipeline_causes import Cause, InnerModel
from .suppression_choices import OwnBoxes, SuppressedModel

_FACTOR = 2.0  # times the effect of Pillow's rounding
_MOST = 0.05  # of the usual RMS of an output, or of its values if whole: the largest such effect
_ENOUGH = 0.5  # of the feeds must compare an output
_TIED = 0.1  # of whole numbers may differ where a cause explains the rest


@dataclass(frozen=True, kw_only=True)
class PipelineReply:
    """The outputs of the pipeline on one feed."""

    reference: ReferenceOutputs
    outputs: Outputs


@dataclass(frozen=True, kw_only=True)
class PipelineProblem:
    """Why the pipeline is not the model: text that follows its name, a hint, and a feed, if one."""

    text: str
    hint: Hint
    feed: str = ""


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
    """One output on one feed beside the pipeline's; `excess` above 1 is too far away.

    `is_open` says that it is near enough only because rounding changes this output by much.
    """

    reply: PipelineReply
    output: str
    found: Measures
    allowed: _Allowed
    excess: float
    is_open: bool
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
    by_output: dict[str, list[_Distance]] = {}
    for one in found:
        by_output.setdefault(one.output, []).append(one)
    drifts = tuple(_summarize(some) for some in by_output.values())
    wrong = sorted((one for one in found if one.excess > 1), key=lambda one: -one.excess)
    if wrong:
        return drifts, _describe_problem(wrong, replies, meter, drifts)
    return drifts, _find_uncompared(by_output, meter)


def _find_uncompared(
    by_output: Mapping[str, Sequence[_Distance]], meter: _DriftMeter
) -> PipelineProblem | None:
    """Return why the feeds do not show that the pipeline is the model, if they do not."""
    counts = () if meter.suppressed is None else by_output.get(COUNT, ())
    if counts and not any(one.reply.reference.outputs[COUNT].any() for one in counts):
        return PipelineProblem(
            text=f"was not compared: the model finds no box on any of {len(counts)} feeds",
            hint=Hint(
                "give --samples with images that give boxes, or a lower score in --postprocess"
            ),
        )
    for name, some in by_output.items():
        open_ = sum(one.is_open for one in some)
        if len(some) - open_ < _ENOUGH * len(some):
            return PipelineProblem(
                text=f"was not compared: on {open_} of {len(some)} feeds, it differs in {name!r}, "
                f"which rounding of the resized image changes by more than {_MOST:.0%} there",
                hint=Hint("give --samples of your images, or resize outside of the model"),
            )
    return None if by_output else PipelineProblem(
        text="was not compared: no output of the model is the same in two runs",
        hint=Hint("compare both in Python, or make the model deterministic"),
    )  # fmt: skip


def _summarize(found: Sequence[_Distance]) -> PipelineDrift:
    worst = max([one for one in found if not one.is_open] or found, key=lambda one: one.excess)
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
    wrong: Sequence[_Distance],
    replies: Sequence[PipelineReply],
    meter: _DriftMeter,
    drifts: Sequence[PipelineDrift],
) -> PipelineProblem:
    worst, feed = wrong[0], wrong[0].reply.reference.feed
    feeds = {one.reply.reference.feed.name: one.reply for one in wrong}
    text = f"differs from the model on {len(feeds)} of {len(replies)} feeds, most on "
    text += f"{describe_named_feed(feed)}: {meter.wrong_boxes.get(feed.name) or repr(worst.output)}"
    if worst.found.max_abs and not worst.is_whole and feed.name not in meter.wrong_boxes:
        text += f" by up to {worst.found.max_abs:.3g} ({worst.allowed.worst:.2g} is allowed)"
    for one in drifts:
        if one.differing:
            what = f"values of {one.output!r}" if one.is_whole else "best classes"
            text += f"; {one.differing} of {one.compared} {what} differ"
    others = [one for one in replies if one.reference.feed.name not in feeds]
    cause = meter.find_cause([*feeds.values(), *others[: len(feeds)]])
    hint = Hint("compare both on this feed in Python, step by step")
    if cause is not None:
        text, hint = f"{text}; the pipeline agrees with {cause.text}", cause.hint
    return PipelineProblem(text=text, hint=hint, feed=feed.name)


class _DriftMeter:
    """Measures outputs, with what Pillow's rounding does to them on each feed.

    `wrong_boxes` says for feeds, by name, why boxes of the pipeline are not a right choice.
    """

    def __init__(self, eager: EagerReference, replies: Sequence[PipelineReply]) -> None:
        self.wrong_boxes: dict[str, str] = {}
        self._chosen: dict[str, list[Outputs]] = {}
        self._inner, self.suppressed = InnerModel(eager), SuppressedModel.of(eager)
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
        allowed, is_open = self._roundoff(found, name), False
        if not found.exact and allowed.excess(found) > 1:
            capped, allowed = self._allow_rounding(reply.reference, name, allowed)
            is_open = capped.excess(found) > 1
        excess, is_whole = allowed.excess(found), ours.dtype.kind in "iub"
        if is_whole:
            wrong = int(self._find_wrong(reply.reference, theirs, name).sum())
            excess = 1 + wrong / ours.size if wrong else 0.0
            is_open = int((ours != theirs).sum()) > _MOST * ours.size
        if reply.reference.feed.name in self.wrong_boxes:
            excess = math.inf
        compared, differing = _count_classes(ours, theirs, name)
        return _Distance(
            reply=reply,
            output=name,
            found=found,
            allowed=allowed,
            excess=excess,
            is_open=is_open,
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
    ) -> tuple[_Allowed, _Allowed]:
        """Return the limits with rounding in addition: of the most that settles a feed, and all."""
        ours = reference.outputs[name]
        runs = self._chosen.get(reference.feed.name, []) if name in (BOXES, SCORES) else []
        runs = runs or [one for one, _ in self._round_image(reference)]
        moved = [measure_arrays(ours, one[name]) for one in runs]
        worst = _FACTOR * max((one.max_abs or 0.0 for one in moved), default=0.0)
        rms = _FACTOR * math.sqrt(max((one.noise for one in moved), default=0.0))
        usual = max(self._usual[name][1], math.sqrt(measure_arrays(ours, ours).signal))
        share = min(1.0, _MOST * usual / rms) if rms else 1.0
        capped = _Allowed(worst=allowed.worst + worst, rms=allowed.rms + share * rms)
        return capped, _Allowed(worst=allowed.worst + worst, rms=allowed.rms + rms)

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
            runs = (self._inner.run(arrays, image=one) for one in self._inner.list_images(arrays))
            shapes = [one.shape for one in reference.outputs.values()]
            known = [run for run in runs if [one.shape for one in run[0].values()] == shapes]
            self._rounded[reference.feed.name] = known
        return known

    def follow_boxes(self, reply: PipelineReply) -> PipelineReply:
        """Put eager's values of the boxes that the pipeline chose in place of eager's own choice.

        A choice that is not right within roundoff and the rounding is an error of the feed.
        """
        import numpy as np

        reference, arrays = reply.reference, reply.reference.feed.arrays
        pairs = [(reference.outputs[name], reply.outputs[name]) for name in reply.outputs]
        if self.suppressed is None or all(np.array_equal(*pair) for pair in pairs):
            return reply
        own = self.suppressed.find_boxes(arrays)
        noise = self.suppressed.measure_noise(own, arrays, SHARES[Precision.FP32])
        corners, scores, all_moved = noise.corners, noise.scores, []
        for image in self._inner.list_images(arrays):
            with self._inner.use_image(image):
                moved = self.suppressed.find_boxes(arrays)
            corners = np.maximum(corners, _FACTOR * np.abs(moved.corners - own.corners))
            scores = np.maximum(scores, _FACTOR * np.abs(moved.scores - own.scores))
            all_moved.append(moved)
        errors = OwnBoxes(corners=corners, scores=scores)
        made, problem = self.suppressed.follow(reply.outputs, own, errors)
        if problem:
            self.wrong_boxes[reference.feed.name] = problem
            return reply
        outputs = {**reference.outputs, **made}
        self._chosen[reference.feed.name] = [_take_chosen(made, own, one) for one in all_moved]
        return replace(reply, reference=replace(reference, outputs=outputs))

    def find_cause(self, replies: Sequence[PipelineReply]) -> Cause | None:
        """Return the single change of the model that makes it the pipeline; None without one."""
        for causes in (self._inner.list_causes(), self._inner.list_moved_crops()):
            best, least = None, 1.0
            for cause in causes:
                excess = 0.0
                for reply in replies:
                    if excess <= least:
                        excess = max(excess, self._excess_of(cause, reply))
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
                if found.differing > max(_TIED * theirs.size, 0 if cause.is_exact else 2):
                    return math.inf
                continue
            allowed = self._roundoff(found, name)
            if not cause.is_exact:
                allowed, _ = self._allow_rounding(reply.reference, name, allowed)
            worst = max(worst, allowed.excess(found))
        return worst


def _take_chosen(made: Outputs, own: OwnBoxes, moved: OwnBoxes) -> Outputs:
    """Return boxes and scores of a moved model for the boxes of `made`, which are the model's own.

    Of boxes that are equal in the model, the one that moved most is taken.
    """
    import numpy as np

    boxes, scores = made[BOXES].copy(), made[SCORES].copy()
    for row, count in enumerate(made[COUNT]):
        for place in range(int(count)):
            kind = made[CLASS_IDS][row, place]
            same = (own.corners[row] == boxes[row, place]).all(axis=1)
            same &= own.scores[row, :, kind] == scores[row, place]
            if same.any():
                found, values = moved.corners[row, same], moved.scores[row, same, kind]
                far = np.abs(found - boxes[row, place]).max(axis=1).argmax()
                boxes[row, place] = found[far]
                scores[row, place] = values[np.abs(values - scores[row, place]).argmax()]
    return {BOXES: boxes, SCORES: scores}


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
