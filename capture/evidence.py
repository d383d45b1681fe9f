"""What refusals and verdicts say about their cause, as symptoms that rewrites can match."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

from ..core.errors import ModelcError, RunnerError
from ..core.kinds import ReasonCode
from ..core.verdict import Verdict


class Symptom(StrEnum):
    """One fact about why a model was not captured, or why its artifact is wrong."""

    FIXED_SIZE = "fixed-size"  # torch.export made a dynamic size a constant
    SPECIAL_SIZE = "special-size"  # it treated 0 or 1 as special, and that narrowed a range
    ASSUMED_SIZE = "assumed-size"  # its program holds only under a condition on sizes
    SIZE_ARITHMETIC = "size-arithmetic"  # ... one that contains trunc, max or min
    SIZE_BRANCH = "size-branch"  # a trace kept one side of a branch on sizes
    DATA_BRANCH = "data-branch"
    FUSED_ATTENTION = "fused-attention"
    ATTENTION_MASK = "attention-mask"  # the model rejected the shape of its mask
    AUTOGRAD_FUNCTION = "autograd-function"
    PROJECTED_LSTM = "projected-lstm"
    OPEN_INVERSE = "open-inverse"  # an inverse of matrices of dynamic size
    RUNTIME_REFUSED = "runtime-refused"  # a runtime would not open the artifact or run a feed
    ROUNDOFF = "roundoff"  # above the noise floor
    FLOAT64_ROUNDOFF = "float64-roundoff"  # ... that eager's distance from float64 gives


# What torch 2.13 and transformers 5 write.
_PATTERNS: tuple[tuple[Symptom, re.Pattern[str]], ...] = (
    (Symptom.FIXED_SIZE, re.compile("specialized it")),
    (
        Symptom.SPECIAL_SIZE,
        re.compile("0/1 specialized|static shape of|specialized it to be a constant|not in range"),
    ),
    (Symptom.SIZE_ARITHMETIC, re.compile(r"math\.trunc\(|max\(|min\(")),
    (Symptom.FUSED_ATTENTION, re.compile("scaled_dot_product_attention|is_causal")),
    (Symptom.ATTENTION_MASK, re.compile("Attention mask should be of size")),
    (
        Symptom.AUTOGRAD_FUNCTION,
        re.compile(r"autograd/function\.py|PythonOp|autograd\.Function"),
    ),
    (Symptom.PROJECTED_LSTM, re.compile("LSTMs with projections")),
)


@dataclass(frozen=True, kw_only=True)
class RefusalEvidence:
    """Symptoms, and the user's or a library's files (names without folders) that they lie in."""

    symptoms: frozenset[Symptom] = frozenset()
    files: frozenset[str] = frozenset()

    def __or__(self, other: RefusalEvidence) -> RefusalEvidence:
        return RefusalEvidence(
            symptoms=self.symptoms | other.symptoms, files=self.files | other.files
        )


def find_symptoms(text: str) -> frozenset[Symptom]:
    """Read a framework's own text, where its exception is caught."""
    return frozenset(symptom for symptom, pattern in _PATTERNS if pattern.search(text))


def evidence_of(*symptoms: Symptom, place: str = "") -> RefusalEvidence:
    """Return these symptoms; `place` is `file:line`, or empty."""
    return RefusalEvidence(
        symptoms=frozenset(symptoms), files=_file_names([place] if place else [])
    )


def join_evidence(several: Iterable[RefusalEvidence]) -> RefusalEvidence:
    """Return all symptoms and files."""
    found = RefusalEvidence()
    for one in several:
        found |= one
    return found


def evidence_in_error(error: ModelcError) -> RefusalEvidence:
    """Return the evidence that a capture attached; a runtime's error is a symptom itself."""
    found = getattr(error, "evidence", None)
    if isinstance(found, RefusalEvidence):
        return found
    return (
        evidence_of(Symptom.RUNTIME_REFUSED)
        if isinstance(error, RunnerError)
        else RefusalEvidence()
    )


def evidence_in_verdict(verdict: Verdict, frozen: Collection[str]) -> RefusalEvidence:
    """Return what is wrong with an artifact; `frozen` are the places that its capture froze."""
    symptoms: set[Symptom] = set()
    if any(reason.code is ReasonCode.FEED_REFUSED for reason in verdict.reasons):
        symptoms.add(Symptom.RUNTIME_REFUSED)
    for output in verdict.outputs:
        factor = verdict.tolerance.of(output.output).floor_factor
        if not output.passed and factor is not None and (output.times_floor or 0) > factor:
            symptoms.add(Symptom.ROUNDOFF)
            if output.floor is not None:
                symptoms.add(Symptom.FLOAT64_ROUNDOFF)
    if any(reason.code is ReasonCode.CHANNEL_DIFFERS for reason in verdict.reasons) and any(
        channel.times_floor is not None for channel in verdict.channels
    ):
        symptoms |= {Symptom.ROUNDOFF, Symptom.FLOAT64_ROUNDOFF}
    return RefusalEvidence(symptoms=frozenset(symptoms), files=_file_names(frozen))


def _file_names(places: Iterable[str]) -> frozenset[str]:
    return frozenset(PurePath(place.rpartition(":")[0]).name for place in places)
