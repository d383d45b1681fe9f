"""A claim belongs to one host at a time, and to nobody when its holder is gone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modelc.pipeline.cache.claims import ClaimConflict, StepClaim, StepClaims
from modelc.pipeline.cache.remote_files import RemoteFiles, open_remote_files

from .conftest import Told

KEY, SECOND = "ab" * 32, "cd" * 32
SHORT = 0.3


@pytest.fixture(params=["file", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RemoteFiles]:
    """A shared folder, and a file system that puts whole objects."""
    import fsspec

    yield open_remote_files(
        {"file": f"file://{tmp_path}/far", "memory": "memory://far"}[request.param]
    )
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def host(files: RemoteFiles) -> Callable[[], StepClaims]:
    """`host()`: the claims of another process."""
    return lambda: StepClaims(files, lease=SHORT)


def test_a_step_that_is_claimed_is_not_claimed_by_another(host: Callable[[], StepClaims]) -> None:
    one, two = host(), host()
    with one.hold([KEY]) as mine, two.hold([SECOND, KEY]) as theirs:
        assert mine is None
        assert theirs == ClaimConflict(holder=one.holder)


def test_what_is_released_is_free(host: Callable[[], StepClaims]) -> None:
    one, two = host(), host()
    for claims in (one, two, one):
        with claims.hold([KEY]) as found:
            assert found is None


@pytest.mark.parametrize("name", ["5", "99999999", "\u0663" * 8, "000000001", "x" * 8])
def test_a_file_that_modelc_does_not_name_so_is_no_claim(
    host: Callable[[], StepClaims], files: RemoteFiles, name: str
) -> None:
    files.write(f"claims/{KEY}/{name}", b'{"holder": "stranger"}')
    for claims in (host(), host()):
        with claims.hold([KEY]) as found:
            assert found is None


def test_a_conflict_releases_the_other_steps(host: Callable[[], StepClaims]) -> None:
    one, two, three = host(), host(), host()
    with one.hold([SECOND]), two.hold([KEY, SECOND]) as refused, three.hold([KEY]) as free:
        assert isinstance(refused, ClaimConflict)
        assert free is None


def test_a_holder_at_work_keeps_its_claim_beyond_a_lease(host: Callable[[], StepClaims]) -> None:
    one, two = host(), host()
    with one.hold([KEY]):
        ends = time.monotonic() + 3 * SHORT
        while time.monotonic() < ends:
            with two.hold([KEY]) as found:
                assert found is not None
            time.sleep(SHORT / 5)


def test_a_dead_holder_loses_its_claim_after_a_lease_and_one_host_takes_it(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/far"
    script = (
        "import os, sys\n"
        "from modelc.pipeline.cache.claims import StepClaims\n"
        "from modelc.pipeline.cache.remote_files import open_remote_files\n"
        "with StepClaims(open_remote_files(sys.argv[1])).hold([sys.argv[2]]) as found:\n"
        "    os._exit(0 if found is None else 1)\n"
    )
    subprocess.run([sys.executable, "-c", script, url, KEY], check=True)
    one, two = (StepClaims(open_remote_files(url), lease=SHORT) for _ in range(2))
    for claims in (one, two):
        with claims.hold([KEY]) as early:
            assert early is not None
    time.sleep(1.5 * SHORT)
    with one.hold([KEY]) as first, two.hold([KEY]) as second:
        assert first is None
        assert second == ClaimConflict(holder=one.holder)


def test_a_claim_that_was_taken_over_does_not_come_back(host: Callable[[], StepClaims]) -> None:
    one, two, three = StepClaims(host()._files, lease=60.0), host(), host()
    with one.hold([KEY]):
        with two.hold([KEY]):
            pass
        time.sleep(1.5 * SHORT)
        with two.hold([KEY]) as taken:
            assert taken is None
            one._write(f"claims/{KEY}/{0:08}", StepClaim(holder=one.holder, beat=3))
            with three.hold([KEY]) as found:
                assert found == ClaimConflict(holder=two.holder)


def test_a_number_that_is_free_again_is_not_claimed_twice(
    host: Callable[[], StepClaims], files: RemoteFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = host(), host()
    with two.hold([KEY]):
        pass
    read, held = files.read, two.hold([KEY])

    def read_long_ago(name: str) -> bytes | None:
        found = read(name)
        monkeypatch.setattr(files, "read", read)
        with two.hold([KEY]):
            pass
        assert held.__enter__() is None
        return found

    monkeypatch.setattr(files, "read", read_long_ago)
    with one.hold([KEY]) as found:
        assert found is not None
    with host().hold([KEY]) as third:
        assert third == ClaimConflict(holder=two.holder)
    held.__exit__(None, None, None)


def test_a_damaged_claim_is_held_until_its_lease_ends(
    host: Callable[[], StepClaims], files: RemoteFiles
) -> None:
    files.write(f"claims/{KEY}/{0:08}", b"{")
    claims = host()
    with claims.hold([KEY]) as early:
        assert early is not None
    time.sleep(1.5 * SHORT)
    with claims.hold([KEY]) as late:
        assert late is None


def test_a_remote_that_cannot_be_written_claims_nothing_and_says_so(told: Told) -> None:
    class ReadOnly:
        protocol = "far"

        def invalidate_cache(self) -> None:
            raise PermissionError("read only")

    claims = StepClaims(RemoteFiles(ReadOnly(), "far"), told)
    with claims.hold([KEY]) as found:
        assert found is None
    assert len(told) == 1


def test_of_many_processes_one_claims_each_key(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from modelc.pipeline.cache.claims import StepClaims\n"
        "from modelc.pipeline.cache.remote_files import open_remote_files\n"
        "claims = StepClaims(open_remote_files(sys.argv[1]), lease=60.0)\n"
        "held = [claims.hold([f'{number:064x}']) for number in range(20)]\n"
        "for number, one in enumerate(held):\n"
        "    if one.__enter__() is None:\n"
        "        print(number, flush=True)\n"
        "time.sleep(0.5)\n"
    )
    url = f"file://{tmp_path}/far"
    command = [sys.executable, "-c", script, url]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    lines = [line for run in runs for line in run.communicate()[0].split()]
    assert sorted(map(int, lines)) == list(range(20))
