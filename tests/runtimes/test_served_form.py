"""What a server declares is compared with the signature and with the forms of eager's outputs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modelc.core.dims import Dim
from modelc.core.external_runtime import Declaration, OutputForm
from modelc.core.kinds import Precision, ReasonCode
from modelc.core.records import Artifact
from modelc.core.signature import InputSpec, Signature
from modelc.runtimes.served_form import check_form, match_tensors
from modelc.runtimes.v2_client import V2Config, V2Model, V2Tensor

BATCH = Dim(low=1, opt=2, high=8, name="batch")
WIDE = Dim(low=3, opt=3, high=3)
SIGNATURE = Signature(
    inputs=(
        InputSpec(name="x", dtype="float32", dims=(BATCH, WIDE)),
        InputSpec(name="n", dtype="int64", dims=()),
    ),
    outputs=("y", "loss"),
)
FORMS = {
    "y": OutputForm(dtype="float32", dims=(-1, 5)),
    "loss": OutputForm(dtype="float32", dims=()),
}
X = V2Tensor(name="x", datatype="FP32", shape=(-1, 3))
N = V2Tensor(name="n", datatype="INT64", shape=(1,))
Y = V2Tensor(name="y", datatype="FP32", shape=(-1, 5))
LOSS = V2Tensor(name="loss", datatype="FP32", shape=(1,))
MODEL = V2Model(name="net", versions=("1",), platform="", inputs=(X, N), outputs=(Y, LOSS))
ARTIFACT = Artifact(
    name="onnx",
    target="onnx",
    precision=Precision.FP32,
    files=(),
    parent="",
    made_from="checkpoint",
)


def check(
    inputs: tuple[V2Tensor, ...] = (X, N), outputs: tuple[V2Tensor, ...] = (Y, LOSS),
    artifact: Artifact = ARTIFACT, config: V2Config | None = None,
) -> Declaration:  # fmt: skip
    model = replace(MODEL, inputs=inputs, outputs=outputs, config=config)
    return check_form(model, artifact, SIGNATURE, FORMS)


def test_the_same_form_is_right() -> None:
    assert check() == Declaration()


def test_other_orders_are_right() -> None:
    assert check(inputs=(N, X), outputs=(LOSS, Y)) == Declaration()


WRONG = {
    "input-rank": check((replace(X, shape=(-1, 3, 1, 1)), N)),
    "input-size": check((replace(X, shape=(-1, 4)), N)),
    "input-dtype": check((replace(X, datatype="FP64"), N)),
    "input-half": check((replace(X, datatype="FP16"), N)),
    "input-text": check((replace(X, datatype="BYTES"), N)),
    "extra-input": check((X, N, replace(X, name="z"))),
    "missing-output": check(outputs=(Y,)),
    "extra-output": check(outputs=(Y, LOSS, replace(Y, name="z"))),
    "output-size": check(outputs=(replace(Y, shape=(-1, 6)), LOSS)),
    "output-rank": check(outputs=(replace(Y, shape=(5,)), LOSS)),
    "output-dtype": check(outputs=(replace(Y, datatype="INT32"), LOSS)),
    "batch-beyond": check((replace(X, shape=(16, 3)), N)),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_form_is_not_run(name: str) -> None:
    found = WRONG[name]
    assert {one.code for one in found.reasons} == {ReasonCode.DECLARED_FORM}
    assert not found.runnable


NARROW = {
    "fixed-batch": check((replace(X, shape=(4, 3)), N)),
    "fixed-output": check(outputs=(replace(Y, shape=(4, 5)), LOSS)),
    "small-batch": check((X,), config=V2Config(max_batch=4)),
}


@pytest.mark.parametrize("name", NARROW)
def test_a_narrower_domain_is_run(name: str) -> None:
    found = NARROW[name]
    assert {one.code for one in found.reasons} == {ReasonCode.DECLARED_DOMAIN}
    assert found.runnable


def test_a_wider_batch_is_noted() -> None:
    found = check((X,), config=V2Config(max_batch=16))
    assert found.reasons == ()
    assert len(found.notes) == 2  # the batch, and the input that the server does not take


def test_an_optional_input_may_be_extra() -> None:
    assert check((X, N, replace(X, name="z", optional=True))) == Declaration()


def test_half_inputs_and_bfloat16_outputs_are_those_of_a_half_artifact() -> None:
    half = replace(ARTIFACT, options={"io": "fp16"})
    assert check((replace(X, datatype="FP16"), N), (replace(Y, datatype="FP16"), LOSS), half) == (
        Declaration()
    )
    assert check(outputs=(replace(Y, datatype="BF16"), LOSS)) == Declaration()


def test_numbered_names_are_matched_by_number() -> None:
    tensors = [replace(X, name="INPUT__1"), replace(X, name="INPUT__0")]
    pairs = match_tensors(tensors, ["a", "b"]).pairs
    assert {name: one.name for name, one in pairs.items()} == {"a": "INPUT__0", "b": "INPUT__1"}


def test_foreign_names_are_matched_by_position() -> None:
    tensors = [replace(X, name="p"), replace(X, name="q")]
    pairs = match_tensors(tensors, ["a", "b"]).pairs
    assert {name: one.name for name, one in pairs.items()} == {"a": "p", "b": "q"}


def test_one_equal_name_excludes_positions() -> None:
    found = match_tensors([X, replace(X, name="q")], ["x", "b"])
    assert found.missing == ("b",)
    assert [one.name for one in found.extra] == ["q"]
