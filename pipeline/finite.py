"""Eager that gives nothing but NaN or Inf: nothing made of it could be compared."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.contract import Array
from ..core.errors import CheckpointError, Hint, Option
from ..sources.weight_loading import NonFiniteWeight
from ..validators.judge import ReferenceOutputs

_MAX_SHOWN_WEIGHTS = 3  # weights that a line names


def check_finite(
    references: Sequence[ReferenceOutputs], weights: Sequence[NonFiniteWeight]
) -> None:
    """That there is something to compare.

    Raises:
        CheckpointError: eager's outputs hold no finite number on any feed; the first of the
            weights with NaN or Inf is named.
    """
    arrays = [array for one in references for array in one.outputs.values() if array.size]
    if not arrays or not all(map(_is_all_nonfinite, arrays)):
        return
    if weights:
        more = f" (and {len(weights) - 1} more weights)" if len(weights) > 1 else ""
        raise CheckpointError(
            f"{weights[0]}{more}: eager gives nothing but NaN or Inf",
            hint="take a checkpoint from before the training diverged, or look at how it was made",
        )
    raise CheckpointError(
        f"eager gives nothing but NaN or Inf on all {len(references)} feeds, and no weight has any",
        hint=Hint(
            "say which values the inputs have, as ",
            Option("input", "'x:float32[batch]{0..1}'"),
            ", or mend the model: PyTorch gives them too",
        ),
        option="input",
    )


def note_nonfinite_weights(weights: Sequence[NonFiniteWeight]) -> tuple[str, ...]:
    """A note on weights with NaN or Inf, where eager gives numbers all the same."""
    if not weights:
        return ()
    more = (
        f" and {len(weights) - _MAX_SHOWN_WEIGHTS} more"
        if len(weights) > _MAX_SHOWN_WEIGHTS
        else ""
    )
    return (
        f"{', '.join(map(str, weights[:_MAX_SHOWN_WEIGHTS]))}{more}: look at how it was trained",
    )


def _is_all_nonfinite(array: Array) -> bool:
    import numpy as np

    return array.dtype.kind in "fc" and not np.isfinite(array).any()
