"""Conditions of torch.export that make no difference are dropped, those that do are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from modelc.capture.torch_export import capture_export
from modelc.converters import exported_program, onnx_model
from modelc.core.contract import Job
from modelc.core.errors import ConversionError

JobOf = Callable[..., Job]
X = "x:float32[batch=1..4,n=2..13..24,6]"
WIDE = "x:float32[batch=1..4,n=2..128..256,6]"
FLIPS = {7, 8, 9, 16, 24}  # sizes on both sides of `n % 8 == 0`


class Padded(nn.Module):
    """Works in windows of 8: torch asks whether there is anything to pad."""

    def forward(self, x: Tensor) -> Tensor:
        batch, n, width = x.shape
        padded = functional.pad(x, (0, 0, 0, (8 - n % 8) % 8))
        windows = padded.reshape(batch, -1, 8, width).softmax(2)
        return windows.reshape(batch, -1, width)[:, :n].contiguous()


class Filled(nn.Module):
    """As `Padded`, and fills a cache of 4 steps that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Padded()

    def forward(self, x: Tensor) -> Tensor:
        n, cache = x.shape[1], torch.zeros(x.shape[0], 4, x.shape[2])
        cache.copy_(x[:, -4:] if n >= 4 else functional.pad(x, (0, 0, 4 - n, 0)))
        inner: Tensor = self.inner(x)
        return inner


class Topped(nn.Module):
    """Pads where there is less than a whole number of windows, as `if` of the model's own."""

    def forward(self, x: Tensor) -> Tensor:
        whole = x[:, : x.shape[1] // 2 * 2]
        if whole.shape[1] < x.shape[1]:
            whole = functional.pad(whole, (0, 0, 0, x.shape[1] - whole.shape[1]))
        return whole * 2


class Rarely(nn.Module):
    """Of 16 steps alone, in the middle of a range, something else is made."""

    def forward(self, x: Tensor) -> Tensor:
        padded: Tensor = Padded()(x)
        return padded + (1 if x.shape[1] % 16 < 1 else 0)


class Asking(nn.Module):
    """Makes something else of 37 steps, and asks for them where another condition breaks."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if n > 64:
            return x * 2
        return x * 3 if n == 37 else x * 2


class Listed(nn.Module):
    """Makes a plain number of a size: one of eleven picks something else."""

    def forward(self, x: Tensor) -> Tensor:
        return x * [2, 2, 2, 2, 2, 3, 2, 2, 2, 2, 2][x.shape[1] % 11]


class AskingOne(nn.Module):
    """Asks for more at a size that is one alone: torch only says that `n % 7` is not 5."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        return x * 3 if n % 7 == 5 and n > 200 else x * 2


class Demanding(nn.Module):
    """Rejects what is no longer than two windows."""

    def forward(self, x: Tensor) -> Tensor:
        torch._check(x.shape[1] > 8)  # type: ignore[no-untyped-call]  # torch's own
        return x * 2


def right_at(job: Job, *sizes: tuple[int, int]) -> list[bool]:
    """Whether the program as it is kept takes these (batch, n), and answers as the module does."""
    assert job.model is not None
    call = capture_export(job).program.module()
    inputs = [torch.randn(batch, n, 6) for batch, n in sizes]
    return [torch.allclose(call(x)[0], job.model.flat(x)[0], atol=1e-6) for x in inputs]


@pytest.mark.parametrize("module", [Padded(), Topped()])
def test_what_makes_no_difference_is_taken_for_the_whole_range(
    job_of: JobOf, module: nn.Module
) -> None:
    assert all(right_at(job_of(module, X), (1, 2), (2, 8), (4, 9), (1, 16), (3, 23), (4, 24)))


def test_the_sizes_on_both_sides_are_handed_over_to_be_judged(job_of: JobOf) -> None:
    found = capture_export(job_of(Padded(), X))
    sizes = {place["n"] for place in found.places}
    assert {size % 8 == 0 for size in sizes} == {True, False}
    assert sizes & FLIPS
    assert any(f"judged at {len(found.places)} sizes" in note for note in found.notes)


def test_the_program_rejects_what_lies_outside_of_its_ranges(job_of: JobOf) -> None:
    program = capture_export(job_of(Padded(), X)).program
    for n in (1, 25):
        with pytest.raises((AssertionError, RuntimeError)):
            program.module()(torch.randn(2, n, 6))


def test_what_only_fills_a_cache_that_is_left_cuts_no_range(job_of: JobOf) -> None:
    assert all(right_at(job_of(Filled(), X), (1, 2), (2, 3), (2, 4), (4, 8), (2, 24)))


@pytest.mark.parametrize(
    ("module", "spec", "shown"),
    [
        (Rarely(), X, "n % 16"),
        (Asking(), WIDE, r"torch\.export"),
        (Listed(), WIDE, r"torch\.export"),
        (AskingOne(), WIDE, "n % 7"),
        (Demanding(), X, r"9\.\.24"),  # what eager rejects is the model's own condition
    ],
)
def test_another_outcome_at_some_sizes_is_rejected(
    job_of: JobOf, module: nn.Module, spec: str, shown: str
) -> None:
    with pytest.raises(ConversionError, match=shown):
        capture_export(job_of(module, spec))


@pytest.mark.slow
@pytest.mark.parametrize("target", [onnx_model, exported_program])
def test_formats_pass_on_where_they_are_to_be_judged(job_of: JobOf, target: object) -> None:
    job = job_of(Padded(), X)
    made = target.convert(job)  # type: ignore[attr-defined]  # a target is a module here
    assert made.places == capture_export(job).places != ()
