"""torch.export in ranges: what it takes for granted of sizes is held against what was asked."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from modelc import capture
from modelc.capture.size_constraints import NarrowError, SizeConstraintError
from modelc.capture.torch_export import capture_export, dynamic_shapes
from modelc.checkpoints.eager_model import Eager
from modelc.core.call import bind_inputs, parameters_of_schema
from modelc.core.contract import Job
from modelc.core.errors import ConversionError
from modelc.core.grammar import parse_input
from modelc.core.signature import merge_inputs

JobOf = Callable[..., Job]


class Conv(nn.Module):
    """A convolution over time, which asks whether there is more than one step."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.conv(x.transpose(1, 2))
        return inner.transpose(1, 2).softmax(1)


class Twice(nn.Module):
    """Needs b to be twice as long as a."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, a], 1) * b


class Longer(nn.Module):
    """Needs b to be one longer than a."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, a[:, :1]], 1) * b


class Branch(nn.Module):
    """Two ways, by a size."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[1] > 10 else x * 3


class Folded(nn.Module):
    """Folds rows of 4: other lengths go another way."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], -1, 4).sum(2) if x.shape[1] % 4 == 0 else x


class Rows(nn.Module):
    """Takes as many rows as it has weights."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.ones(3, 1)


def answers(job: Job, *shapes: tuple[int, ...]) -> bool:
    """Whether the program takes tensors of these shapes and answers as the module does."""
    model = job.model
    assert model is not None
    tensors = tuple(torch.randn(shape) for shape in shapes)
    made = capture_export(job).program.module()(*tensors)[0]
    return torch.allclose(made, model.flat(*tensors)[0])


@pytest.mark.parametrize(
    "ranges", ["b=1..2,t=1..2", "b=1..4,t=1..16", "b=1..2,t=1..3", "b=1..1..4,t=1..1..9"]
)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("steps", [1, 2])
def test_low_ranges_are_kept_and_1_works(job_of: JobOf, ranges: str, rows: int, steps: int) -> None:
    assert answers(job_of(Conv(), f"x:float32[{ranges},3]"), (rows, steps, 3))


def test_the_program_rejects_sizes_outside_of_its_range(job_of: JobOf) -> None:
    program = capture_export(job_of(Conv(), "x:float32[b=1..2,t=2..5,3]")).program
    for shape in ((3, 4, 3), (1, 6, 3), (2, 1, 3)):
        with pytest.raises((AssertionError, RuntimeError)):
            program.module()(torch.randn(shape))


def test_a_stated_relation_is_the_programs(job_of: JobOf) -> None:
    job = job_of(Twice(), "a:float32[batch=1..4,s=1..8]", "b:float32[batch,2*s]")
    assert answers(job, (1, 1), (1, 2))
    assert answers(job, (4, 8), (4, 16))
    with pytest.raises((AssertionError, RuntimeError)):
        capture_export(job).program.module()(torch.randn(2, 4), torch.randn(2, 9))


class Joined(nn.Module):
    def forward(self, x: torch.Tensor, past: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.cat([past, x], 1) * mask


def test_a_sum_of_sizes_is_the_programs(job_of: JobOf) -> None:
    sizes = "x:float32[b=1..4,seq=1..8]", "past:float32[b,past=0..9]", "mask:float32[b,n=past+seq]"
    job = job_of(Joined(), *sizes)
    assert answers(job, (1, 1), (1, 0), (1, 1))
    assert answers(job, (4, 8), (4, 9), (4, 17))
    with pytest.raises((AssertionError, RuntimeError)):
        capture_export(job).program.module()(torch.ones(2, 3), torch.ones(2, 4), torch.ones(2, 8))


def test_a_relation_that_was_not_stated_is_rejected_with_what_to_write(job_of: JobOf) -> None:
    job = job_of(Longer(), "a:float32[batch=1..4,s=1..8]", "b:float32[batch,n=2..9]")
    with pytest.raises(ConversionError, match=r"'n'.* s\+1") as caught:
        capture_export(job)
    assert "n=s+1" in caught.value.hint


def test_what_to_write_is_taken(job_of: JobOf) -> None:
    job = job_of(Longer(), "a:float32[batch=1..4,s=1..8]", "b:float32[batch,n=s+1]")
    assert answers(job, (3, 1), (3, 2))


def test_a_range_that_the_code_cuts_is_rejected_with_the_one_that_holds(job_of: JobOf) -> None:
    with pytest.raises(NarrowError, match=r"holds in 1\.\.10 only, not in 1\.\.16") as caught:
        capture_export(job_of(Branch(), "x:float32[b=1..4,s=1..16]"))
    assert caught.value.interval == ("s", 1, 10)
    assert caught.value.exit_code == 1
    assert "s <= 10" in caught.value.message


class Cached(nn.Module):
    """Writes into a buffer of the greatest size; torch asks whether it is all of it."""

    keys: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(4, 32, 16))

    def forward(self, x: Tensor) -> Tensor:
        self.keys[: x.shape[0], : x.shape[1]] = x
        return self.keys[: x.shape[0], : x.shape[1]] * 2


@pytest.mark.parametrize("steps", [1, 31, 32])
def test_an_end_that_torch_leaves_out_is_taken_where_a_feed_shows_it(
    job_of: JobOf, steps: int
) -> None:
    job = job_of(Cached(), "x:float32[batch=1..4,seq=1..32,16]")
    x = torch.randn(3, steps, 16)
    (found,) = capture_export(job).program.module()(x)
    assert torch.equal(found, x * 2)


class Windowed(nn.Module):
    """Two ways, by sizes of which no range and no multiple is the answer."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[1] % 8 > 2 else x * 3


