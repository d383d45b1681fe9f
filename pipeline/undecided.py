"""Integers and bools that an artifact gives otherwise: which of them roundoff decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.precision import Precision
from ..validators.output_pairs import ArtifactOutputs, ReferenceOutputs
from .float64 import add_exact

if TYPE_CHECKING:
    from ..core.contract import Array, Outputs
    from .subject import EagerReference

# Pairs of draws, one the other's negative: of a perfect tie one of the two gives the other answer.
PAIRS = 4
# What weights and inputs are off by, as a share of themselves: about what each precision's
# rounding does to a layer (32 units of roundoff for fp32, since sums add up; one for the halves;
# 8 bits leave some 20 dB).
SHARES = {
    Precision.FP32: 2e-6,
    Precision.FP16: 1e-3,
    Precision.BF16: 8e-3,
    Precision.INT8: 0.1,
}


def mark_undecided_replies(
    references: Sequence[ReferenceOutputs],
    replies: Sequence[ArtifactOutputs],
    precision: Precision,
    subject: EagerReference,
) -> list[ArtifactOutputs]:
    """The replies, those with integers that are not eager's with marks on what roundoff decides.

    Ties in an argmax or a topk, and thresholds that are just met: there eager itself gives another
    answer when its weights and inputs are off by as much as the precision rounds, or in float64.
    """
    known = any(one.exact is not None for one in references)
    told = []
    for reference, reply in zip(references, replies, strict=True):
        names = [n for n in reference.outputs if _has_other_integers(reference, reply, n)]
        if names:
            exactly = add_exact([reference], [reference.feed.name] if known else [], subject)
            answers = {name: (reply.outputs or {})[name] for name in names}
            marks = _mark_outputs(exactly[0], answers, SHARES[precision], subject)
            told.append(replace(reply, undecided=marks))
        else:
            told.append(reply)
    return told


def _has_other_integers(reference: ReferenceOutputs, reply: ArtifactOutputs, name: str) -> bool:
    eager, other = reference.outputs[name], (reply.outputs or {}).get(name)
    if other is None or eager.dtype.kind not in "iub" or other.shape != eager.shape:
        return False
    return bool((eager != other).any())


def _mark_outputs(
    reference: ReferenceOutputs, answers: Outputs, share: float, subject: EagerReference
) -> dict[str, Array]:
    """By output, where any of the draws, or float64, is not eager's."""
    others = list(subject.eager.draw_perturbed(reference.feed.arrays, share, pairs=PAIRS))
    if reference.exact is not None:
        others.append(reference.exact)
    return {
        name: mark_undecided(
            answer, reference.outputs[name], [one[name] for one in others if name in one]
        )
        for name, answer in answers.items()
    }


def mark_undecided(answer: Array, eager: Array, others: Sequence[Array]) -> Array:
    """Where any of the others is not eager's, and so roundoff decides.

    Where even their number is decided by roundoff (boxes that a threshold leaves), places say
    nothing: then those are marked whose value eager gives in either.
    """
    import numpy as np

    found: Array = np.zeros(eager.shape, dtype=bool)
    for other in others:
        if other.shape == eager.shape:
            found |= other != eager
        else:
            found |= np.isin(answer, np.concatenate([eager.reshape(-1), other.reshape(-1)]))
    return found
