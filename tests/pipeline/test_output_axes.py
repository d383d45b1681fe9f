"""The axes of outputs carry the user's names, whichever way the ONNX was made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import modelc
from modelc.core.grammar import parse_input
from modelc.core.signature import merge_inputs
from modelc.pipeline.extra_sizes import find_output_axes
from modelc.pipeline.order import Source
from modelc.validators.feeds import NamedFeed
from modelc.validators.judge import ReferenceOutputs


def reference(batch: int, seq: int) -> ReferenceOutputs:
    sizes = {"batch": batch, "seq": seq}
    feed = NamedFeed(name=f"{batch}-{seq}", arrays={"x": np.zeros((batch, seq))}, sizes=sizes)
    outputs = {
        "rows": np.zeros((batch, 2 * seq)),
        "turned": np.zeros((seq, batch)),
        "sum": np.zeros(3),
    }
    return ReferenceOutputs(feed=feed, outputs=outputs)


def test_an_axis_is_named_where_its_size_is_the_dims_on_every_feed() -> None:
    signature = merge_inputs([parse_input("x:float32[batch=1..4,seq=2..9]")], {})
    signature = signature.with_outputs(["rows", "turned", "sum"])
    found = find_output_axes(signature, [reference(3, 3), reference(2, 5), reference(3, 4)])
    assert found == {
        "rows": {0: "batch", 1: "rows.axis1"},
        "turned": {0: "seq", 1: "batch"},
    }


@pytest.mark.parametrize("capture", ["script", "trace"])
def test_the_onnx_of_a_script_has_the_users_axes(
    digits_source: Source, tmp_path: Path, capture: str
) -> None:
    manifest = modelc.export(
        digits_source.checkpoint,
        to=["onnx"],
        out=tmp_path,
        model=digits_source.model,
        inputs=digits_source.inputs,
        samples=digits_source.samples,
        capture=capture,
    ).manifest
    assert manifest.passed
    (output,) = modelc.inspect(tmp_path / "model.onnx").inspection.outputs
    assert output.dims == ("batch", "10")
