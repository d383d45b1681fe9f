"""Arrays of an .npz have the bytes that their headers state."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from modelc.core.untrusted_files import read_npz


def with_header(header: str) -> io.BytesIO:
    raw = header.encode("latin1")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        size = len(raw).to_bytes(2, "little")
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + size + raw + bytes(24))
    return stream


def test_what_numpy_writes_is_read() -> None:
    stream = io.BytesIO()
    np.savez_compressed(stream, a=np.ones((2, 3)), b=np.asfortranarray(np.eye(3)), c=np.float32(2))
    found = read_npz(stream)
    assert list(found) == ["a", "b", "c"]
    assert found["b"].tolist() == np.eye(3).tolist()
    assert found["c"].shape == ()


@pytest.mark.parametrize(
    "shape", ["(100000000000,)", "(-1, -6)", "(2, 9223372036854775807)", "('a',)", "(1e9,)"]
)
def test_a_shape_that_has_no_bytes_is_refused(shape: str) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n"
    with pytest.raises(ValueError, match=r"."):
        read_npz(with_header(header))


def test_objects_are_refused() -> None:
    stream = io.BytesIO()
    np.savez(stream, a=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match=r"[Oo]bject arrays"):
        read_npz(stream)


@pytest.mark.parametrize("header", ["", "{'descr'", "{'descr': '<f4'L}", "[" * 3000, "__import__"])
def test_a_header_that_is_none_is_refused(header: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_npz(with_header(header))
