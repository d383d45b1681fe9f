"""Whether an artifact differs from eager in positions that a mask hides, and in no others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..core.contract import Array, Outputs
    from ..core.verdict import Tolerance
    from .evidence import Reference, Reply

_RANK = 2  # a mask is [batch, position]


def differs_behind_masks(
    reference: Reference, reply: Reply, tolerance: Tolerance, outputs: Sequence[str]
) -> bool | None:
    """Whether these outputs differ in masked positions alone; None where that cannot be told.

    Elements differ by more than `atol + rtol * peak`, the peak that of eager's visible positions.
    The positions of an output are the one axis beside the first that is as long as the mask.
    """
    masks = list(_masks(reference))
    if len(masks) != 1 or not outputs:
        return None
    for name in outputs:
        eager, array = reference.outputs[name], (reply.outputs or {}).get(name)
        if array is None or array.shape != eager.shape or eager.dtype.kind != "f":
            return None
        axis = _axis(eager.shape, masks[0].shape)
        if axis is None:
            return None
        if _visible_apart(eager, array, _spread(masks[0], eager.ndim, axis), tolerance.of(name)):
            return False
    return True


def without_last_row(reference: Reference, reply: Reply) -> tuple[Reference, Reply] | None:
    """Both answers without the last row, which a mask hides; None where an output has no rows.

    The feed's name says so, as one name stands for one judging.
    """
    rows = next((len(mask) for mask in _masks(reference)), 0)
    answers = reply.outputs or {}
    if not rows or not answers or any(_rows(a) != rows for a in reference.outputs.values()):
        return None
    if any(_rows(array) != rows for array in answers.values()):
        return None

    def cut(outputs: Mapping[str, Array]) -> Outputs:
        return {name: array[:-1].copy() for name, array in outputs.items()}

    kept = replace(
        reference,
        feed=replace(reference.feed, name=f"{reference.feed.name} (other rows)"),
        outputs=cut(reference.outputs),
        exact=None if reference.exact is None else cut(reference.exact),
        again=tuple(map(cut, reference.again)),
        in_turn=None if reference.in_turn is None else cut(reference.in_turn),
    )
    return kept, replace(reply, outputs=cut(answers), undecided=cut(reply.undecided))


def _rows(array: Array) -> int:
    return int(array.shape[0]) if array.ndim else 0


def _masks(reference: Reference) -> Iterator[Array]:
    """The feed's inputs of zeros and ones, by row and position, that hide something."""
    for array in reference.feed.arrays.values():
        whole = array.ndim == _RANK and array.dtype.kind in "biu"
        if whole and array.size and set(array.ravel().tolist()) == {0, 1}:
            yield array


def _axis(shape: tuple[int, ...], mask: tuple[int, ...]) -> int | None:
    """Where the positions are; None where the rows differ in number, or no one axis is as long."""
    found = [axis for axis, size in enumerate(shape) if axis and size == mask[1]]
    return found[0] if shape and shape[0] == mask[0] and len(found) == 1 else None


def _spread(mask: Array, rank: int, axis: int) -> Array:
    """The mask in the output's form, True where something is visible."""
    shape = [1] * rank
    shape[0], shape[axis] = mask.shape
    return mask.reshape(shape).astype(bool)


def _visible_apart(eager: Array, array: Array, visible: Array, tolerance: Tolerance) -> bool:
    import numpy as np

    kept = np.broadcast_to(visible, eager.shape)
    one, other = eager[kept].astype(np.float64), array[kept].astype(np.float64)
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return True
    one, other = np.nan_to_num(one), np.nan_to_num(other)
    peak = float(np.abs(one).max(initial=0.0))
    return bool((np.abs(one - other) > tolerance.atol + tolerance.rtol * peak).any())
