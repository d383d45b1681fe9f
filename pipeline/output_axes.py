"""Which axes of the outputs follow which dim, read off eager's answers at many sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..converters.onnx_exporters import GENERATED_AXIS
from ..core.signature import Signature
from ..validators.judge import ReferenceOutputs


def find_output_axes(
    signature: Signature, references: Sequence[ReferenceOutputs]
) -> dict[str, dict[int, str]]:
    """`{"logits": {0: "batch", 1: "logits.axis1"}}`: axes that vary, by the dim that they follow.

    What is no dim's own size on every feed gets a name of its own.
    """
    sizes = [_dim_sizes(signature, one) for one in references]
    found: dict[str, dict[int, str]] = {}
    for name in signature.outputs:
        shapes = [one.outputs[name].shape for one in references]
        if len({len(shape) for shape in shapes}) == 1:
            found[name] = dict(_find_varying_axes(name, shapes, sizes))
    return {name: axes for name, axes in found.items() if axes}


def _dim_sizes(signature: Signature, reference: ReferenceOutputs) -> dict[str, int]:
    """The sizes of the dims on one feed, by the names that axes have."""
    arrays = reference.feed.arrays
    return {
        name: arrays[key].shape[axis]
        for key, axes in signature.axes().items()
        for axis, name in axes.items()
    }


def _find_varying_axes(
    output: str, shapes: Sequence[tuple[int, ...]], sizes: Sequence[Mapping[str, int]]
) -> Iterator[tuple[int, str]]:
    for axis in range(len(shapes[0]) if shapes else 0):
        given = [shape[axis] for shape in shapes]
        if len(set(given)) == 1:
            continue
        same = (name for name in sizes[0] if given == [one[name] for one in sizes])
        yield axis, next(same, f"{output}{GENERATED_AXIS}{axis}")
