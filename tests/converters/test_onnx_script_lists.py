"""Loops over a tensor's slices in ONNX: of any length, with cells and matrices in them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from modelc.converters.onnx_exporters import replace_slice_lists
from modelc.core.kinds import Capture

from .eager_agreement import JobOf, assert_agrees

pytestmark = [pytest.mark.needs("onnx"), pytest.mark.filterwarnings("ignore")]
SPEC = "x:float32[batch=1..4,seq=1..12,4]"
SIZES = ((1, 1), (4, 12), (3, 5), (2, 1))


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.long, self.gated = nn.LSTMCell(4, 6), nn.GRUCell(6, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        state, cell = x.new_zeros(x.shape[0], 6), x.new_zeros(x.shape[0], 6)
        other, found = x.new_zeros(x.shape[0], 4), []
        for at, (step, back) in enumerate(zip(x.unbind(1), x.flip(1).unbind(1))):  # noqa: B905 - TorchScript's zip
            state, cell = self.long(step + at * back, (state, cell))
            other = self.gated(state, other)
            found.append(other)
        return torch.stack(found, 1), x.unbind(1)[-1]


class Changed(nn.Module):
    """A list that is made longer is no longer the slices of a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        steps = list(x.unbind(1))
        steps.append(x.sum(1))
        total = x.new_zeros(x.shape[0], 4)
        for step in steps:
            total = torch.tanh(total + step)
        return total


@pytest.mark.parametrize("net", [Cells, Changed])
def test_a_loop_over_slices_takes_any_length(job_of: JobOf, net: type[nn.Module]) -> None:
    drawn = torch.Generator().manual_seed(0)
    feeds = [{"x": torch.randn(*size, 4, generator=drawn).numpy()} for size in SIZES]
    assert_agrees(job_of(net(), SPEC, capture=Capture.SCRIPT), feeds)


def test_the_module_itself_keeps_its_list() -> None:
    module = torch.jit.script(Cells().eval())
    copied = replace_slice_lists(module)
    assert "aten::unbind" in str(module.inlined_graph)
    assert "aten::unbind" not in str(copied.graph)
    x = torch.randn(2, 7, 4)
    assert all(map(torch.equal, copied(x), module(x)))


def test_without_such_a_list_a_module_stays_as_it_is() -> None:
    module = torch.jit.script(Changed().eval())
    assert replace_slice_lists(module) is module
