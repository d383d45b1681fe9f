"""Symptoms are read from a framework's text where it is caught; rewrites match nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from modelc.capture.evidence import (
    Symptom,
    evidence_in_error,
    evidence_in_verdict,
    evidence_of,
    find_symptoms,
    join_evidence,
)
from modelc.capture.framework_errors import call_framework
from modelc.capture.refusals import RefusedError
from modelc.capture.rewrite_table import REWRITE_TABLE
from modelc.capture.torch_export import capture_export
from modelc.core.contract import Job
from modelc.core.errors import ConversionError, ModelcError, RunnerError
from modelc.core.kinds import Precision, ReasonCode
from modelc.core.verdict import OutputVerdict, Reason, State, Verdict
from modelc.validators.tolerance import tolerance_for

JobOf = Callable[..., Job]


@pytest.mark.parametrize(
    ("text", "symptom"),
    [
        ("your code specialized it to be a constant (15)", Symptom.FIXED_SIZE),
        ("your code specialized it to be a constant (15)", Symptom.SPECIAL_SIZE),
        ("math.trunc(n / 2) == 10", Symptom.SIZE_ARITHMETIC),
        ("argument 'is_causal' must be bool", Symptom.FUSED_ATTENTION),
        ("Attention mask should be of size (2, 1, 4, 4)", Symptom.ATTENTION_MASK),
        ("torch/autograd/function.py(581): apply", Symptom.AUTOGRAD_FUNCTION),
        ("LSTM, LSTMs with projections", Symptom.PROJECTED_LSTM),
    ],
)
def test_text_of_frameworks(text: str, symptom: Symptom) -> None:
    assert symptom in find_symptoms(text)
    assert not find_symptoms("RuntimeError: unknown")


def test_an_exception_is_read_where_it_is_caught() -> None:
    def make() -> None:
        raise RuntimeError("Exporting the operator 'prim::PythonOp' to ONNX is not supported")

    with pytest.raises(RefusedError) as caught:
        call_framework("torch.onnx.export", make)
    assert caught.value.evidence.symptoms == {Symptom.AUTOGRAD_FUNCTION}


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.mean() > 0 else x


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.ones(max(x.shape[1], 3) if x.shape[1] % 2 else x.shape[1])


@pytest.mark.parametrize(
    ("net", "symptom"), [(Branch(), Symptom.DATA_BRANCH), (Halved(), Symptom.ASSUMED_SIZE)]
)
def test_captures_attach_evidence(job_of: JobOf, net: nn.Module, symptom: Symptom) -> None:
    with pytest.raises(ConversionError) as caught:
        capture_export(job_of(net, "x:float32[batch=1..4,n=2..9]"))
    assert symptom in evidence_in_error(caught.value).symptoms


def test_a_refusal_names_the_file_of_the_users_line(job_of: JobOf) -> None:
    with pytest.raises(RefusedError) as caught:
        capture_export(job_of(Branch(), "x:float32[batch=1..4,3]"))
    assert caught.value.evidence.files == {"test_evidence.py"}


@pytest.mark.parametrize(
    ("error", "symptoms"),
    [
        (RunnerError("scaled_dot_product_attention", hint=""), {Symptom.RUNTIME_REFUSED}),
        (ConversionError("LSTMs with projections", hint=""), set()),
        (RefusedError("your code specialized it", hint=""), set()),
    ],
)
def test_messages_are_not_read(error: ModelcError, symptoms: set[Symptom]) -> None:
    assert evidence_in_error(error).symptoms == symptoms


def verdict(code: ReasonCode, *, floor: float | None) -> Verdict:
    output = OutputVerdict(
        feed="f", output="y", passed=False, reason="", shape=(1,), dtype="float32", exact=False,
        floor=floor, times_floor=200.0,
    )  # fmt: skip
    return Verdict(
        artifact="a",
        state=State.FAILED,
        device="cpu",
        feeds=("f",),
        tolerance=tolerance_for(Precision.FP32),
        reasons=(Reason(code=code, text="reads like nothing"),),
        outputs=(output,),
    )


@pytest.mark.parametrize(
    ("code", "floor", "symptoms"),
    [
        (ReasonCode.OUTPUT_DIFFERS, None, {Symptom.ROUNDOFF}),
        (ReasonCode.OUTPUT_DIFFERS, 1e-8, {Symptom.ROUNDOFF, Symptom.FLOAT64_ROUNDOFF}),
        (ReasonCode.FEED_REFUSED, None, {Symptom.ROUNDOFF, Symptom.RUNTIME_REFUSED}),
    ],
)
def test_verdicts_are_read_by_codes_and_measures(
    code: ReasonCode, floor: float | None, symptoms: set[Symptom]
) -> None:
    found = evidence_in_verdict(verdict(code, floor=floor), ["lib/a/modeling_x.py:12"])
    assert found.symptoms == symptoms
    assert found.files == {"modeling_x.py"}


def test_rewrites_match_symptoms_and_files() -> None:
    known = join_evidence(
        [evidence_of(Symptom.FIXED_SIZE), evidence_of(place="/a/cache_utils.py:3")]
    )
    answers = {rewrite.name for rewrite in REWRITE_TABLE if rewrite.is_answer(known)}
    assert {"tensor-lengths", "state-caches"} <= answers
    assert "exact-elu" not in answers
