"""What accuracy-aware INT8 has measured, kept in the user's cache folder for a later run to go on.

A ranking and each trial are a file of their own under a key of all that went into them, written
aside and renamed. What is found damaged is measured anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from ..core.digest import sha256_of
from ..core.whole import write_whole
from ..validators.judge import ReferenceOutputs

StoredValue = TypeVar("Kept")
_MAX_STORED = 4096  # files, of about a kilobyte; what was written longest ago goes first
_CODE_ROOT = Path(__file__).parents[1]
_CODE_PACKAGES = ("calibration", "converters", "core", "pipeline", "sources", "validators")


class TradeOffStore:
    """A folder of measurements by key; None for a folder keeps nothing."""

    def __init__(self, folder: Path | None, most: int = _MAX_STORED) -> None:
        self._folder = folder
        self._most = most

    def take(self, key: str, kind: type[StoredValue]) -> StoredValue | None:
        """What is kept under the key; None where nothing is, or it cannot be read."""
        import msgspec

        if self._folder is None:
            return None
        try:
            return msgspec.json.decode((self._folder / f"{key}.json").read_bytes(), type=kind)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def keep(self, key: str, value: object) -> None:
        """Keep a value; where the folder cannot be written, it is not."""
        import msgspec

        if self._folder is None:
            return
        with suppress(OSError):  # a read-only home, a full disk
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._folder / f"{key}.json", msgspec.json.encode(value))
            self._shrink()

    def _shrink(self) -> None:
        if self._folder is None:
            return
        files = list(self._folder.iterdir())
        if len(files) > self._most:
            files.sort(key=lambda file: file.stat().st_mtime)
            for file in files[: len(files) - self._most]:
                file.unlink(missing_ok=True)


def open_tradeoff_store(cache: Path | None) -> TradeOffStore:
    """The store of a user's cache folder; without one nothing is kept."""
    return TradeOffStore(None if cache is None else cache / "tradeoffs")


def digest_texts(parts: Iterable[str]) -> str:
    """SHA-256 over texts, and over our own code: between two releases it changes unseen."""
    return hashlib.sha256("\x1f".join((_own_code_digest(), *parts)).encode()).hexdigest()


def digest_references(references: Iterable[ReferenceOutputs]) -> str:
    """SHA-256 over feeds and what eager gave on them: names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for reference in references:
        for arrays in (reference.feed.arrays, reference.outputs):
            for name, array in arrays.items():
                digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
                digest.update(array.tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def _own_code_digest() -> str:
    digest = hashlib.sha256()
    for room in _CODE_PACKAGES:
        for file in sorted((_CODE_ROOT / room).rglob("*.py")):
            digest.update(f"{file.relative_to(_CODE_ROOT)} {sha256_of(file)}\n".encode())
    return digest.hexdigest()
