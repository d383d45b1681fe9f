"""What a refusal names: the line that leaves torch, the user's own function, what was not seen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modelc.converters.onnx_model import inspect as inspect_onnx
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.events import Event, Finished, Noted
from modelc.core.kinds import Capture, ReasonCode
from modelc.core.manifest import Manifest
from modelc.pipeline.api import inspect
from modelc.pipeline.order import Order, Source
from modelc.pipeline.run_order import run

from ..reasons import has_code

Orders = Callable[..., Order]
Made = Callable[..., Source]

NETS = """
import numpy as np
import torch
from torch import nn


@torch.library.custom_op("told::swish", mutates_args=())
def swish(x: torch.Tensor, beta: float) -> torch.Tensor:
    return x * torch.sigmoid(x * beta)


@swish.register_fake
def _(x, beta):
    return torch.empty_like(x)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)


class Sorted(Base):
    def forward(self, x):
        return torch.from_numpy(np.sort(self.line(x).detach().numpy()))


class Swish(Base):
    def forward(self, x):
        return torch.ops.told.swish(self.line(x), 1.5)


class Shy(Base):
    def forward(self, x):
        if type(torch.zeros(1) + x) is torch.Tensor and torch._C._len_torch_function_stack():
            raise RuntimeError("not while I am watched")
        return self.line(x)


def wrong(op, x, beta):
    return op.Mul(x, op.Sigmoid(x))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """`made("Swish")` -> that net with its weights; the module is `told_nets`."""
    import torch

    folder = tmp_path_factory.mktemp("told")
    before = list(sys.path)
    (folder / "told_nets.py").write_text(NETS)
    sys.path.insert(0, str(folder))
    torch.manual_seed(0)
    weights = {f"line.{k}": v for k, v in torch.nn.Linear(4, 4).state_dict().items()}
    torch.save(weights, folder / "net.pt")
    yield lambda name: Source(
        checkpoint=folder / "net.pt",
        model=f"told_nets:{name}",
        inputs=("x:float32[batch=1..4,4]",),
    )
    sys.path[:] = before


def refused(manifest: Manifest) -> str:
    (verdict,) = manifest.verdicts
    assert not verdict.passed
    return verdict.reason


@pytest.mark.slow
@pytest.mark.needs("onnx")
def test_a_trace_of_numpy_names_the_line_and_a_way_out(order: Orders, made: Made) -> None:
    reason = refused(run(order("onnx", source=made("Sorted"))))
    assert "NumPy (at " in reason
    assert "told_nets.py:25), and a trace " in reason
    assert "--patch PKG.MOD:FN" in reason
    assert "capture it with" not in reason  # all were tried


@pytest.mark.needs("onnx")
def test_what_a_trace_made_constant_keeps_its_name(order: Orders, made: Made) -> None:
    one = order("onnx", source=made("Sorted"), capture=Capture.TRACE)
    manifest = run(one)
    assert not manifest.passed
    codes = {reason.code for reason in manifest.verdicts[0].reasons}
    assert {ReasonCode.OUTPUT_CONSTANT, ReasonCode.INPUT_IGNORED} <= codes
    assert ReasonCode.OUTPUT_NAMES not in codes
    assert "'x'" in refused(manifest)
    found = inspect_onnx(one.out / "rejected" / "model.onnx")
    assert [output.name for output in found.outputs] == ["output"]


def test_only_captures_that_the_run_left_out_are_proposed(order: Orders) -> None:
    forced = refused(run(order("torchscript", capture=Capture.TRACE)))
    assert "(capture it with script: --accept-branch does not apply)" in forced


@pytest.mark.needs("onnx")
def test_a_wrong_function_of_the_users_is_the_cause(order: Orders, made: Made) -> None:
    manifest = run(
        order(
            "onnx",
            source=made("Swish"),
            capture=Capture.TRACE,
            custom_ops={"told::swish": "told_nets:wrong"},
        )
    )
    (found,) = manifest.localisations
    assert found.cause.startswith("the function of --custom-op told::swish=told_nets:wrong")


def test_branches_that_were_not_watched_are_told_in_the_steps_own_line(
    order: Orders, made: Made
) -> None:
    told: list[Event] = []
    run(order("torchscript", source=made("Shy")), told.append)
    (line,) = (e for e in told if isinstance(e, Finished) and e.step == "look at branches")
    assert line.detail.endswith(": not while I am watched")
    assert not line.passed
    assert not [e for e in told if isinstance(e, Noted) and "could not be looked for" in e.text]


def test_a_folder_is_no_artifact_and_one_in_it_is_named(order: Orders) -> None:
    out = order("torchscript").out
    run(order("torchscript"))
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_AN_ARTIFACT)) as caught:
        inspect(out)
    assert f"modelc inspect {out / 'model.torchscript.pt'}" in caught.value.hint


def test_a_folder_without_a_record_is_no_artifact_either(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_AN_ARTIFACT)):
        inspect(tmp_path)
