"""Claims on steps in the remote cache, so that hosts at work at the same time build a step once.

A claim is a lease. Its holder rewrites it a few times within the lease; whoever waits takes it over
once it has not changed for a whole lease by the clock of the waiter, as clocks of hosts differ.
Each claim of a key has a number of its own, the highest counts, and creating a number succeeds for
one host only: a claim that was taken over cannot come back.
"""

from __future__ import annotations

import os
import platform
import secrets
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event as Flag
from threading import Thread

from ...core.errors import first_line
from ...core.events import Tell, ignore_events
from .remote_files import RemoteFiles
from .result_store import warn_once

LEASE = 30.0  # seconds without a sign of life after which a claim is void
_BEATS_PER_LEASE = 5
_DIGITS = 8  # of the number in the name of a claim
_FOLDER = "claims"


@dataclass(frozen=True, kw_only=True)
class StepClaim:
    """One claim: who holds it, and how often it was renewed; a released one is free."""

    holder: str
    beat: int = 0
    released: bool = False


@dataclass(frozen=True, kw_only=True)
class ClaimConflict:
    """Another run holds the claim on a step."""

    holder: str


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """The content of a foreign claim, and when this process first saw it."""

    raw: bytes
    since: float


class StepClaims:
    """Claims of one process.

    If the remote cannot be written, as where this host may only read it, nothing is claimed, which
    is reported once: a step may then be built twice.
    """

    def __init__(
        self, files: RemoteFiles, tell: Tell = ignore_events, *, lease: float = LEASE
    ) -> None:
        self.holder = f"{platform.node()} {os.getpid()} {secrets.token_hex(4)}"
        self.lease = lease
        self._files = files
        self._warn = warn_once(tell)
        self._seen: dict[str, _Seen] = {}

    @contextmanager
    def hold(self, keys: Collection[str]) -> Iterator[ClaimConflict | None]:
        """Claim all keys, or none: then yield who holds one of them."""
        names: list[str] = []
        conflict: ClaimConflict | None = None
        stop = Flag()
        beats = Thread(target=self._renew, args=(names, stop), daemon=True)
        try:
            for key in sorted(set(keys)):  # one order for all hosts
                found = self._claim(key)
                if isinstance(found, ClaimConflict):
                    conflict = found
                    self._release(names)
                    names.clear()
                    break
                if found:
                    names.append(found)
            if names:
                beats.start()
            yield conflict
        finally:
            stop.set()
            if beats.is_alive():
                beats.join()
            self._release(names)

    def _claim(self, key: str) -> str | ClaimConflict:
        """Claim a key: the name of the claim, who has it, or empty if nothing can be claimed."""
        try:
            return self._create_next(key)
        except Exception as error:  # noqa: BLE001 - each file system raises its own errors
            self._warn(
                f"cannot claim steps in the remote cache: {first_line(error)}; a step may be "
                "built by two runs"
            )
            return ""

    def _create_next(self, key: str) -> str | ClaimConflict:
        folder = f"{_FOLDER}/{key}"
        numbers = self._numbers(folder)
        last = numbers[-1] if numbers else -1
        if numbers:
            holder = self._holder_of(f"{folder}/{last:0{_DIGITS}}")
            if holder is not None:
                return ClaimConflict(holder=holder)
        name = f"{folder}/{last + 1:0{_DIGITS}}"
        if not self._files.create(name, _encode(StepClaim(holder=self.holder))):
            return ClaimConflict(holder="another run")
        if self._numbers(folder)[-1] != last + 1:  # the list was old, and the number free again
            self._files.remove(name)
            return ClaimConflict(holder="another run")
        for number in numbers:
            with suppress(Exception):  # another run removed it; only the highest number counts
                self._files.remove(f"{folder}/{number:0{_DIGITS}}")
        return name

    def _numbers(self, folder: str) -> list[int]:
        """Return the numbers of claims; files with other names are not modelc's."""
        names = (one for one in self._files.names(folder) if len(one) == _DIGITS and one.isascii())
        numbers = (int(one) for one in names if one.isdecimal())
        return sorted(one for one in numbers if one + 1 < 10**_DIGITS)

    def _holder_of(self, name: str) -> str | None:
        """Return who holds a claim; None if it is free, or unchanged for a whole lease."""
        raw = self._files.read(name)
        if raw is None:  # it was superseded since
            return "another run"
        claim = _decode(raw)
        if claim.released:
            return None
        seen = self._seen.get(name)
        if seen is None or seen.raw != raw:
            seen = self._seen[name] = _Seen(raw=raw, since=time.monotonic())
        return None if time.monotonic() - seen.since > self.lease else claim.holder

    def _renew(self, names: Collection[str], stop: Flag) -> None:
        """Rewrite the claims until the flag is set."""
        beat = 0
        while not stop.wait(self.lease / _BEATS_PER_LEASE):
            beat += 1
            for name in names:
                self._write(name, StepClaim(holder=self.holder, beat=beat))

    def _release(self, names: Collection[str]) -> None:
        for name in names:
            self._write(name, StepClaim(holder=self.holder, released=True))

    def _write(self, name: str, claim: StepClaim) -> None:
        try:
            self._files.write(name, _encode(claim))
        except Exception as error:  # noqa: BLE001 - each file system raises its own errors
            self._warn(f"cannot renew a claim in the remote cache: {first_line(error)}")


def _encode(claim: StepClaim) -> bytes:
    import msgspec

    return msgspec.json.encode(claim)


def _decode(raw: bytes) -> StepClaim:
    """Decode a claim; a damaged one is held by nobody known until its lease ends."""
    import msgspec

    try:
        return msgspec.json.decode(raw, type=StepClaim)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return StepClaim(holder="another run")
