"""Check the steps inside a model against other implementations: Pillow before it, numpy after it.

Artifacts are judged against the module with its steps, so an error in the steps themselves would be
on both sides. Here the first image of each feed (at most 48, over the sizes of the domain) goes
through the declared preprocessing as calibration applies it, and the model's own outputs through
numpy.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..calibration.sample_content import ImageReader
from ..checkpoints.enclosed_module import EnclosedSteps, find_class_output, find_steps
from ..checkpoints.image_steps import make_scale_constants, preprocess_images
from ..core.contract import Array, Feed
from ..core.errors import CheckpointError, ErrorCode
from ..core.postprocess import CLASS_IDS, PROBABILITIES, SCORES, Postprocess, class_axis
from ..core.preprocess import Preprocess
from ..core.torch_tools import to_array
from ..validators.judge import ReferenceOutputs
from .eager_reference import EagerReference
from .run_progress import Progress
from .suppression_choices import (
    SuppressedModel,
    activate,
    check_suppression,
    run_inner_module,
)

_MAX_IMAGES = 48
_MAX_PIXELS = 1 << 22  # of an image
# Pillow rounds to whole levels after each of its two passes: half a level, passed on with weights
# that sum to 1, and half a level. Filters with negative weights also clip in between, in an order
# that Pillow chooses.
_LEVELS = {"bilinear": 1.05, "bicubic": 16.0, "lanczos": 16.0}
_MEAN_LEVELS = 0.6
_EXACT = 1e-3  # levels, without a resize: roundoff of float32
_PROBABILITY = 1e-5  # of softmax and sigmoid in float32


@dataclass(frozen=True, kw_only=True)
class LevelError:
    """Distance of two preprocessed images in levels of a pixel (0 to 255)."""

    worst: float
    mean: float


def check_enclosed(eager: EagerReference, progress: Progress) -> tuple[str, ...]:
    """Check the steps around the model on the feeds; return notes on what was compared.

    Raises:
        CheckpointError: they compute something else than what is declared.
    """
    steps = find_steps(eager.model.module) if eager.model.has_module else None
    if steps is None:
        return ()
    with progress.step("check steps inside the model", log="eager") as clock:
        notes = []
        if steps.before is not None:
            notes.append(_check_before(steps, steps.before, eager))
        if steps.after is not None:
            notes.append(_check_after(steps.after, eager))
        clock.detail = "as in Pillow and numpy"
    for note in notes:
        progress.note(note)
    return tuple(notes)


def _check_before(steps: EnclosedSteps, declared: Preprocess, eager: EagerReference) -> str:
    import torch

    constants, worst, count = make_scale_constants(declared), LevelError(worst=0.0, mean=0.0), 0
    for name, image in _iter_images(steps.image, eager.references):
        check_channels(steps.image, image, declared)
        ours = preprocess_images(torch.from_numpy(image[None].copy()), declared, constants)
        error = measure_levels(to_array(ours)[0], read_with_pillow(image, declared), declared)
        limit = _LEVELS[declared.interpolation] if declared.resize else _EXACT
        if not (error.worst <= limit and error.mean <= _MEAN_LEVELS):
            raise CheckpointError(
                f"the preprocessing inside the model differs from Pillow's on {name}: by up to "
                f"{error.worst:.3g} of 255 levels, {error.mean:.3g} on average",
                hint="preprocess outside of the model, and report it with the declared steps",
                code=ErrorCode.STEPS_DIFFER,
            )
        worst = max(worst, error, key=lambda one: one.worst)
        count += 1
    return (
        f"preprocessing inside the model: {count} images as Pillow and numpy compute it, within "
        f"{worst.worst:.2g} of 255 levels"
    )


def check_channels(name: str, image: Array, declared: Preprocess) -> None:
    """Check that an image (H, W, C) has the channels that are declared.

    Raises:
        CheckpointError: it has others.
    """
    channels = image.shape[2]
    if channels != (1 if declared.channels == "gray" else 3):
        other = "gray" if channels == 1 else "rgb"
        raise CheckpointError(
            f"the last dim of {name} is {channels}, and the declared preprocessing makes "
            f"{declared.channels}",
            hint=f"add channels={other} to the declared preprocessing, or correct --input",
            code=ErrorCode.STEPS_DIFFER,
        )


def _iter_images(name: str, references: Sequence[ReferenceOutputs]) -> Iterator[tuple[str, Array]]:
    """Yield images (H, W, C) of the feeds, the first of each batch."""
    found = 0
    for one in references:
        image = one.feed.arrays[name][0]
        if image.shape[0] * image.shape[1] <= _MAX_PIXELS and found < _MAX_IMAGES:
            found += 1
            yield one.feed.name, image


def read_with_pillow(image: Array, declared: Preprocess) -> Array:
    """Return the image as calibration reads it from a file."""
    from PIL import Image

    blob = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(blob, "PPM")
    blob.seek(0)
    return ImageReader(preprocess=declared)(blob)[0]


def measure_levels(ours: Array, theirs: Array, declared: Preprocess) -> LevelError:
    """Return how far two preprocessed images are apart, without scale, mean and std."""
    import numpy as np

    if ours.shape != theirs.shape:
        return LevelError(worst=float("inf"), mean=float("inf"))
    axis = -1 if declared.layout == "NHWC" else 0
    form = [1, 1, 1]
    form[axis] = -1
    unit = np.asarray(declared.std or (1.0,)).reshape(form) / abs(declared.scale)
    found = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)) * np.abs(unit)
    if not np.isfinite(found).all():
        return LevelError(worst=float("inf"), mean=float("inf"))
    return LevelError(worst=float(found.max(initial=0.0)), mean=float(found.mean()))


def _check_after(declared: Postprocess, eager: EagerReference) -> str:
    suppressed, cut = SuppressedModel.of(eager), list[str]()
    for one in eager.references:
        if suppressed is None:
            scores = _model_scores(declared, eager, one.feed.arrays)
            problem = find_difference(scores, one.outputs, declared)
        else:
            found = check_suppression(suppressed, one)
            problem, cut = found.problem, [*cut, *[one.feed.name] * found.cut]
        if problem:
            raise CheckpointError(
                f"the postprocessing inside the model differs from numpy's on {one.feed.name}: "
                f"{problem}",
                hint="postprocess outside of the model, and report it with the declared steps",
                code=ErrorCode.STEPS_DIFFER,
            )
    note = f"; more than `candidates` pairs exceed `score` on {', '.join(cut)}" if cut else ""
    return (
        f"postprocessing inside the model: {declared} as numpy computes it, on "
        f"{len(eager.references)} feeds{note}"
    )


def _model_scores(declared: Postprocess, eager: EagerReference, arrays: Feed) -> Array:
    """Return the output of the user's module that the postprocessing reads."""
    tensors = run_inner_module(eager, arrays)
    return to_array(tensors[find_class_output(tensors, declared)])


