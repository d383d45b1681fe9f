"""A run over a project as a table: what is counted, and how many of it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from modelc.cli.render_run import show_plans, show_run
from modelc.pipeline.order import Order, Source, Wanted
from modelc.projects.gates import Breach
from modelc.projects.outcome import Ended
from modelc.projects.records import ModelOrder, RunSettings
from modelc.projects.run_record import ArtifactEnd, ModelEnd, RunRecord

if TYPE_CHECKING:
    import pytest

MADE = ArtifactEnd(name="onnx", state="passed", source="made", size=5000, sqnr=120.0)
NOT_MADE = ArtifactEnd(name="openvino", state="error", source="", reason="its parent was refused")
BREACH = Breach(artifact="onnx", gate="max-size", message="5.0 kB, and max-size is 1 kB", told="")


def told(*models: ModelEnd) -> list[str]:
    record = RunRecord(modelc="1", exit_code=1, seconds=1.0, models=models)
    stream = io.StringIO()
    ended = [Ended(name=one.name, folder=one.folder) for one in models]
    show_run(ended, record, Path("out"), console=Console(file=stream, width=200))
    return stream.getvalue().splitlines()


def model(*artifacts: ArtifactEnd, state: str = "failed") -> ModelEnd:
    return ModelEnd(
        name="net", folder="out/net", state=state, exit_code=1, seconds=1.0, artifacts=artifacts,
        breaches=(BREACH,) if artifacts else (),
    )  # fmt: skip


def test_a_step_that_was_not_made_is_not_counted_as_made() -> None:
    lines = told(model(MADE, NOT_MADE))
    (row,) = [line for line in lines if "openvino" in line]
    assert row.split() == ["openvino", "error"]
    assert "1 proven, 0 refused, 1 not judged, 1 gate broken · 1 made, 0 taken up" in lines[-1]


def test_one_model_is_not_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert "1 of 1 model stopped" in told(model(state="error"))[-1]
    assert "1 model not begun" in told(model(state="not-run"))[-1]
    wanted = (Wanted(target="onnx"),)
    order = Order(source=Source(checkpoint=Path("net.pt")), wanted=wanted, out=Path("out/net"))
    show_plans(
        [ModelOrder(name="net", order=order, plan=())],
        Path("modelc.toml"),
        RunSettings(),
        json=False,
    )
    assert "0 artifacts of 1 model by" in capsys.readouterr().out
