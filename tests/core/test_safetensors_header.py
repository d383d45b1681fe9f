"""Every size in a safetensors header is compared with the file's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modelc.core.untrusted_files import TruncatedFileError, read_safetensors_header

A = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def written(folder: Path, header: object, size: int = 24) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "m.safetensors"
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(size))
    return path


def test_a_sound_header_says_its_tensors(tmp_path: Path) -> None:
    (entry,) = read_safetensors_header(
        written(tmp_path, {"__metadata__": {"format": "pt"}, "a": A})
    )
    assert (entry.name, entry.dtype, entry.shape, entry.end) == ("a", "F32", (2, 3), 24)


@pytest.mark.parametrize(
    "entry",
    [
        {**A, "shape": [2, 2**40]},
        {**A, "shape": [-2, -3]},
        {**A, "shape": [2.0, 3]},
        {**A, "shape": [True, 6]},
        {**A, "data_offsets": [4, 24]},
        {**A, "data_offsets": [0, "24"]},
        {**A, "data_offsets": [-24, 24]},
        {**A, "data_offsets": [0]},
        {**A, "dtype": 1},
        [],
        None,
    ],
)
def test_a_size_that_cannot_be_is_refused(tmp_path: Path, entry: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_safetensors_header(written(tmp_path, {"a": entry}))


def test_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="was expected"):
        read_safetensors_header(written(tmp_path, {"a": A, "b": A}))


def test_a_hole_between_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="was expected"):
        read_safetensors_header(written(tmp_path, {"a": {**A, "data_offsets": [8, 32]}}, size=32))


def test_a_file_that_ends_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TruncatedFileError):
        read_safetensors_header(written(tmp_path, {"a": A}, size=23))


@pytest.mark.parametrize("raw", [b"[" * 100_000, b"{", b"[]", b"\xff", b"1", b'{"a":NaN}'])
def test_a_header_that_is_none_is_refused(tmp_path: Path, raw: bytes) -> None:
    """Found by fuzzing: nested deeply it is no ValueError of the JSON reader's."""
    with pytest.raises(ValueError, match="no header"):
        read_safetensors_header(written(tmp_path, raw, size=0))


def test_a_length_beyond_the_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes((2**63).to_bytes(8, "little") + b"{}")
    with pytest.raises(ValueError, match="no header of"):
        read_safetensors_header(path)
