"""Models that once crashed the export, or passed though they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from modelc.core.errors import CheckpointError
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run

NETS = """
import torch
from torch import nn

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
    def forward(self, x, h):
        h = torch.tanh(self.fc(x) + h)
        return {"y": h * 2, "h": h}

class Item(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
    def forward(self, x):
        y = self.fc(x)
        if x.abs().max().item() > 60.0:
            return y * 0
        return y

class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
    def forward(self, x):
        return [self.fc(row) for row in x]

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 4)
    def forward(self, ids):
        return self.words(ids)

class Brief(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
    def forward(self, x):
        return self.fc(x).bfloat16()
"""
X = "x:float32[batch=1..4,8]"


def order_of(name: str, folder: Path, targets: tuple[str, ...], *inputs: str) -> Order:
    """An order for one of the nets, its module file and checkpoint written to `folder`."""
    module = f"nets_{folder.name}".replace("-", "_")
    (folder / f"{module}.py").write_text(NETS)
    space: dict[str, type[torch.nn.Module]] = {}
    exec(NETS, space)
    torch.manual_seed(0)
    torch.save(space[name]().state_dict(), folder / "net.pt")
    source = Source(checkpoint=folder / "net.pt", model=f"{module}:{name}", inputs=inputs or (X,))
    return Order(
        source=source,
        wanted=tuple(Wanted(target=target) for target in targets),
        out=folder / "out",
    )


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_output_may_have_the_name_of_an_input(tmp_path: Path) -> None:
    inputs = (X, "h:float32[batch,8]")
    found = run(order_of("Recurrent", tmp_path, ("torchscript", "onnx", "openvino"), *inputs))
    assert found.passed
    assert found.signature.outputs == ("y", "h_out")


def test_a_branch_on_item_fails_a_trace(tmp_path: Path) -> None:
    found = run(order_of("Item", tmp_path, ("torchscript",)))
    (artifact,) = found.artifacts
    assert artifact.attempts[0].outcome == "failed"
    assert artifact.capture == "script"


def test_a_varying_number_of_outputs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="outputs"):
        run(order_of("Steps", tmp_path, ("torchscript",)))


def test_bfloat16_outputs_are_judged(tmp_path: Path) -> None:
    assert run(order_of("Brief", tmp_path, ("torchscript", "pt2"))).passed


def test_values_of_an_index_are_chosen(tmp_path: Path) -> None:
    found = run(order_of("Words", tmp_path, ("torchscript",), "ids:int64[batch=1..4,seq=1..8]"))
    (artifact,) = found.artifacts
    assert artifact.domain is not None
    values = artifact.domain.inputs[0].values
    assert values is not None
    assert values.chosen
    assert values.low <= 0 < values.high


def test_stated_values_of_an_index_are_kept(tmp_path: Path) -> None:
    ids = "ids:int64[batch=1..4,seq=1..8]{0..99}"
    assert run(order_of("Words", tmp_path, ("torchscript",), ids)).notes == ()
