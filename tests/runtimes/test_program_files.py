"""Tensors and records go through a file unchanged, and a damaged file is an error."""

from __future__ import annotations

import numpy as np
import pytest

from modelc.core.contract import Array
from modelc.runtimes.program_build import SOURCES
from modelc.runtimes.program_files import (
    BFLOAT16,
    DTYPES,
    ProgramTensor,
    decode_records,
    decode_tensors,
    encode_records,
    encode_tensors,
)


def tensor(array: Array, dtype: str = "") -> ProgramTensor:
    return ProgramTensor(name="x", dtype=dtype or str(array.dtype), array=array)


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != BFLOAT16])
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
def test_arrays_are_read_as_they_were_written(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    (found,) = decode_tensors(encode_tensors([tensor(array)]))
    assert (found.array.dtype, found.array.shape) == (array.dtype, shape)
    np.testing.assert_array_equal(found.array, array)


def test_an_array_that_is_not_contiguous_keeps_its_values() -> None:
    array = np.arange(6.0).reshape(2, 3).T
    (found,) = decode_tensors(encode_tensors([tensor(array)]))
    np.testing.assert_array_equal(found.array, array)


def test_bfloat16_is_rounded_to_nearest() -> None:
    array = np.array([1.0, 1.00390625, 1.01171875, -np.inf, np.nan], np.float32)
    (found,) = decode_tensors(encode_tensors([tensor(array, BFLOAT16)]))
    expected = np.array([1.0, 1.0, 1.015625, -np.inf, np.nan], np.float32)
    assert found.array.dtype == np.float32
    np.testing.assert_array_equal(found.array, expected)


def test_records_are_read_as_they_were_written() -> None:
    records = (("input", "8", "x\ty"), (), ("",))
    assert decode_records(encode_records(records)) == records


WHOLE = encode_tensors([tensor(np.arange(6, dtype=np.int32))])


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_a_file_that_is_cut_off_is_an_error(length: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_tensors(WHOLE[:length])


def test_a_longer_file_is_an_error() -> None:
    with pytest.raises(ValueError, match="left over"):
        decode_tensors(WHOLE + b"\0")


def test_sizes_without_bytes_are_an_error() -> None:
    place = WHOLE.index(b"x") + 2  # of the rank, after the dtype
    huge = WHOLE[:place] + (3).to_bytes(8, "little") + (b"\xff" * 7 + b"\0") * 3
    with pytest.raises(ValueError, match=r"."):
        decode_tensors(huge)


def test_the_dtypes_are_numbered_as_in_the_programs() -> None:
    text = (SOURCES / "program.hpp").read_text("utf-8")
    inside = text.partition("enum class DType : uint8_t {")[2].partition("}")[0]
    names = [name.strip().lower() for name in inside.split(",") if name.strip()]
    assert tuple(names) == DTYPES
