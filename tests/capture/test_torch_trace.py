"""What a capture says of the model's own code: frozen values of data, rejected lines."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.capture.torch_export import capture_export
from modelc.capture.torch_script import capture_script
from modelc.capture.torch_trace import capture_trace, find_frozen_branches
from modelc.core.contract import Branch, Job
from modelc.core.errors import ConversionError
from modelc.core.kinds import Capture
from modelc.sample_models.gate import Gate, gate

JobOf = Callable[..., Job]
GATE = "x:float32[batch=1..4,16]"


def branch_of_gate() -> Branch:
    """Where the sample model asks its input's values."""
    lines, first = inspect.getsourcelines(Gate.forward)
    at = next(number for number, text in enumerate(lines) if "x.mean() > 0" in text)
    return Branch(file=str(inspect.getsourcefile(Gate)), line=first + at)


class Twice(nn.Module):
    """Two branches on one line each, run twice."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = x + 1 if x.sum() > 0 else x - 1
        return x


class Fixed(nn.Module):
    """Takes five rows only."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows + torch.ones(5, 1)


class Kept(nn.Module):
    """Not for torch.jit.script, which knows no *args."""

    def forward(self, *xs: Tensor) -> Tensor:
        return torch.cat(xs)


class Signed(nn.Module):
    """Branches on data whose sign differs between the drawn values of one size and another."""

    def __init__(self, salt: float) -> None:
        super().__init__()
        self.salt = salt

    def forward(self, x: Tensor) -> Tensor:
        return x if torch.sin(self.salt * x.sum()) > 0 else -x


@pytest.mark.parametrize("salt", [1.0, 3.0, 7.0, 11.0])
def test_a_branch_on_data_is_no_branch_on_sizes(job_of: JobOf, salt: float) -> None:
    job = job_of(Signed(salt), "x:float32[batch=1..8,4]", capture=Capture.TRACE)
    assert len(capture_trace(job).frozen) == 1


def test_a_frozen_branch_is_the_users_file_and_line(job_of: JobOf) -> None:
    assert capture_trace(job_of(gate(), GATE, capture=Capture.TRACE)).frozen == (branch_of_gate(),)


def test_a_frozen_branch_is_reported_once(job_of: JobOf) -> None:
    made = capture_trace(job_of(Twice(), "x:float32[batch=1..4,2]", capture=Capture.TRACE))
    assert [Path(branch.file) for branch in made.frozen] == [Path(__file__)]


def test_what_the_tracer_says_of_a_line_is_reported_once_in_a_sentence(job_of: JobOf) -> None:
    (warned,) = capture_trace(job_of(gate(), GATE, capture=Capture.TRACE)).warned
    assert (warned.file, warned.line) == (branch_of_gate().file, branch_of_gate().line)
    assert warned.kind == "TracerWarning"
    assert "boolean" in warned.text
    assert "\n" not in warned.text


def test_a_trace_without_branches_froze_none(job_of: JobOf) -> None:
    assert capture_trace(job_of(nn.Linear(3, 2), "x:float32[batch=1..4,3]")).frozen == ()


def test_torchs_own_checks_of_shapes_are_no_branches(job_of: JobOf) -> None:
    module = nn.LSTM(3, 2, batch_first=True)
    assert capture_trace(job_of(module, "x:float32[batch=1..4,seq=2..8,3]")).frozen == ()


def test_export_rejects_a_branch_on_values_and_says_where(job_of: JobOf) -> None:
    with pytest.raises(ConversionError, match=r"torch\.export") as caught:
        capture_export(job_of(gate(), GATE))
    assert str(branch_of_gate()) in caught.value.message
    assert "\n" not in caught.value.message


def test_export_rejects_a_fixed_dim_in_the_users_names(job_of: JobOf) -> None:
    with pytest.raises(ConversionError, match="'batch'") as caught:
        capture_export(job_of(Fixed(), "rows:float32[batch=1..9,3]"))
    assert "rows" in caught.value.message
    assert "L['tensors']" not in caught.value.message


