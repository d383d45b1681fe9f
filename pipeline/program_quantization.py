"""Compare the scales, zero points and integers of an artifact with those of a quantized program.

Outputs alone do not show a zero point that is off by one: it moves them as far as an activation
that is rounded to the other of two integers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..checkpoints.quantized_program import list_program_steps
from ..core.kinds import Precision, ReasonCode
from ..core.weights import QuantizationCarrying, QuantizationStep, Weighted
from ..validators.ruling import Ruling
from .judge_case import JudgeRequest
from .reply_evidence import JudgedEvidence

if TYPE_CHECKING:
    from ..core.contract import Array

_ENDS = 1e-6  # relative: how far a scale is off that is computed from the ends of its range


def check_quantization(request: JudgeRequest, _: JudgedEvidence) -> Ruling:
    """Reject an artifact of a quantized program with other scales, zero points or integers."""
    candidate = request.candidate
    model = request.eager.model
    if not isinstance(candidate.target, QuantizationCarrying) or not model.has_module:
        return Ruling()
    wanted = list(list_program_steps(model.module))
    if not wanted:
        return Ruling()
    found = list(candidate.target.quantization_steps(candidate.path))
    if not found and candidate.precision is Precision.FP32:
        return Ruling()  # operators of another form, judged within the limits of floats
    texts = find_other_steps(wanted, found)
    if isinstance(candidate.target, Weighted):  # biases: limits of INT8 are wide for them
        texts += request.find_altered_weights(candidate.target.weights(candidate.path))
    more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
    return Ruling.fault(ReasonCode.WEIGHT_ALTERED, *[f"{texts[0]}{more}"] if texts else [])


def find_other_steps(
    wanted: Iterable[QuantizationStep], found: Iterable[QuantizationStep]
) -> tuple[str, ...]:
    """Describe the steps of a file that a program lacks, then those that the file lacks.

    Equal steps count once: an exporter may join them, or repeat them for several readers.
    """
    ours, theirs = _StepIndex(wanted), _StepIndex(found)
    return (
        *theirs.describe_missing(ours, "the file has {}, which the checkpoint lacks"),
        *ours.describe_missing(theirs, "the file lacks the checkpoint's {}"),
    )


class _StepIndex:
    """Steps by what must be equal: the zero points, and the integers of constants."""

    def __init__(self, steps: Iterable[QuantizationStep]) -> None:
        self._steps: dict[tuple[bytes, bytes], list[QuantizationStep]] = {}
        for step in steps:
            self._steps.setdefault(_make_key(step), []).append(step)

    def describe_missing(self, others: _StepIndex, text: str) -> Iterator[str]:
        """Yield a text for each step without an equal one among the others."""
        for key, steps in self._steps.items():
            known = others._steps.get(key, [])
            for step in steps:
                if not any(_has_same_scales(step, one) for one in known):
                    yield text.format(_describe_step(step))


def _has_same_scales(one: QuantizationStep, other: QuantizationStep) -> bool:
    import numpy as np

    given, wanted = one.scales.reshape(-1), other.scales.reshape(-1)
    if one.exact and other.exact:
        return bool(np.array_equal(given, wanted))
    return given.shape == wanted.shape and bool(np.allclose(given, wanted, _ENDS, 0.0))


def _describe_step(step: QuantizationStep) -> str:
    kind = "an activation's step" if step.integers is None else "a constant's step"
    scale = float(step.scales.reshape(-1)[0])
    zero = "computed at run time" if step.zeros is None else int(step.zeros.reshape(-1)[0])
    first = "" if step.scales.size == 1 else f" first of {step.scales.size}"
    return f"{kind} {step.place} (scale {scale:.6g}, zero point {zero}{first})"


def _make_key(step: QuantizationStep) -> tuple[bytes, bytes]:
    """Return digests of the zero points and of the integers."""
    import numpy as np

    integers = b"" if step.integers is None else _digest(step.integers)
    if step.zeros is None:
        return b"", integers
    return _digest(np.broadcast_to(step.zeros.reshape(-1), step.scales.size)), integers


def _digest(integers: Array) -> bytes:
    import numpy as np

    held = np.ascontiguousarray(integers, np.int32)
    return hashlib.sha256(f"{held.shape}".encode() + held.tobytes()).digest()
