"""Signatures from `--input` texts, and verdicts on outputs that a test makes up."""

from __future__ import annotations

from collections.abc import Sequence

from modelc.core.grammar import parse_input
from modelc.core.kinds import Precision
from modelc.core.signature import Signature, merge_inputs
from modelc.core.verdict import Tolerance, Verdict
from modelc.validators.judge import ArtifactOutputs, ReferenceOutputs, judge
from modelc.validators.tolerance import TOLERANCES


def signature_of(*inputs: str) -> Signature:
    """The signature of these inputs, without outputs."""
    return merge_inputs([parse_input(text) for text in inputs], {})


def verdict_on(
    references: Sequence[ReferenceOutputs],
    replies: Sequence[ArtifactOutputs],
    *,
    signature: Signature | str = "x:float32[6]",
    tolerance: Tolerance = TOLERANCES[Precision.FP32],
    taken: Sequence[str] | None = None,
    loose: frozenset[str] = frozenset(),
    by_channel: bool = True,
) -> Verdict:
    """The verdict on the output `y`, or on those of the signature; all inputs are taken."""
    if isinstance(signature, str):
        signature = signature_of(signature).with_outputs(["y"])
    return judge(
        artifact="model.bin",
        references=references,
        replies=replies,
        tolerance=tolerance,
        device="cpu",
        artifact_inputs=[one.name for one in signature.inputs] if taken is None else taken,
        signature=signature,
        loose=loose,
        by_channel=by_channel,
    )