class Tiled(nn.Module):
    """Two ways, by sizes of two dims together."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] * x.shape[1] % 7 > 1 else x * 3


def test_what_no_relation_mends_holds_in_a_part_around_the_example(job_of: JobOf) -> None:
    with pytest.raises(NarrowError, match="s % 8") as caught:
        capture_export(job_of(Windowed(), "x:float32[b=1..4,s=2..5..24]"))
    assert caught.value.interval == ("s", 3, 7)


def test_what_no_interval_mends_has_the_dims_to_fix_for_a_hint(job_of: JobOf) -> None:
    with pytest.raises(SizeConstraintError) as caught:
        capture_export(job_of(Tiled(), "x:float32[b=1..4,s=2..5..24]"))
    assert "--static s --static b" in caught.value.hint


def test_multiples_are_noted(job_of: JobOf) -> None:
    with pytest.raises(ConversionError, match=r"'s'.*4") as caught:
        capture_export(job_of(Folded(), "x:float32[b=1..4,s=1..15]"))
    assert caught.value.hint == "write s=4*(k=1..3)"


class Counted(nn.Module):
    """Its rows become a Python number."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.zeros(len(x), 3)


class Looped(nn.Module):
    """A loop over a tensor, whose length torch asks for in code of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([row * 2 for row in x])


@pytest.mark.parametrize("module", [Counted(), Looped()])
def test_the_line_that_fixes_a_dim_is_named(job_of: JobOf, module: nn.Module) -> None:
    job = job_of(module, "x:float32[batch=1..4,3]")
    code = type(module).forward.__code__
    place = f"{re.escape(code.co_filename)}:{code.co_firstlineno + 1}"
    with pytest.raises(ConversionError, match=rf"'batch'.* \(at {place}\)$"):
        capture_export(job)
    level = logging.getLogger("torch.fx.experimental.symbolic_shapes").level
    assert level in (logging.NOTSET, logging.WARNING)


def test_what_started_the_export_is_not_named() -> None:
    said = "log.info('eval Eq(s0, 2) [guard added] (_ops.py:920 in decompose)')"
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    with capture.guard_relaxation.specialization_places() as places:
        for file in (capture.torch_export.__file__, "/home/me/nets.py"):
            exec(compile(said, str(file), "exec"), {"log": logger})
    assert places == ["/home/me/nets.py:1"]


def test_a_specialised_dim_is_rejected_with_static_for_a_hint(job_of: JobOf) -> None:
    with pytest.raises(ConversionError, match="'b'") as caught:
        capture_export(job_of(Rows(), "x:float32[b=2..3..4,5]"))
    assert "--static b" in caught.value.hint


def test_torchscript_is_exported_with_its_dims(job_of: JobOf) -> None:
    job = replace(job_of(Conv(), "x:float32[batch=1..4,t=1..6,3]"), model=traced_eager())
    assert answers(job, (1, 1, 3))
    assert answers(job, (4, 6, 3))


def traced_eager() -> Eager:
    """A module that is TorchScript itself, traced at other sizes."""
    module = torch.jit.trace(Conv().eval(), torch.randn(2, 5, 3))  # type: ignore[no-untyped-call]
    takes = parameters_of_schema(module._c._get_method("forward").schema)
    return Eager(module, ("x",), bind_inputs(("x",), takes))


def test_related_dims_are_made_of_one_of_torchs() -> None:
    texts = ("a:float32[batch=1..4,s=1..8]", "b:float32[batch,s2=s,n=2*s+1]")
    first, second = dynamic_shapes(merge_inputs([parse_input(text) for text in texts], {}))
    assert second[1] is first[1]
    assert getattr(second[2], "__name__", "") == "2*s + 1"
