"""The user's module run with other steps around it, to find why a pipeline differs from it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, product
from typing import Any

from ..checkpoints.enclosed_module import (
    EnclosedSteps,
    find_class_output,
    find_steps,
    record_inner_outputs,
)
from ..checkpoints.image_steps import make_scale_constants, preprocess_images
from ..checkpoints.module_outputs import split_outputs
from ..core.contract import Array, Feed, Outputs
from ..core.errors import Hint, Option, UsageError
from ..core.postprocess import ACTIVATIONS
from ..core.preprocess import INTERPOLATIONS, Preprocess
from ..core.torch_tools import to_array
from ..validators.judge import ReferenceOutputs
from .eager_reference import EagerReference
from .enclosed_checks import read_with_pillow
from .image_samples import check_includable

_TORCH_FILTERS = ("bilinear", "bicubic")  # that torch resizes with
_MOVES = (1, 2, 4, 8, 16)  # pixels of a crop
_SCALES = {"1": 1.0, "1/255": 1 / 255, "1/256": 1 / 256, "1/127.5": 1 / 127.5}
_CORRECT_IT = Hint("correct the pipeline, or what is declared of the model")


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A single change that makes the model the pipeline: a text, the change, and a hint.

    `is_exact` says that the model runs on Pillow's own image, so that only roundoff is allowed.
    """

    text: str
    run: Callable[[ReferenceOutputs], Outputs]
    hint: Hint = _CORRECT_IT
    is_exact: bool = False


class InnerModel:
    """The user's module inside its pre- and postprocessing, if it has any (`steps`)."""

    def __init__(self, eager: EagerReference) -> None:
        self.steps = find_steps(eager.model.module)
        self._eager = eager

    @contextmanager
    def use_image(self, image: Array | None) -> Iterator[None]:
        """Give the module this image in each call within the context; None changes nothing."""
        steps = self.steps
        if steps is None:
            yield
            return
        hook = self._eager.model.module.get_submodule("model").register_forward_pre_hook(
            lambda _, *call: _replace_image(steps, image, *call), with_kwargs=True
        )
        try:
            yield
        finally:
            hook.remove()

    def run(
        self, arrays: Feed, *, image: Array | None = None, activation: str | None = None
    ) -> tuple[Outputs, Array | None]:
        """Run the model, on another image or with another activation.

        Also return the scores that classes are selected from, if any are.

        Raises:
            CheckpointError: it does not take the image.
        """
        steps, module = self.steps, self._eager.model.module
        if steps is None:
            return self._eager.model.run(arrays), None
        with record_inner_outputs(module) as held, self.use_image(image):
            outputs = self._eager.model.run(arrays)
        if steps.after is None:
            return outputs, None
        if activation is not None:
            other = copy.copy(steps)
            other.after = replace(steps.after, activation=activation)
            found = split_outputs(other.replace_output(held[-1])).tensors
            outputs = {name: to_array(tensor) for name, tensor in found.items()}
        if not (steps.after.argmax or steps.after.best):
            return outputs, None
        tensors = split_outputs(held[-1]).tensors
        return outputs, to_array(tensors[find_class_output(tensors, steps.after)])

    def list_images(self, arrays: Feed) -> list[Array]:
        """Return Pillow's images, and others with its rounding errors; none without a resize."""
        import numpy as np
        import torch

        steps = self.steps
        if steps is None or steps.before is None or not steps.before.resize:
            return []
        before, images = steps.before, arrays[steps.image]
        constants = make_scale_constants(before)
        ours = to_array(preprocess_images(torch.from_numpy(images.copy()), before, constants))
        noise = read_images_as(images, before) - ours
        axes = (1, 2) if before.layout == "NHWC" else (2, 3)
        others = [noise, -noise, np.roll(noise, 1, axes), np.flip(noise, axes)]
        if before.interpolation in _TORCH_FILTERS:  # it clips at other places than Pillow
            others.append(read_images_with_torch(images, before, antialias=True) - ours)
        return [(ours + one).astype(np.float32) for one in others]

    def list_causes(self) -> Iterator[Cause]:
        """Yield single changes that pipelines often have."""
        for name in self._eager.signature.outputs:
            yield Cause(text=f"{name!r} counted from 1", run=partial(_count_from_one, name=name))
        for one, other in combinations(self._eager.signature.outputs, 2):
            run = partial(_exchange, pair=(one, other))
            yield Cause(text=f"{one!r} and {other!r} exchanged", run=run)
        steps = self.steps
        if steps is not None and steps.after is not None:
            for name in ("", *ACTIVATIONS):
                after = replace(steps.after, activation=name)
                run = partial(self._run_variant, activation=name)
                hint = _hint_to_declare("postprocess", str(after)) if str(after) else _CORRECT_IT
                text = name or "scores without an activation"
                yield Cause(text=text, run=run, hint=hint, is_exact=True)
        if steps is None or steps.before is None:
            return
        for text, change in _iter_changes(steps.before):
            other_steps = replace(steps.before, **change)
            run = partial(self._run_variant, read=partial(read_images_as, steps=other_steps))
            yield Cause(text=text, run=run, hint=_hint_for_steps(other_steps), is_exact=True)
        if steps.before.resize and steps.before.interpolation in _TORCH_FILTERS:
            read = partial(read_images_with_torch, steps=steps.before, antialias=False)
            run = partial(self._run_variant, read=read)
            yield Cause(text="a resize without antialias", run=run)

    def list_moved_crops(self) -> Iterator[Cause]:
        """Yield crops near the center."""
        before = None if self.steps is None else self.steps.before
        if before is None or not before.crop:
            return
        for size, down, across in product(_MOVES, (-1, 0, 1), (-1, 0, 1)):
            if down or across:
                move = (size * down, size * across)
                read = partial(_read_with_moved_crop, steps=before, move=move)
                text = f"the crop {move[0]:+d} rows and {move[1]:+d} columns from the center"
                run = partial(self._run_variant, read=read)
                yield Cause(text=text, run=run, is_exact=True)

    def _run_variant(
        self,
        reference: ReferenceOutputs,
        *,
        read: Callable[[Array], Array] | None = None,
        activation: str | None = None,
    ) -> Outputs:
        arrays, image = reference.feed.arrays, None
        if self.steps is not None and self.steps.before is not None:
            images = arrays[self.steps.image]
            image = read_images_as(images, self.steps.before) if read is None else read(images)
        return self.run(arrays, image=image, activation=activation)[0]


