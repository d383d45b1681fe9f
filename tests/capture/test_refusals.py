"""Each refusal says the cause, the user's line and one way out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from modelc.capture.evidence import Symptom
from modelc.capture.framework_errors import reason_of
from modelc.capture.refusals import (
    BY_SCRIPT,
    CAUSES,
    RefusedError,
    can_strict_help,
    find_cause,
    most_specific,
)
from modelc.capture.torch_export import capture_export, capture_export_strict
from modelc.capture.torch_script import capture_script
from modelc.core.contract import Job
from modelc.core.errors import ConversionError, ModelcError, RunnerError
from modelc.core.kinds import Capture

JobOf = Callable[..., Job]
SPEC = "x:float32[batch=1..4,3]"


def branch(x: Tensor) -> Tensor:
    return x + 1 if x.mean() > 0 else x


def number(x: Tensor) -> Tensor:
    return x[:, None].expand(-1, int(x.abs().max()) + 1, -1)


def scale(x: Tensor) -> Tensor:
    return x / (float(x.abs().max()) / 127)


def check(x: Tensor) -> Tensor:
    assert x.max() < 1e30
    return x + 1


def through_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() * 2) + x


def written(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y.data = x.data * 2
    return y


class Net(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Starred(nn.Module):
    """Not for TorchScript."""

    def forward(self, *xs: Tensor) -> Tensor:
        return xs[0]


def refusal(take: Callable[[Job], object], job: Job) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        take(job)
    return caught.value


@pytest.mark.parametrize(
    ("function", "name", "line"),
    [
        (branch, "branch", 1),
        (number, "value", 1),
        (scale, "value", 1),
        (check, "check", 1),
        (through_numpy, "numpy", 1),
        (written, "state", None),
    ],
)
def test_export_says_the_cause_and_the_line(
    job_of: JobOf, function: Callable[[Tensor], Tensor], name: str, line: int | None
) -> None:
    error = refusal(capture_export, job_of(Net(function), SPEC))
    assert error.cause is not None
    assert error.cause.name == name
    assert error.cause.says in error.message
    assert error.hint.startswith(error.cause.hint)
    assert (BY_SCRIPT in error.hint) == error.cause.scripts
    if line is not None:
        first = inspect.getsourcelines(function)[1]
        assert f"(at {__file__}:{first + line})" in error.message


@pytest.mark.slow
@pytest.mark.parametrize("function", [number, scale, through_numpy])  # pytest rewrites asserts
def test_strict_takes_what_the_table_says_that_it_may(
    job_of: JobOf, function: Callable[[Tensor], Tensor]
) -> None:
    job = job_of(Net(function), SPEC)
    assert can_strict_help([refusal(capture_export, job)])
    program = capture_export_strict(job).program
    for feed in (torch.full((3, 3), 2.5), torch.full((2, 3), -4.2)):
        assert torch.equal(program.module()(feed)[0], function(feed))


def test_strict_rejects_a_branch_as_export_does_so_it_is_not_tried(job_of: JobOf) -> None:
    job = job_of(Net(branch), SPEC)
    assert not can_strict_help([refusal(capture_export, job)])
    error = refusal(capture_export_strict, job)
    assert Symptom.DATA_BRANCH in error.evidence.symptoms
    assert "(strict)" in error.message
    assert f"(at {__file__}:{inspect.getsourcelines(branch)[1] + 1})" in error.message


def test_a_graph_break_names_the_call_and_the_users_line(job_of: JobOf) -> None:
    class Packed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            lengths = torch.full((x.shape[0],), 3)
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return packed.data

    error = refusal(capture_export_strict, job_of(Packed(), "x:float32[batch=1..4,3,2]"))
    assert "pack_padded_sequence" in error.message
    assert f"(at {__file__}:" in error.message


def test_a_script_error_names_the_innermost_line_not_its_callers(job_of: JobOf) -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + id(x)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.inner(x)
            return found

    error = refusal(capture_script, job_of(Outer(), SPEC, capture=Capture.SCRIPT))
    first = inspect.getsourcelines(Inner.forward)[1]
    assert f"(at {__file__}:{first + 1})" in error.message


def test_a_second_script_of_a_rejected_class_says_the_same(job_of: JobOf) -> None:
    job = job_of(Starred(), SPEC, capture=Capture.SCRIPT)
    assert refusal(capture_script, job).message == refusal(capture_script, job).message


@pytest.mark.parametrize(
    ("text", "name", "groups"),
    [
        ("DispatchError: No ONNX function found for <OpOverload(op='lib.swish', overload='d')>",
         "operator", {"ns": "lib", "op": "swish"}),
        ("E: ONNX export failed on an operator with unrecognized namespace lib::swish. If",
         "operator", {"ns": "lib", "op": "swish"}),
        ("E: Exporting the operator 'aten::fft_rfft' to ONNX opset version 20 is not supported",
         "operator", {"ns": "aten", "op": "fft_rfft"}),
        (("E: Exporting the operator 'aten::gelu' to ONNX opset version 18 is not supported."
          " Support for this operator was added in version 20, try exporting"),
         "opset", {"added": "20"}),
    ],
)  # fmt: skip
def test_what_exporters_say_of_operators_is_read(
    text: str, name: str, groups: dict[str, str]
) -> None:
    found = find_cause(text)
    assert found is not None
    assert found[0].name == name
    assert groups.items() <= found[1].items()


def test_every_row_has_a_way_out_and_a_pattern_that_is_not_always_found() -> None:
    for cause in CAUSES:
        assert cause.hint
        assert cause.pattern.search("RuntimeError: unknown") is None


def test_of_several_rejections_a_known_cause_comes_before_a_compiler_error(job_of: JobOf) -> None:
    script = refusal(capture_script, job_of(Starred(), SPEC, capture=Capture.SCRIPT))
    export = refusal(capture_export, job_of(Net(branch), SPEC))
    other = ConversionError("something else", hint="look")
    ran: ModelcError = RunnerError("would not open", hint="look")
    assert most_specific([script, other, export]) is export
    assert most_specific([script, ran, other]) is ran


def test_a_library_beside_torch_is_the_users_own() -> None:
    from modelc.checkpoints.source_positions import is_user_file

    root = Path(torch.__file__).parent
    assert is_user_file(f"{root}vision/ops.py")
    assert not is_user_file(f"{root}/nn/functional.py")


def test_a_guard_in_torchs_symbols_names_the_dim() -> None:
    text = (
        "Constraints violated (past)! For more information, run with TORCH_LOGS.\n"
        "  - Not all values of past = L['tensors'][3].size()[2] in the specified range past <= 63 "
        "satisfy the generated guard Min(16 + 16*L['tensors'][3].size()[2], 32) == 16."
    )
    reason = reason_of(ValueError(text))
    assert "'past'" in reason
    assert "size()" not in reason