def test_export_names_a_dim_of_a_second_input(job_of: JobOf) -> None:
    class Second(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a.sum() + b + torch.ones(4, 7)

    with pytest.raises(ConversionError, match="'seq'") as caught:
        capture_export(job_of(Second(), "a:float32[batch=1..9]", "b:float32[4,seq=2..12]"))
    assert "'seq'" in caught.value.message


def test_script_rejects_what_it_cannot_compile_and_says_where(job_of: JobOf) -> None:
    with pytest.raises(ConversionError, match=r"torch\.jit\.script") as caught:
        capture_script(job_of(Kept(), "x:float32[batch=1..4,3]", capture=Capture.SCRIPT))
    assert f"{__file__}:" in caught.value.message


def test_script_takes_the_module_itself_not_its_wrapper(job_of: JobOf) -> None:
    made = capture_script(job_of(gate(), GATE, capture=Capture.SCRIPT)).module
    assert made.original_name == "Gate"


def test_export_keeps_dims_within_their_bounds(job_of: JobOf) -> None:
    program = capture_export(job_of(nn.Linear(3, 2), "x:float32[batch=2..6,3]")).program
    (bounds,) = program.range_constraints.values()
    assert (int(bounds.lower), int(bounds.upper)) == (2, 6)


@pytest.mark.parametrize(
    "frozen",
    [
        lambda x: x * x.max().item(),
        lambda x: x * float(x.max()),
        lambda x: x * int(x.max()),
        lambda x: x * x.detach().numpy().max(),
        lambda x: x * np.asarray(x.detach()).max(),
        lambda x: x + (3 in x),
        lambda x: x * x.max().tolist(),
    ],
)
def test_every_way_out_of_a_tensor_is_a_frozen_place(
    job_of: JobOf, frozen: Callable[[Tensor], Tensor]
) -> None:
    class Leaves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return frozen(x)

    found = capture_trace(job_of(Leaves(), "x:float32[batch=1..4,2]", capture=Capture.TRACE))
    assert [Path(branch.file) for branch in found.frozen] == [Path(__file__)]


def test_a_library_whose_name_begins_as_torchs_is_not_torch() -> None:
    category = torch.jit._trace.TracerWarning
    text = "Converting a tensor to a Python boolean might cause"
    root = Path(torch.__file__).parent
    files = [f"{root}vision/detection.py", f"{root}/nn/functional.py"]
    caught = [warnings.WarningMessage(text, category, file, 3) for file in files]
    assert [branch.file for branch in find_frozen_branches(caught)] == files[:1]


SPEC = "x:float32[batch=1..4,3]"


def of_sizes(x: Tensor) -> Tensor:
    return x + 1 if x.shape[0] > 1 else x


def of_sums_of_sizes(x: Tensor) -> Tensor:
    return x + 1 if torch.zeros(x.shape[0]).sum() > 3 else x


def of_sizes_while_traced(x: Tensor) -> Tensor:
    wide: object = x.shape[0] > 1
    if isinstance(wide, Tensor):  # only a tracer makes it one
        wide = wide.item()
    return x + 1 if wide else x


def of_data(x: Tensor) -> Tensor:
    return x + 1 if x.mean() > 0 else x


def of_counted_data(x: Tensor) -> Tensor:
    return x + 1 if (x > 0).nonzero().shape[0] > 3 else x


def of_masked_data(x: Tensor) -> Tensor:
    return x + 1 if x[x > 0].shape[0] > 3 else x


def of_both_on_a_line(x: Tensor) -> Tensor:
    return x + 1 if x.shape[0] > 1 and x.mean() > 0 else x


def net(function: Callable[[Tensor], Tensor]) -> nn.Module:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    return Net()


@pytest.mark.parametrize("function", [of_sizes, of_sums_of_sizes, of_sizes_while_traced])
def test_a_value_of_sizes_is_not_frozen_data(
    job_of: JobOf, function: Callable[[Tensor], Tensor]
) -> None:
    made = capture_trace(job_of(net(function), SPEC, capture=Capture.TRACE))
    assert made.warned
    assert made.frozen == ()


@pytest.mark.parametrize("function", [of_data, of_counted_data, of_masked_data, of_both_on_a_line])
def test_a_value_of_data_is_frozen(job_of: JobOf, function: Callable[[Tensor], Tensor]) -> None:
    made = capture_trace(job_of(net(function), SPEC, capture=Capture.TRACE))
    assert [branch.file for branch in made.frozen] == [__file__]


def test_a_trace_that_differs_the_second_time_shows_no_sizes(job_of: JobOf) -> None:
    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.runs: list[int] = []

        def forward(self, x: Tensor) -> Tensor:
            self.runs.append(1)
            if len(self.runs) == 2:
                raise ValueError("not again")
            return x + 1 if x.shape[0] > 1 else x

    made = capture_trace(job_of(Once(), SPEC, capture=Capture.TRACE))
    assert len(made.frozen) == 1
