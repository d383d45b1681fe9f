"""Memory that torch owns and TensorRT writes to."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch

from modelc.converters.trt.trt_callbacks import OutputMemory, addressable, make_output_memory

CPU = torch.device("cpu")
Doubles = Callable[..., Any]


def memory(dtype: torch.dtype = torch.float32) -> OutputMemory:
    return OutputMemory("y", dtype, CPU)


def test_memory_of_a_fixed_shape_is_read_in_that_shape() -> None:
    made = memory(torch.int64)
    values = (ctypes.c_int64 * 6).from_address(made.allocate((2, 3)))
    values[:] = list(range(6))
    assert made.tensor().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_memory_grows_and_the_last_values_are_read() -> None:
    made = memory()
    made.grow(8)
    address = made.grow(64)
    (ctypes.c_float * 16).from_address(address)[:] = [1.5] * 16
    made.notify((3, 4))  # less than was asked for
    assert made.tensor().tolist() == [[1.5] * 4] * 3


def test_sufficient_memory_is_not_reallocated() -> None:
    made = memory()
    assert made.grow(64) == made.grow(8)


@pytest.mark.parametrize("shape", [(0, 3), (0,)])
def test_an_output_of_no_elements_has_its_shape(shape: tuple[int, ...]) -> None:
    asked, unasked = memory(), memory()
    assert asked.allocate(shape) != 0
    unasked.notify(shape)
    assert tuple(asked.tensor().shape) == tuple(unasked.tensor().shape) == shape


def test_a_failed_allocation_returns_no_address_and_keeps_the_error() -> None:
    made = memory()
    assert made.grow(1 << 60) == 0
    assert made.error is not None


def test_an_empty_input_has_an_address() -> None:
    assert addressable(torch.empty(0, 3)).data_ptr() != 0


def test_a_transposed_tensor_becomes_contiguous() -> None:
    assert addressable(torch.arange(6).reshape(2, 3).T).is_contiguous()


def test_both_allocator_callbacks_allocate(double_of: Doubles) -> None:
    trt = double_of({}).module
    made = make_output_memory(trt, "y", torch.float32, CPU)
    assert isinstance(made.allocator, trt.IOutputAllocator)
    address = made.allocator.reallocate_output("y", 0, 16, 256)
    assert made.allocator.reallocate_output_async("y", address, 16, 256, 0) == address
    made.allocator.notify_shape("y", (2, 2))
    assert tuple(made.tensor().shape) == (2, 2)
