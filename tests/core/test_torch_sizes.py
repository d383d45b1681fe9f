"""Sizes in a file of torch.save are compared with its bytes before torch sees it."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from modelc.core.errors import CheckpointError, ErrorCode
from modelc.core.torch_file import read_torch_file
from modelc.core.torch_sizes import find_size_fault

from ..reasons import has_code

NET = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LSTM(4, 5))
GOOD: dict[str, Callable[[], object]] = {
    "state": NET.state_dict,
    "module": lambda: NET,
    "views": lambda: {"t": torch.arange(12).view(3, 4).t(), "e": torch.zeros(1).expand(9, 9)},
    "halves": lambda: {"h": torch.zeros(3, dtype=torch.bfloat16)[1:], "none": torch.zeros(0, 3)},
    "dtypes": lambda: {
        "u": torch.zeros(3, dtype=torch.uint16),
        "c": torch.zeros(2, dtype=torch.complex64),
    },
    "optimizer": lambda: torch.optim.Adam(NET.parameters()).state_dict(),
    "sparse": lambda: {"s": torch.eye(3).to_sparse()},
    "meta": lambda: {"m": torch.zeros(10**12, device="meta")},
    "parameter": lambda: {"p": nn.Parameter(torch.zeros(3)), "n": [1, {"a": "b"}], "d": torch.half},
}


def saved(value: object, *, packed: bool = True) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=packed)
    return stream.getvalue()


def with_pickle(change: Callable[[bytes], bytes]) -> io.BytesIO:
    """An archive of one tensor whose pickle was changed."""
    source, made = zipfile.ZipFile(io.BytesIO(saved({"a": torch.ones(5, 7)}))), io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in source.namelist():
            data = source.read(name)
            archive.writestr(name, change(data) if name.endswith("data.pkl") else data)
    return io.BytesIO(made.getvalue())


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", GOOD)
def test_what_torch_saves_is_sound(name: str, packed: bool) -> None:
    assert find_size_fault(io.BytesIO(saved(GOOD[name](), packed=packed))) == ""


def test_a_storage_that_states_more_than_its_record_is_rejected() -> None:
    """torch would read past the end of the record's memory."""
    more = with_pickle(lambda data: data.replace(b"K#", b"M\xff\xff"))  # 35 elements, and 65535
    assert "262140 bytes" in find_size_fault(more)
    check = has_code(ErrorCode.CORRUPT_FILE, naming="262140")
    with pytest.raises(CheckpointError, check=check):
        read_torch_file(more, "it")


@pytest.mark.parametrize(
    ("written", "stated", "naming"),
    [
        (b"K\x05K\x07\x86", b"K\x05J\xff\xff\xff\x7f\x86", "needs"),  # larger than its storage
        (b"QK\x00", b"QJ\xff\xff\xff\xff", "-1"),  # at an offset below zero
    ],
)
def test_a_tensor_outside_of_its_storage_is_rejected(
    written: bytes, stated: bytes, naming: str
) -> None:
    assert naming in find_size_fault(with_pickle(lambda data: data.replace(written, stated, 1)))


def test_a_legacy_file_that_states_more_than_it_has_is_rejected() -> None:
    data = saved({"a": torch.ones(5, 7)}, packed=False).replace(b"K#", b"J\xff\xff\xff\x7f", 1)
    assert "states 8589934588 bytes" in find_size_fault(io.BytesIO(data))


@pytest.mark.parametrize("called", [b"cbuiltins\nbytearray\n", b"ctorch\nFloatTensor\n"])
def test_a_call_that_takes_memory_is_rejected(called: bytes) -> None:
    bomb = with_pickle(lambda _: b"\x80\x02" + called + b"\x8a\x05\x00\x00\x00\x00\x10\x85R.")
    assert "elements" in find_size_fault(bomb)


def test_a_pickle_that_counts_more_objects_than_it_has_bytes_is_rejected() -> None:
    bomb = with_pickle(lambda _: b"\x80\x02}r\xff\xff\xff\x7f.")
    assert "counts 2147483647 objects" in find_size_fault(bomb)


def test_nothing_that_a_pickle_names_is_called(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "called",)

    evil = with_pickle(lambda _: pickle.dumps({"a": Evil()}, protocol=2))
    assert find_size_fault(evil) == ""
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.CONSENT_REQUIRED)):
        read_torch_file(evil, "it")
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("data", [b"", b"\x80\x02", b"\x80\x02}", b"PK\x03\x04", b"garbage"])
def test_garbage_is_a_fault_and_no_traceback(data: bytes) -> None:
    assert find_size_fault(io.BytesIO(data))
    with pytest.raises(CheckpointError):
        read_torch_file(io.BytesIO(data), "it")
