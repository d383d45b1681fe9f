"""`--drop-output`: on record, judged again with it, and an error where it stands for no output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from modelc.core.errors import CheckpointError, UsageError
from modelc.pipeline.order import Order, Source
from modelc.pipeline.replay_commands import list_commands
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_folder import validate_folder

Orders = Callable[..., Order]

NETS = """
from dataclasses import dataclass
from torch import Tensor, nn

@dataclass
class Found:
    scores: Tensor
    more: dict

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)
    def forward(self, x):
        y = self.line(x)
        return Found(y, {"pairs": ((y + 1, y * 2), {"deep": [x - 1]}), "kinds": {y}})

class Count(Net):
    def forward(self, x):
        return self.line(x), x.shape[0]
"""


@pytest.fixture
def source(tmp_path: Path, write_module: Callable[[str], str]) -> Source:
    weights = {f"line.{k}": v for k, v in torch.nn.Linear(4, 2).state_dict().items()}
    torch.save(weights, tmp_path / "net.pt")
    return Source(
        checkpoint=tmp_path / "net.pt",
        model=f"{write_module(NETS)}:Net",
        inputs=("x:float32[batch=1..4,4]",),
        drop_outputs=("more.kinds",),
    )


def test_the_remaining_outputs_are_named_and_validated(order: Orders, source: Source) -> None:
    manifest = run(order("torchscript", source=source))
    assert manifest.passed
    names = ("scores", "more.pairs.0.0", "more.pairs.0.1", "more.pairs.1.deep.0")
    assert manifest.signature.outputs == names
    assert manifest.checkpoint.drop_outputs == ("more.kinds",)
    assert validate_folder(order("torchscript").out).passed


def test_the_replay_command_has_drop_output(order: Orders, source: Source) -> None:
    manifest = run(order("torchscript", source=source))
    assert any("--drop-output more.kinds" in one.text for one in list_commands(manifest))


def test_an_output_without_a_tensor_is_an_error_that_names_it(
    order: Orders, source: Source
) -> None:
    with pytest.raises(CheckpointError) as caught:
        run(order("torchscript", source=replace(source, drop_outputs=())))
    assert "more.kinds" in caught.value.message
    assert caught.value.hint.startswith("--drop-output more.kinds ")


def test_an_unknown_output_is_rejected(order: Orders, source: Source) -> None:
    wrong = ("more.kinds", "scorse")
    with pytest.raises(UsageError) as caught:
        run(order("torchscript", source=replace(source, drop_outputs=wrong)))
    assert "scorse" in caught.value.message
    assert "scores" in caught.value.hint


def test_other_outputs_go_into_another_folder(order: Orders, source: Source) -> None:
    run(order("torchscript", source=source))
    with pytest.raises(UsageError):
        run(order("torchscript", source=replace(source, drop_outputs=("more",))))


def test_a_size_among_the_outputs_is_an_error(order: Orders, source: Source) -> None:
    counting = replace(source, model=str(source.model).replace(":Net", ":Count"), drop_outputs=())
    with pytest.raises(CheckpointError) as caught:
        run(order("torchscript", source=counting))
    assert "output.1" in caught.value.message
    dropped = run(order("torchscript", source=replace(counting, drop_outputs=("output.1",))))
    assert dropped.signature.outputs == ("output.0",)
