"""Find differences in positions that do not count: masked positions and padding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..core.contract import Array, Outputs
    from ..core.verdict import Tolerance
    from .output_pairs import ArtifactOutputs, ReferenceOutputs

_RANK = 2  # dims of a mask: [batch, position]


def differs_behind_masks(
    reference: ReferenceOutputs,
    reply: ArtifactOutputs,
    tolerance: Tolerance,
    outputs: Sequence[str],
) -> bool | None:
    """Whether these outputs differ in masked positions only; None if that is undecidable.

    Elements differ if they are more than `atol + rtol * peak` apart, with the peak of eager's
    visible positions. The position axis of an output is the only axis but the first with the mask's
    length.
    """
    masks = [array for _, array in _masks_by_name(reference)]
    if len(masks) != 1 or not outputs:
        return None
    for name in outputs:
        eager, array = reference.outputs[name], (reply.outputs or {}).get(name)
        if array is None or array.shape != eager.shape or eager.dtype.kind != "f":
            return None
        axis = _position_axis(eager.shape, masks[0].shape)
        if axis is None:
            return None
        shape = [1] * eager.ndim
        shape[0], shape[axis] = masks[0].shape
        if _differs_visibly(eager, array, masks[0].reshape(shape) != 0, tolerance.of(name)):
            return False
    return True


def drop_masked_row(
    reference: ReferenceOutputs, reply: ArtifactOutputs, others: Sequence[ReferenceOutputs] = ()
) -> tuple[ReferenceOutputs, ArtifactOutputs] | None:
    """Return both results without the last row, which a mask hides; None if no output has rows.

    The feed gets another name, as names identify judgments. An output's row axes are those that
    have the mask's length on all `others` too, if that length varies: scores of images by texts
    have the rows of a text mask in axis 1. An output without such an axis is replaced by eager's.
    If the length never varies, the first axis of every output must have it. Places where eager has
    NaN or Inf in other rows are not judged.
    """
    import numpy as np

    axes = _find_row_axes(reference, others)
    answers = reply.outputs or {}
    given = {name: array.shape for name, array in answers.items()}
    if not axes or given != {name: array.shape for name, array in reference.outputs.items()}:
        return None

    def cut(outputs: Mapping[str, Array]) -> Outputs:
        return {
            name: array[
                tuple(
                    slice(-1 if axis in axes.get(name, ()) else None) for axis in range(array.ndim)
                )
            ].copy()
            for name, array in outputs.items()
        }

    eager, found = cut(reference.outputs), cut(answers)
    for name, array in eager.items():
        if name not in axes:
            found[name] = array.copy()
        elif array.dtype.kind == "f" and found[name].dtype == array.dtype:
            np.copyto(found[name], array, where=~np.isfinite(array))
    kept = replace(
        reference,
        feed=replace(reference.feed, name=f"{reference.feed.name} (other rows)"),
        outputs=eager,
        exact=None if reference.exact is None else cut(reference.exact),
        again=tuple(map(cut, reference.again)),
        sequential=None if reference.sequential is None else cut(reference.sequential),
    )
    return kept, replace(reply, outputs=found, undecided=cut(reply.undecided))


def _find_row_axes(
    reference: ReferenceOutputs, others: Sequence[ReferenceOutputs]
) -> dict[str, set[int]]:
    """Return each output's axes with as many elements as the mask has rows; empty if none has."""
    mask = next((name for name, _ in _masks_by_name(reference)), None)
    if mask is None:
        return {}
    known = [one for one in (reference, *others) if mask in one.feed.arrays]
    rows = [len(one.feed.arrays[mask]) for one in known]
    if len(set(rows)) == 1:
        first = {name: {0} for name, a in reference.outputs.items() if a.shape[:1] == (rows[0],)}
        return first if len(first) == len(reference.outputs) else {}
    found = {
        name: {
            axis
            for axis in range(array.ndim)
            if all(
                one.outputs[name].ndim == array.ndim and one.outputs[name].shape[axis] == size
                for one, size in zip(known, rows, strict=True)
            )
        }
        for name, array in reference.outputs.items()
    }
    return {name: axes for name, axes in found.items() if axes}


