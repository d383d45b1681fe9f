"""A run on another method than forward: recorded, judged again, one per folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from modelc.core.errors import ErrorCode, UsageError
from modelc.pipeline.order import Order, Source
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_file import validate_file
from modelc.pipeline.validate_folder import validate_folder

from ..reasons import has_code

Orders = Callable[..., Order]

NETS = """
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)
    def forward(self, x):
        return self.line(x)
    def encode(self, x):
        return -self(x).relu()
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    monkeypatch.chdir(tmp_path)
    before, name = list(sys.path), f"nets_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(NETS)
    weights = {f"line.{k}": v for k, v in torch.nn.Linear(4, 2).state_dict().items()}
    torch.save(weights, tmp_path / "net.pt")
    yield Source(
        checkpoint=tmp_path / "net.pt",
        model=f"{name}:Net",
        inputs=("x:float32[batch=1..4,4]",),
        method="encode",
    )
    sys.path[:] = before


def test_the_method_is_recorded_and_judged_again(order: Orders, source: Source) -> None:
    manifest = run(order("torchscript", source=source))
    assert manifest.passed
    assert manifest.checkpoint.method == "encode"
    made = torch.jit.load(str(order("torchscript").out / "model.torchscript.pt"))  # type: ignore[no-untyped-call]
    assert made(torch.randn(3, 4))[0].max() <= 0
    assert validate_folder(order("torchscript").out).passed


def test_another_method_requires_another_folder(order: Orders, source: Source) -> None:
    run(order("torchscript", source=source))
    with pytest.raises(
        UsageError, check=has_code(ErrorCode.FOLDER_OCCUPIED, naming="--method encode")
    ):
        run(order("torchscript", source=replace(source, method=None)))


def test_an_artifact_of_forward_is_rejected_as_one_of_the_method(
    order: Orders, source: Source
) -> None:
    run(order("torchscript", source=replace(source, method=None)))
    file = order("torchscript").out / "model.torchscript.pt"
    copy = file.parent.parent / "alone" / file.name
    copy.parent.mkdir()
    copy.write_bytes(file.read_bytes())
    trusted = replace(source, trust=True)
    assert validate_file(copy, replace(trusted, method=None)).passed
    assert not validate_file(copy, trusted).passed
