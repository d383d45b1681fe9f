"""Zip archives, safetensors headers and npz files that nobody vouches for."""

from __future__ import annotations

import io
import json
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from modelc.checkpoints.hub_files import check_file_name
from modelc.core.errors import CheckpointError
from modelc.core.hub_ids import HubId
from modelc.core.torch_file import read_torch_file
from modelc.core.untrusted_files import (
    TruncatedFileError,
    find_archive_fault,
    is_path_inside,
    is_zip_archive,
    read_npz,
    read_safetensors_header,
    zip_members,
)
from modelc.pipeline.manifest_file import encode_json
from modelc.projects.run_record import ModelRun, RunRecord, read_record
from modelc.reports.result_rows import Outcome

# Names by whether they are paths below a folder, a hub may list them, and models may be named so.
NAMES = {
    (True, True, True): ("model.onnx", "a.", "a ", ".hidden", "CON", "aux.txt", "e\u0301.onnx",
                         "n" * 255),
    (True, True, False): ("logs/x.log",),
    (True, False, True): ("file:stream",),
    (True, False, False): ("a/./b", "a//b", "a\\b", "n" * 256, "é" * 128),
    (False, False, False): (
        "", ".", "./", "..", "a/..", "a/../b", "../b", "a\\..\\b", "..\\b", "...", "a/.. /b",
        "a/ /b", "/a", "//server/share/a", "\\a", "\\\\server\\share\\a", "\\\\?\\C:\\a", "C:",
        "C:a", "C:/a", "C:\\a", "a\0b", "\0",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"), [(name, key) for key, names in NAMES.items() for name in names]
)
def test_names_that_someone_else_wrote(name: str, expected: tuple[bool, ...]) -> None:
    model = ModelRun(name=name, folder="", state=Outcome.PASSED, exit_code=0, seconds=0.0)
    record = encode_json(RunRecord(modelc="1", exit_code=0, seconds=0.0, models=(model,)))
    listed = _accepts(lambda: check_file_name(name, HubId(repo="org/net")))
    found = (is_path_inside(name), listed, _accepts(lambda: read_record(record)))
    assert found == expected


def _accepts(check: Callable[[], object]) -> bool:
    try:
        check()
    except (CheckpointError, ValueError):
        return False
    return True


def packed(*members: tuple[str, bytes], packing: int = zipfile.ZIP_STORED) -> bytearray:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", packing) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return bytearray(stream.getvalue())


def fault(data: bytes | bytearray) -> str:
    return find_archive_fault(io.BytesIO(data))


def test_a_plain_archive_is_sound() -> None:
    assert fault(packed(("a/data.pkl", b"x" * 50), ("a/data/0", b""))) == ""


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/etc/passwd", "C:\\x", "\\\\host\\x", "a/..\\..\\x", "C:x"]
)
def test_a_member_named_out_of_its_folder_is_rejected(name: str) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        entry = zipfile.ZipInfo("placeholder")
        entry.filename = name
        archive.writestr(entry, b"x")
    assert repr(name) in fault(stream.getvalue())


def test_a_link_is_rejected() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        entry = zipfile.ZipInfo("a/link")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, b"/etc/passwd")
    assert "'a/link'" in fault(stream.getvalue())


def test_a_name_that_is_there_twice_is_rejected() -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = packed(("a/data.pkl", b"harmless"), ("a/data.pkl", b"other"))
    assert "twice" in fault(data)


def test_an_encrypted_member_is_rejected() -> None:
    data = packed(("a", b"x"))
    data[data.index(b"PK\x01\x02") + 8] |= 1
    assert "encrypted" in fault(data)


def test_members_that_share_their_bytes_are_rejected() -> None:
    data = packed(("a", b"x" * 100), ("b", b"y" * 100))
    second = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1)
    data[second + 42 : second + 46] = struct.pack("<I", 0)  # where the second one begins
    assert "'a'" in fault(data)


def test_a_member_that_reaches_past_the_end_is_rejected() -> None:
    data = packed(("a", b"x" * 100))
    first = data.index(b"PK\x01\x02")
    data[first + 20 : first + 28] = struct.pack("<II", 10**6, 10**6)
    assert "'a'" in fault(data)


def test_an_archive_that_would_become_absurdly_large_is_rejected() -> None:
    data = packed(("a", zlib.compress(bytes(1000))), packing=zipfile.ZIP_DEFLATED)
    first = data.index(b"PK\x01\x02")
    data[first + 24 : first + 28] = struct.pack("<I", 2**32 - 2)
    assert "would become 4294967294" in fault(data)


def test_zeros_that_pack_well_are_no_bomb() -> None:
    assert fault(packed(("mask.npy", bytes(10**6)), packing=zipfile.ZIP_DEFLATED)) == ""