def _replace_image(
    steps: EnclosedSteps, image: Array | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    if image is None:
        return args, kwargs
    given = torch.from_numpy(image)
    if steps.image in kwargs:
        return args, {**kwargs, steps.image: given}
    return (*args[: steps.place], given, *args[steps.place + 1 :]), kwargs


def _hint_to_declare(option: str, value: str) -> Hint:
    return Hint("correct the pipeline, or declare what it does: ", Option(option, value))


def _hint_for_steps(steps: Preprocess) -> Hint:
    try:
        check_includable(steps)
    except UsageError:  # as nearest
        return Hint("correct the pipeline, or preprocess outside of the model")
    return _hint_to_declare("meta", f"preprocess={steps}")


def _count_from_one(reference: ReferenceOutputs, name: str) -> Outputs:
    ours = reference.outputs[name]
    if ours.dtype.kind not in "iu":
        raise ValueError(f"{name} is not whole numbers")
    return {**reference.outputs, name: ours + 1}


def _exchange(reference: ReferenceOutputs, pair: tuple[str, str]) -> Outputs:
    one, other = pair
    ours = reference.outputs
    return {**ours, one: ours[other], other: ours[one]}


# Images as other steps make them.


def read_images_as(images: Array, steps: Preprocess) -> Array:
    """Return images (N, H, W, C) as Pillow and numpy preprocess them, in float32."""
    import numpy as np

    return np.stack([read_with_pillow(one, steps) for one in images]).astype(np.float32)


def _iter_changes(steps: Preprocess) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield single changes of the steps that pipelines often have, with a text."""
    if steps.channels != "gray":
        other = "rgb" if steps.channels == "bgr" else "bgr"
        yield f"channels={other}", {"channels": other}
    for names in (("mean",), ("std",), ("mean", "std")):
        if all(getattr(steps, name) for name in names):
            yield f"no {' and no '.join(names)}", dict.fromkeys(names, ())
    if steps.std and all(steps.mean):
        yield "mean and std exchanged", {"mean": steps.std, "std": steps.mean}
    yield "mean=0.5,std=0.5", {"mean": (0.5,), "std": (0.5,)}
    for text, scale in _SCALES.items():
        yield f"scale={text}", {"scale": scale}
    if steps.resize:
        yield from ((f"interpolation={name}", {"interpolation": name}) for name in INTERPOLATIONS)
    if steps.resize and steps.crop:
        sides = "x".join(map(str, steps.crop))
        yield f"resize={sides} without a crop", {"resize": steps.crop, "crop": ()}
        yield f"resize={min(steps.crop)}", {"resize": (min(steps.crop),)}
        yield "no crop", {"crop": ()}


def _read_pixels(image: Array, steps: Preprocess) -> Array:
    """Return the resized image (H, W, C) as whole levels, before all other steps."""
    channels = "gray" if image.shape[2] == 1 else "rgb"
    return read_with_pillow(
        image,
        Preprocess(
            resize=steps.resize,
            interpolation=steps.interpolation,
            layout="NHWC",
            channels=channels,
        ),
    )


def _read_with_moved_crop(images: Array, steps: Preprocess, move: tuple[int, int]) -> Array:
    import numpy as np

    found = []
    for image in images:
        pixels = _read_pixels(image, steps)
        starts = [
            round((size - kept) / 2) + by
            for size, kept, by in zip(pixels.shape[:2], steps.crop, move, strict=True)
        ]
        if min(starts) < 0:
            raise ValueError("the crop leaves the image")
        (top, left), (height, width) = starts, steps.crop
        found.append(pixels[top : top + height, left : left + width])
    return read_images_as(np.stack(found), replace(steps, resize=(), crop=()))


def read_images_with_torch(images: Array, steps: Preprocess, *, antialias: bool) -> Array:
    """Return images as torch resizes them (bilinear, bicubic), and Pillow and numpy do the rest."""
    import numpy as np
    import torch

    found = []
    for image in images:
        size = _read_pixels(image, replace(steps, interpolation="nearest")).shape[:2]
        given = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float()
        resized = torch.nn.functional.interpolate(
            given, size, mode=steps.interpolation, antialias=antialias
        )
        found.append(to_array(resized[0].permute(1, 2, 0).round().clamp(0, 255)))
    return read_images_as(np.stack(found).astype(np.uint8), replace(steps, resize=()))
