"""Large arrays are copied to mapped files, small ones to memory; nobody can tell."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from modelc.core import large_arrays
from modelc.core.errors import RunnerError
from modelc.core.large_arrays import available_memory, check_memory, copy_array

LARGE = np.arange(5 * 2**20, dtype=np.float32).reshape(5, -1)


def own_bytes() -> int:
    """Return the memory of this process that is no page of a file."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


@pytest.mark.parametrize("array", [LARGE, LARGE.T, LARGE[:, :3], np.float32(2.0), LARGE[:0]])
def test_a_copy_has_the_values_and_is_independent(array: np.ndarray) -> None:
    copy = copy_array(array)
    assert type(copy) is np.ndarray
    assert copy.dtype == np.asarray(array).dtype
    assert np.array_equal(copy, array)
    if copy.size:
        before = np.array(array)
        copy[...] = -1
        assert np.array_equal(array, before)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's /proc")
def test_large_copies_take_no_memory_of_the_process() -> None:
    before = own_bytes()
    kept = [copy_array(LARGE) for _ in range(8)]
    assert all(np.array_equal(one, LARGE) for one in kept)
    assert own_bytes() - before < LARGE.nbytes


def test_without_room_on_a_disk_a_copy_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_arrays, "_MARGIN", 2**60)
    assert np.array_equal(copy_array(LARGE), LARGE)
    assert large_arrays.find_room(1) is None


def test_more_memory_than_there_is_is_an_error_with_both_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(large_arrays, "available_memory", lambda: 2 * 10**9)
    check_memory(2 * 10**9, "OpenVINO")
    with pytest.raises(RunnerError, match=r"3\.00 GB.*2\.00 GB"):
        check_memory(3 * 10**9, "OpenVINO")


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's /proc")
@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_control_group_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    free = available_memory()
    assert free is not None
    own = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    line = next(one for one in own if ("memory" in one.split(":")[1]) or one.startswith("0::"))
    group = tmp_path / ("memory" if line.split(":")[1] else "") / line.split(":")[2].lstrip("/")
    v1 = bool(line.split(":")[1])
    if v1 is not (version == 1):
        pytest.skip("this machine has the other version")
    group.mkdir(parents=True, exist_ok=True)
    (group / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(f"{5 * 10**7}\n")
    (group / "memory.stat").write_text(f"cache 5\n{'total_rss' if v1 else 'anon'} {2 * 10**7}\n")
    monkeypatch.setattr(large_arrays, "_GROUPS", str(tmp_path))
    assert available_memory() == 3 * 10**7
