"""What an order's own words tell is told before the model is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from modelc.core.errors import UsageError
from modelc.core.events import Event, Started
from modelc.pipeline.eager_reference import read_checkpoint
from modelc.pipeline.order import Source
from modelc.pipeline.run_progress import Progress

INPUTS = ("a:float32[batch=1..4,seq1=1..9]", "b:float32[batch,seq2=seq1]")


def asked(tmp_path: Path, source: Source, *inputs: str, static: tuple[str, ...] = ()) -> list[str]:
    """The steps that are begun for a checkpoint that is read and not loaded."""
    steps: list[str] = []

    def tell(event: Event) -> None:
        if isinstance(event, Started):
            steps.append(event.step)

    source = replace(source, inputs=inputs, static=static)
    read_checkpoint(source, Progress(tell=tell, logs=tmp_path / "logs"))
    return steps


@pytest.mark.parametrize(
    ("inputs", "static", "told"),
    [
        (("a:float32[batch=8..1]",), (), "8 is larger than 1"),
        ((INPUTS[0], "b:float32[batch,seq2=sqe1]"), (), "did you mean 'seq1'"),
        (INPUTS, ("sqe1",), "unknown dim in --static: 'sqe1'"),
    ],
)
def test_a_slip_is_told_before_the_checkpoint_is_read(
    gate_source: Source, tmp_path: Path, inputs: tuple[str, ...], static: tuple[str, ...], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        asked(tmp_path, gate_source, *inputs, static=static)
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("static", ["seq1", "seq2", "batch", "channels"])
def test_names_that_are_no_slips_wait_for_the_model(
    gate_source: Source, tmp_path: Path, static: str
) -> None:
    assert asked(tmp_path, gate_source, *INPUTS, static=(static,)) == ["read checkpoint"]


def test_dims_that_a_sample_may_name_wait_for_it(gate_source: Source, tmp_path: Path) -> None:
    texts = (INPUTS[0], "b:float32[batch,seq2=sqe1]")
    source = replace(gate_source, samples=tmp_path / "some.npz")
    assert asked(tmp_path, source, *texts) == ["read checkpoint"]
    assert asked(tmp_path, gate_source, *texts, "c:float32[_]") == ["read checkpoint"]
