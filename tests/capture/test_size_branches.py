"""A trace is compared with eager at the sizes that forward distinguishes, beyond the feeds."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from modelc.capture.captured_program import example_tensors
from modelc.capture.size_checks import OUTSIDE
from modelc.capture.size_constraints import NarrowError
from modelc.capture.symbolic_shapes import trace_symbolic_shapes
from modelc.capture.torch_export import capture_export
from modelc.capture.torch_trace import capture_trace
from modelc.core.contract import Job
from modelc.core.errors import ConversionError

JobOf = Callable[..., Job]
X = "x:float32[n=2..1000,2]"
pytestmark = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")


class Doubles(nn.Module):
    """Doubles what comes in where something of its sizes is so."""

    def __init__(self, when: Callable[..., bool]) -> None:
        super().__init__()
        self.when = when

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.when(x) else x + 1


class DoublesTwo(Doubles):
    """The same of two inputs."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return x * 2 + y.sum() if self.when(x, y) else x + 1


def _half(x: Tensor) -> bool:
    return x.shape[0] // 2 == 150


def _joined(x: Tensor) -> bool:
    return torch.cat([x, x]).size(0) == 600


def _after_data(x: Tensor) -> bool:
    most = float(x.max())  # taken out of the tensor before the size is asked for
    return len(x) == 300 and most < 1e9


def _plain_int(x: Tensor) -> bool:
    size = int(x.size(0))
    return isinstance(size, int) and size == 300  # type: ignore[redundant-expr]  # of symbols, too


def _in_another(x: Tensor) -> bool:
    return x.shape[0] > 290 and x.shape[0] % 100 == 0


ASKED: dict[str, tuple[Callable[[Tensor], bool], int]] = {
    "shape": (lambda x: x.shape[0] == 300, 300),
    "size": (lambda x: x.size(0) in (300, 301), 300),
    "len": (lambda x: len(x) == 300, 300),
    "int": (_plain_int, 300),
    "range": (lambda x: 300 <= x.shape[0] < 310, 300),
    "half": (_half, 300),
    "rest": (lambda x: x.shape[0] % 311 == 0, 311),
    "numel": (lambda x: x.numel() == 600, 300),
    "text": (lambda x: f"{x.shape[0]:d}" == "300", 300),
    "key": (lambda x: {"rows300": True}.get(f"rows{x.shape[0]}", False), 300),
    "storage": (lambda x: x.untyped_storage().nbytes() == 4 * 8, 4),
    "joined": (_joined, 300),
    "after data": (_after_data, 300),
    "within another branch": (_in_another, 300),
    "largest": (lambda x: max(x.shape[0], 700) > 700, 701),
}


@pytest.mark.parametrize("asked", ASKED)
def test_a_size_that_the_code_asks_for_is_tried(asked: str, job_of: JobOf) -> None:
    when, size = ASKED[asked]
    with pytest.raises(ConversionError, match=f"n={size} "):
        capture_trace(job_of(Doubles(when), X))


