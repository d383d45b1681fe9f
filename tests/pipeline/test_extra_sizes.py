"""An artifact is judged at the sizes that its converter names; axes of outputs have names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

import modelc
from modelc.core.contract import Feed, Outputs, Target
from modelc.core.errors import CheckpointError, ConversionError
from modelc.core.manifest import Manifest
from modelc.pipeline.eager_reference import EagerReference
from modelc.pipeline.extra_sizes import add_size_feeds, find_output_axes
from modelc.pipeline.order import Order, Source
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_folder import validate_folder
from modelc.validators.feeds import NamedFeed
from modelc.validators.judge import ReferenceOutputs

from ..open_models import signature_of
from .conftest import eagerly

Fakes = Callable[..., Target]
Orders = Callable[..., Order]
BATCH = 77  # no feed is drawn at that batch


def off_at_one_size(feed: Feed) -> Outputs:
    """Right but for one batch, as a program whose condition was dropped may be."""
    found = dict(eagerly(feed))
    if feed["x"].shape[0] == BATCH:
        found["output"] = found["output"] + 1
    return found


@pytest.fixture
def made(order: Orders, gate_source: Source, fake: Fakes) -> Callable[..., Manifest]:
    def make(*places: dict[str, int], answer: Callable[[Feed], Outputs] = eagerly) -> Manifest:
        source = replace(gate_source, inputs=("x:float32[batch=1..200,16]",))
        return run(order("fake", source=source), targets=(fake(answer=answer, places=places),))

    return make


def test_an_artifact_that_is_wrong_at_such_a_size_is_rejected(
    made: Callable[..., Manifest],
) -> None:
    found = made({"batch": 3}, {"batch": BATCH}, answer=off_at_one_size)
    assert found.exit_code == 1
    assert f"batch={BATCH}" in found.verdicts[0].reason


def test_other_feeds_do_not_reveal_it(made: Callable[..., Manifest]) -> None:
    assert made(answer=off_at_one_size).passed


def test_validate_judges_there_again(
    made: Callable[..., Manifest], order: Orders, fake: Fakes
) -> None:
    right = made({"batch": 78}, {"batch": BATCH})
    folder = order("fake").out
    again = validate_folder(folder, targets=(fake(),))
    assert again.verdicts[0].passed
    assert again.verdicts[0].feeds == right.verdicts[0].feeds
    wrong = validate_folder(folder, targets=(fake(answer=off_at_one_size),))
    assert wrong.exit_code == 1
    assert f"batch={BATCH}" in wrong.verdicts[0].reason


def test_a_size_that_eager_rejects_is_a_conversion_error() -> None:
    def reject(feed: Feed, *, extreme: bool) -> Outputs:
        assert extreme
        raise CheckpointError(f"no batch of {feed['x'].shape[0]}", hint="another")

    subject = SimpleNamespace(
        signature=signature_of("x:float32[batch=1..200,16]"),
        feeds=SimpleNamespace(seed=0),
        references=(),
        model=SimpleNamespace(run_reference=reject),
    )
    with pytest.raises(ConversionError, match=f"batch of {BATCH}$"):
        add_size_feeds(cast("EagerReference", subject), [{"batch": BATCH}])


@pytest.mark.parametrize(
    ("batches", "added"), [((78, BATCH), {"size-1", "size-2"}), ((1, 200), set())]
)
def test_sizes_that_no_feed_has_get_one(
    made: Callable[..., Manifest], batches: tuple[int, ...], added: set[str]
) -> None:
    (verdict,) = made(*({"batch": one} for one in batches)).verdicts
    assert verdict.passed
    assert {name for name in verdict.feeds if name.startswith("size-")} == added


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
    outputs = ["rows", "turned", "sum"]
    signature = signature_of("x:float32[batch=1..4,seq=2..9]", outputs=outputs)
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