def _masks_by_name(reference: ReferenceOutputs) -> Iterator[tuple[str, Array]]:
    """Yield [row, position] masks that hide something, normalised so that 1 keeps a position."""
    for name, array in reference.feed.arrays.items():
        whole = array.ndim == _RANK and array.dtype.kind in "biu"
        if whole and array.size and set(array.ravel().tolist()) == {0, 1}:
            yield name, 1 - array.astype("int8") if name in reference.feed.hiding else array


def _position_axis(shape: tuple[int, ...], mask: tuple[int, ...]) -> int | None:
    """Return the position axis; None if the row counts differ or the axis is ambiguous."""
    found = [axis for axis, size in enumerate(shape) if axis and size == mask[1]]
    return found[0] if shape and shape[0] == mask[0] and len(found) == 1 else None


def _differs_visibly(eager: Array, array: Array, visible: Array, tolerance: Tolerance) -> bool:
    import numpy as np

    kept = np.broadcast_to(visible, eager.shape)
    one, other = eager[kept].astype(np.float64), array[kept].astype(np.float64)
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return True
    one, other = np.nan_to_num(one), np.nan_to_num(other)
    peak = float(np.abs(one).max(initial=0.0))
    return bool((np.abs(one - other) > tolerance.atol + tolerance.rtol * peak).any())


# Whether two of eager's own paths differ in padded positions only.


_PADDING_TOLERANCE = 1e-5  # of the peak: allows for the summation order
_FILL_TOLERANCE = 1e-6  # of the peak: positions of fill are equal
_SEVERAL = 2  # positions; a single one cannot be identified as fill


def count_padded_positions(paths: Sequence[tuple[Outputs, Outputs]]) -> int | None:
    """Count the positions where the two paths differ; None if not all of them are padding.

    A position is padding if the first path has fill there: the same row of the last axis (or the
    same element) in all positions that differ, on all feeds, and either zeros or at least two of
    them. Values that padding leaks into (a mean over all positions) are not fill.

    Args:
        paths: per feed, the outputs of the path with fill and those of the other path.
    """
    total = 0
    for name in paths[0][0] if paths else ():
        found = _count_padded([(one[name], other[name]) for one, other in paths])
        if found is None:
            return None
        total += found
    return total


def _count_padded(arrays: Sequence[tuple[Array, Array]]) -> int | None:
    """Count padded positions of one output, as `count_padded_positions` does."""
    import numpy as np

    rows, elements, peak = [], [], 0.0
    for one, other in arrays:
        left, differs = _find_differences(one, other)
        if differs is None:
            return None
        if differs.any():
            peak = max(peak, float(np.abs(left).max()))
            elements.append(left[differs].reshape(-1, 1))
            rows.append(left[differs.any(axis=-1)] if left.ndim > 1 else left[None])
    for found in (rows, elements):
        alike = len({part.shape[-1] for part in found}) == 1
        if alike and _is_fill_value(np.concatenate(found), _FILL_TOLERANCE * peak):
            return sum(len(part) for part in found)
    return None if elements else 0


def _find_differences(one: Array, other: Array) -> tuple[Array, Array | None]:
    """Return the first array, and where the two differ; None if that cannot be padding."""
    import numpy as np

    if one.dtype.kind != "f" or one.ndim == 0:
        return one, np.zeros(one.shape, bool) if np.array_equal(one, other) else None
    if not (np.isfinite(one) == np.isfinite(other)).all():
        return one, None
    left, right = (np.nan_to_num(array.astype(np.float64)) for array in (one, other))
    peak = float(np.abs(left).max(initial=0.0))
    return left, np.abs(left - right) > _PADDING_TOLERANCE * peak


def _is_fill_value(rows: Array, tolerance: float) -> bool:
    import numpy as np

    if not rows.any():
        return True
    alike = bool((np.abs(rows - rows[0]) <= tolerance).all())
    return alike and len(rows) >= _SEVERAL