def find_selected_classes(eager: EagerReference) -> tuple[str, int] | None:
    """Return the output of class ids, and the number of classes that they are of.

    None if the model has no postprocessing that selects classes.
    """
    steps = find_steps(eager.model.module)
    if steps is None or steps.after is None or PROBABILITIES in steps.after.outputs:
        return None
    scores = _model_scores(steps.after, eager, eager.example)
    return CLASS_IDS, int(scores.shape[class_axis(scores.ndim)])


def find_difference(scores: Array, outputs: Feed, declared: Postprocess) -> str:
    """Return how outputs differ from what numpy makes of the scores; empty if they do not."""
    import numpy as np

    axis = class_axis(scores.ndim)
    values = activate(scores, declared, axis)
    if np.isnan(values).any():  # torch and numpy order them differently; artifacts are as eager
        return ""
    eps = float(np.finfo(scores.dtype).eps) if scores.dtype.kind == "f" else 0.0
    error = max(_PROBABILITY, 4 * eps)
    if declared.argmax:
        return _compare_best(values, np.expand_dims(outputs[CLASS_IDS], axis), axis, error)
    if not declared.best:
        return _compare_values(values, outputs[PROBABILITIES], PROBABILITIES, error)
    best = -np.sort(-values, axis=axis).take(range(declared.best), axis=axis)
    different = _compare_values(best, outputs[SCORES], SCORES, error)
    return different or _compare_best(values, outputs[CLASS_IDS], axis, error)


def _compare_values(expected: Array, found: Array, name: str, error: float) -> str:
    import numpy as np

    if expected.shape != found.shape:
        return f"{name} have the shape {found.shape}, not {expected.shape}"
    bound = error * np.maximum(1, np.abs(expected))
    with np.errstate(invalid="ignore"):  # infinities have no distance
        near = np.isfinite(expected) & (np.abs(expected - found) <= bound)
    good = near | (expected == found)
    return "" if bool(good.all()) else f"{name} have other values"


def _compare_best(values: Array, indices: Array, axis: int, error: float) -> str:
    """Compare the values at the indices with the best ones, which allows for ties."""
    import numpy as np

    count = indices.shape[axis]
    best = -np.sort(-values, axis=axis).take(range(count), axis=axis)
    found = np.take_along_axis(values, indices, axis=axis)
    return _compare_values(best, found, "class_ids", error)