class Masks(Doubles):
    """Gives the lowest number of all beside its answer."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([super().forward(x), torch.full((1, 2), torch.finfo(x.dtype).min)])


class Averages(Doubles):
    """The mean of all rows, or of those of the example."""

    def forward(self, x: Tensor) -> Tensor:
        return (x if self.when(x) else x[:EXAMPLE]).mean(0)


EXAMPLE = 501  # rows, in the middle of `X`


def _twice(x: Tensor) -> bool:
    return x.shape[0] == 2 * EXAMPLE


@pytest.mark.parametrize(
    ("module", "spec"),
    [
        (Masks(lambda x: x.shape[0] == 300), X),
        (Averages(_twice), "x:float32[n=2..501..2000,2]"),
    ],
)
def test_no_answer_hides_another(module: nn.Module, spec: str, job_of: JobOf) -> None:
    with pytest.raises(NarrowError):
        capture_trace(job_of(module, spec))


def test_a_trace_is_tried_where_an_outcome_that_the_program_had_not_asks_for_more(
    job_of: JobOf,
) -> None:
    def when(x: Tensor) -> bool:
        return x.shape[0] < 300 and x.shape[0] == 100

    job = job_of(Doubles(when), X)
    job.programs[OUTSIDE] = ({"n": 200},)
    with pytest.raises(ConversionError, match="at n=100 "):
        capture_trace(job)


@pytest.mark.parametrize(
    ("when", "told"),
    [
        (lambda x, y: x.shape[0] == y.shape[0], "n=.*, m="),
        (lambda x, y: x.shape[0] * y.shape[0] == 247, "n=.*, m="),
    ],
    ids=["equal", "product"],
)
def test_sizes_are_tried_together(when: Callable[..., bool], told: str, job_of: JobOf) -> None:
    with pytest.raises(ConversionError, match=f"at {told}"):
        capture_trace(job_of(DoublesTwo(when), X, "y:float32[m=5..90]"))


def _beyond_the_ways(x: Tensor, y: Tensor) -> bool:
    sizes = (x.shape[0], y.shape[0])
    found = False
    for step in range(40, 90):
        found = found or (step + sizes[0] > 97 and step == 89)
    return found and sizes == (56, 71)


@pytest.mark.parametrize(
    "when",
    [
        lambda x, y: torch.outer(x[:, 0], y).untyped_storage().nbytes() == 4 * 59 * 73,
        _beyond_the_ways,
    ],
    ids=["bytes of a product", "more ways than are followed"],
)
def test_two_sizes_that_are_named_are_tried_together(
    when: Callable[..., bool], job_of: JobOf
) -> None:
    with pytest.raises(ConversionError, match=r"n=.*, m="):
        capture_trace(job_of(DoublesTwo(when), X, "y:float32[m=5..90]"))


def test_a_size_that_decides_nothing_is_fine(job_of: JobOf) -> None:
    made = capture_trace(job_of(nn.Linear(2, 2), X))
    assert made.notes == ()


def test_a_size_that_became_a_plain_number_is_reported(job_of: JobOf) -> None:
    made = capture_trace(job_of(Doubles(lambda x: math.sqrt(x.shape[0]) == 17.5), X))
    assert "test_size_branches.py:" in made.notes[0]


def test_where_forward_cannot_be_followed_is_reported(job_of: JobOf) -> None:
    with pytest.raises(NarrowError) as caught:  # its calls at other sizes show what it decides
        capture_trace(job_of(Doubles(lambda x: x[x[:, 0] > -9].shape[0] == 300), X))
    assert caught.value.interval is not None


def test_a_run_that_takes_too_long_ends_and_says_so(job_of: JobOf) -> None:
    job = job_of(Doubles(lambda x: x.shape[0] == 300), X)
    found = trace_symbolic_shapes(job.model.flat, example_tensors(job), job.signature, most=0)  # type: ignore[union-attr]  # job_of gives one
    assert found.late
    assert found.ended


_KEPT: dict[str, Tensor] = {}


@functools.cache
def _ones(width: int) -> Tensor:
    return torch.ones(width)


class Keeps(nn.Module):
    """Keeps tensors in a file's dict, in a function's cache and in itself."""

    def forward(self, x: Tensor) -> Tensor:
        if "two" not in _KEPT:
            _KEPT["two"] = torch.full((2,), 2.0)
        self.last = x
        return x * _KEPT["two"] + _ones(2)


def test_what_forward_keeps_without_data_is_forgotten(job_of: JobOf) -> None:
    job = job_of(Keeps(), X)
    capture_trace(job)
    assert job.model is not None
    _KEPT.clear()
    _ones.cache_clear()
    capture_trace(job)
    assert type(job.model.flat(torch.ones(3, 2))[0]) is Tensor
    assert "len" not in globals()
    assert "int" not in globals()


class Made(Doubles):
    """Asks tensors that are made of sizes alone."""


def _arange(x: Tensor) -> bool:
    return int(torch.arange(x.shape[0]).max()) + 1 == 37


def _summed(x: Tensor) -> bool:
    return 70 < torch.ones(x.shape[0]).sum().item() < 75


def _of_size(x: Tensor) -> bool:
    return torch.tensor(x.size(0)).item() == 21


def _in_table(x: Tensor) -> bool:
    return x.shape[0] in {13: 1, 14: 2}


def _whole_shape(x: Tensor) -> bool:
    return tuple(x.shape) == (41, 2)


@pytest.mark.parametrize(
    ("when", "size"),
    [(_arange, 37), (_summed, 71), (_of_size, 21), (_in_table, 13), (_whole_shape, 41)],
)
def test_a_value_of_a_tensor_made_of_sizes_is_followed(
    when: Callable[..., bool], size: int, job_of: JobOf
) -> None:
    with pytest.raises(ConversionError, match=f"n={size} "):
        capture_trace(job_of(Made(when), "x:float32[n=4..96,2]"))


FROM_ONE = "x:float32[n=1..1000,2]"


class At300(nn.Module):
    """Of one size in the middle of a range something else is made."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] == 300 else x + 1


class Alike(nn.Module):
    """Asks for a size, and does the same either way."""

    def forward(self, x: Tensor) -> Tensor:
        return 1 + x if x.shape[0] == 300 else x + 1


def test_export_does_not_pass_a_size_that_it_excludes(job_of: JobOf) -> None:
    with pytest.raises(ConversionError, match="n != 300"):
        capture_export(job_of(At300(), FROM_ONE))


def test_a_size_that_makes_no_difference_is_noted(job_of: JobOf) -> None:
    (note,) = capture_export(job_of(Alike(), FROM_ONE)).notes
    assert "n != 300" in note


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_trace_after_a_rejected_export_is_tried_at_that_size(job_of: JobOf) -> None:
    job = job_of(At300(), FROM_ONE)
    with pytest.raises(ConversionError):
        capture_export(job)
    with pytest.raises(ConversionError, match="n=300"):
        capture_trace(job)


def test_a_trace_is_kept_where_the_size_makes_no_difference(job_of: JobOf) -> None:
    job = replace(job_of(Alike(), FROM_ONE), programs={OUTSIDE: ({"n": 300},)})
    assert torch.equal(capture_trace(job).module(torch.ones(300, 2))[0], torch.full((300, 2), 2.0))