def test_a_damaged_directory_is_a_fault_and_no_traceback() -> None:
    assert "BadZipFile" in fault(packed(("a", b"x"))[:-10])
    assert "BadZipFile" in fault(b"")


def test_an_archive_of_several_disks_is_a_fault_and_no_traceback() -> None:
    """Found by fuzzing: the standard library raises where it was only asked whether it is one."""
    data = packed(("a", b"x"))
    end = data.index(b"PK\x05\x06")
    data[end:end] = b"PK\x06\x07" + struct.pack("<LQL", 1, 0, 7)
    assert is_zip_archive(io.BytesIO(data))
    assert fault(data)


def test_a_stream_is_left_where_it_was() -> None:
    stream = io.BytesIO(packed(("a", b"x")))
    stream.seek(3)
    assert is_zip_archive(stream)
    assert find_archive_fault(stream) == ""
    assert stream.tell() == 3


def test_what_is_no_archive_has_no_members(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(b"PK\x03\x04garbage")
    assert zip_members(tmp_path / "x.pt") == ()
    assert zip_members(tmp_path / "none.pt") == ()


def saved(value: float) -> bytes:
    stream = io.BytesIO()
    torch.save({"weight": torch.full((4,), value)}, stream)
    return stream.getvalue()


def test_two_archives_in_one_file_are_rejected(tmp_path: Path) -> None:
    """torch reads the directory where the end says that it is, zipfile where it must end."""
    path = tmp_path / "both.pt"
    path.write_bytes(saved(1.0) + saved(0.0))
    assert torch.load(path)["weight"][0] == 1.0
    with zipfile.ZipFile(path) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith("/data/0"))
        assert archive.read(name) == bytes(16)
    with pytest.raises(CheckpointError):
        read_torch_file(path)
    path.write_bytes(saved(1.0))
    read_torch_file(path)


@pytest.mark.parametrize("before", [b"#!/bin/sh\n", b"PK\x03\x04", bytes(70_000)])
def test_what_is_prepended_is_rejected(before: bytes) -> None:
    assert fault(before + packed(("a/data.pkl", b"x" * 50)))


def test_a_large_archives_end_must_be_where_it_is_read() -> None:
    """An end of 64 bits is found by an offset of its own, which zipfile does not look at."""
    data = bytearray(saved(1.0))
    locator = data.rfind(b"PK\x06\x07")
    assert locator > 0
    assert fault(data) == ""
    data[locator + 8 : locator + 16] = struct.pack("<Q", 4)
    assert fault(data) != ""


def test_a_comment_at_the_end_is_no_fault() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a/data.pkl", b"x")
        archive.comment = b"made today"
    assert fault(stream.getvalue()) == ""


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
def test_a_size_that_cannot_be_is_rejected(tmp_path: Path, entry: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_safetensors_header(written(tmp_path, {"a": entry}))


@pytest.mark.parametrize(
    ("header", "size"), [({"a": A, "b": A}, 24), ({"a": {**A, "data_offsets": [8, 32]}}, 32)]
)
def test_tensors_that_share_bytes_or_leave_some_out_are_rejected(
    tmp_path: Path, header: object, size: int
) -> None:
    with pytest.raises(ValueError, match="was expected"):
        read_safetensors_header(written(tmp_path, header, size=size))


def test_a_file_that_ends_elsewhere_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TruncatedFileError):
        read_safetensors_header(written(tmp_path, {"a": A}, size=23))


@pytest.mark.parametrize("raw", [b"[" * 100_000, b"{", b"[]", b"\xff", b"1", b'{"a":NaN}'])
def test_a_header_that_is_none_is_rejected(tmp_path: Path, raw: bytes) -> None:
    """Found by fuzzing: nested deeply it is no ValueError of the JSON reader's."""
    with pytest.raises(ValueError, match="no header"):
        read_safetensors_header(written(tmp_path, raw, size=0))


def test_a_length_beyond_the_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes((2**63).to_bytes(8, "little") + b"{}")
    with pytest.raises(ValueError, match=str(2**63)):
        read_safetensors_header(path)


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
def test_a_shape_that_has_no_bytes_is_rejected(shape: str) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n"
    with pytest.raises(ValueError, match=r"."):
        read_npz(with_header(header))


def test_objects_are_rejected() -> None:
    stream = io.BytesIO()
    np.savez(stream, a=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match=r"[Oo]bject arrays"):
        read_npz(stream)


@pytest.mark.parametrize("header", ["", "{'descr'", "{'descr': '<f4'L}", "[" * 3000, "__import__"])
def test_an_npz_header_that_is_none_is_rejected(header: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_npz(with_header(header))
