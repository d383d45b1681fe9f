"""Check declared metadata against the model, and complete what follows from it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from ..calibration.sample_formats import settle_preprocess
from ..core.errors import ErrorCode, Hint, Option, UsageError
from ..core.manifest import Manifest
from ..core.model_meta import ModelMeta
from ..core.postprocess import class_axis
from ..core.preprocess import CHANNELS, Preprocess
from ..core.records import Checkpoint
from ..core.signature import FLOATS, Dim, InputSpec
from .eager_reference import EagerReference
from .enclosed_checks import find_selected_classes
from .image_samples import raw_images
from .order import Order
from .run_progress import Progress

_BATCH_AND_CLASSES = 2  # ranks
_IMAGE_RANKS = (3, 4)


def complete_meta(
    meta: ModelMeta, eager: EagerReference, used: Preprocess | None = None
) -> ModelMeta:
    """Return the metadata with the names of input and output, and complete preprocessing.

    Where none is declared, that which is `used` on the images of this run is recorded; whether it
    fits is found when they are read.

    Raises:
        UsageError: it contradicts the model: the number of classes, channels, sizes, names.
    """
    meta = _separate_included(meta, eager.checkpoint)
    if meta.classes or meta.classes_output:
        meta = replace(meta, classes_output=_check_classes(meta, eager))
    if meta.preprocess is not None:
        spec = _image_input(meta, eager)
        steps, _ = settle_preprocess(meta.preprocess, spec)
        _check_preprocess(steps, spec)
        meta = replace(meta, preprocess=steps, preprocess_input=spec.name)
    elif meta.preprocess_input:
        raise _meta_fault("preprocess-input", "names an input, but no preprocess is declared",
                          "preprocess=imagenet")  # fmt: skip
    elif used is not None:
        meta = _record_used(meta, used, eager)
    return meta


def _record_used(meta: ModelMeta, used: Preprocess, eager: EagerReference) -> ModelMeta:
    try:
        spec = _image_input(meta, eager)
        steps, _ = settle_preprocess(used, spec)
    except UsageError:  # it cannot be said which input it is for
        return meta
    return replace(meta, preprocess=steps, preprocess_input=spec.name)


def _separate_included(meta: ModelMeta, checkpoint: Checkpoint) -> ModelMeta:
    """Return the metadata with what the model does itself apart from what is left to do."""
    meta = replace(meta, included_preprocess=None, included_postprocess=checkpoint.postprocess)
    if not checkpoint.preprocess:
        return meta
    return replace(
        meta,
        included_preprocess=Preprocess.parse(checkpoint.preprocess),
        preprocess=raw_images(checkpoint.preprocess),
    )


def note_other_meta(
    known: Manifest | None, order: Order, made: Set[str], progress: Progress
) -> None:
    """Warn of artifacts in the folder that hold other metadata, as this run does not make them."""
    if known is None or known.meta == order.meta or not known.artifacts:
        return
    left = [one.name for one in known.artifacts if one.step not in made]
    if left:
        text = f"{', '.join(left)} in {order.out}: the metadata is of an earlier run; export again"
        progress.note(text, warning=True)


def _meta_fault(key: str, problem: str, example: str) -> UsageError:
    return UsageError(
        f"metadata {key}: {problem}",
        hint=Hint("give ", Option("meta", example)),
        option="meta",
        code=ErrorCode.INVALID_VALUE,
    )


def _check_classes(meta: ModelMeta, eager: EagerReference) -> str:
    """Return the output whose entries the classes name."""
    selected, count = find_selected_classes(eager), len(meta.classes)
    name = _class_output(meta.classes_output or (selected[0] if selected else ""), eager)
    if not count:
        raise _meta_fault("classes-output", "names an output, but no classes are declared",
                          "classes=labels.txt")  # fmt: skip
    found = selected[1] if selected and name == selected[0] else _count_classes(name, eager)
    if found != count:
        raise _meta_fault(
            "classes", f"{count} names for {found} entries of the output {name}",
            f"classes=FILE with {found} names",
        )  # fmt: skip
    return name


def _class_output(asked: str, eager: EagerReference) -> str:
    outputs = eager.signature.outputs
    if asked:
        if asked not in outputs:
            raise _meta_fault("classes-output", f"the model has no output {asked!r}",
                              f"classes-output={outputs[0]}")  # fmt: skip
        return asked
    arrays = eager.references[0].outputs
    able = [name for name in outputs if arrays[name].dtype.kind == "f" and arrays[name].ndim > 1]
    able = able if able else list(outputs)
    if len(able) > 1:
        raise _meta_fault(
            "classes", f"the model has the outputs {', '.join(able)}", f"classes-output={able[0]}"
        )
    return able[0]


def _count_classes(name: str, eager: EagerReference) -> int:
    """Return the size of the class dim: the second of (N, C) and (N, C, H, W), the last of others.

    Raises:
        UsageError: the output has no such dim, or one whose size follows the input.
    """
    shapes = [one.outputs[name].shape for one in eager.references]
    rank = len(shapes[0])
    if rank < _BATCH_AND_CLASSES:
        raise _meta_fault("classes", f"the output {name} has {rank} dims, without one of classes",
                          "classes-output=NAME")  # fmt: skip
    axis = class_axis(rank)
    sizes = sorted({shape[axis] for shape in shapes})
    if len(sizes) > 1:
        raise _meta_fault(
            "classes", f"dim {axis % rank} of the output {name} follows the input's size: "
            f"{sizes[0]} to {sizes[-1]}", "classes-output=NAME",
        )  # fmt: skip
    return int(sizes[0])


def _image_input(meta: ModelMeta, eager: EagerReference) -> InputSpec:
    specs = {spec.name: spec for spec in eager.signature.inputs}
    if meta.preprocess_input:
        if meta.preprocess_input not in specs:
            raise _meta_fault(
                "preprocess-input", f"the model has no input {meta.preprocess_input!r}",
                f"preprocess-input={next(iter(specs))}",
            )  # fmt: skip
        return specs[meta.preprocess_input]
    images = [spec for spec in specs.values() if len(spec.dims) in _IMAGE_RANKS]
    found = images if len(images) == 1 else list(specs.values())
    if len(found) > 1:
        raise _meta_fault(
            "preprocess", f"the model has the inputs {', '.join(specs)}",
            f"preprocess-input={found[0].name}",
        )  # fmt: skip
    return found[0]


def _check_preprocess(steps: Preprocess, spec: InputSpec) -> None:
    """Check channels, sizes and dtype against the input; `steps` are complete."""
    first, last = spec.dims[-3], spec.dims[-1]
    is_nchw = steps.layout == "NCHW"
    channels, sides = (first, spec.dims[-2:]) if is_nchw else (last, spec.dims[-3:-1])
    count = CHANNELS[steps.channels]
    if not _holds(channels, count):
        raise _meta_fault(
            "preprocess", f"{steps.channels} in {steps.layout} has {count} channels where {spec} "
            f"has {channels}", f"preprocess={_fit_channels(steps, first, last)}",
        )  # fmt: skip
    for key in ("mean", "std"):
        if len(getattr(steps, key)) not in (0, 1, count):
            raise _meta_fault("preprocess", f"{key} has {len(getattr(steps, key))} values for "
                              f"{count} channels", f"preprocess={key}=0.5")  # fmt: skip
    size = steps.image_size
    if size and not all(_holds(dim, one) for dim, one in zip(sides, size, strict=True)):
        tall, wide = size
        usual = tuple(dim.opt for dim in sides)
        fitted = replace(steps, crop=usual) if steps.crop else replace(steps, resize=usual)
        raise _meta_fault(
            "preprocess",
            f"images of {tall}x{wide} are outside {spec}",
            f"preprocess={fitted}",
        )
    is_float = steps.scale != 1 or steps.mean or steps.std
    if is_float and spec.dtype not in FLOATS:
        raise _meta_fault(
            "preprocess",
            f"scale, mean and std give numbers that {spec} cannot hold",
            "preprocess=raw",
        )


def _fit_channels(steps: Preprocess, first: Dim, last: Dim) -> Preprocess:
    """Return the steps in the first layout and channels that fit the input, else as they are."""
    for channels in (steps.channels, *CHANNELS):
        for layout, dim in (("NCHW", first), ("NHWC", last)):
            if _holds(dim, CHANNELS[channels]):
                kept = steps if channels == steps.channels else replace(steps, mean=(), std=())
                return replace(kept, layout=layout, channels=channels)
    return steps


def _holds(dim: Dim, size: int) -> bool:
    """Whether a dim may have this size."""
    if dim.name is None:
        return dim.opt == size
    if not dim.bounded:
        return True
    return dim.low <= size <= dim.high and (dim.is_sum or dim.free_size(size) is not None)
