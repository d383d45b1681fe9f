"""What calibrations gave, kept in the store of results under a key of all that went into them.

An entry holds the quantized model, as no library of the three lets its statistics alone be taken
out and put back. A changed weight, sample, option or version is another key.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__
from ..converters.onnx_guard import list_model_files
from ..core.contract import Quantized
from ..core.digest import record_of, sha256_of
from .caching.digests import FileDigests
from .caching.entry import CachedQuantization, CacheEntry
from .caching.machine import describe_machine
from .caching.own_code import digest_of_code
from .caching.store import ResultStore
from .environment import packages

if TYPE_CHECKING:
    from .quantizing import QuantizationTask


def quantization_key(work: QuantizationTask) -> str:
    """SHA-256 over the model, the samples, the options and the versions of all that took part."""
    parts = [
        __version__,
        digest_of_code(FileDigests(None)),
        describe_machine(),
        *(f"{name}={version}" for name, version in sorted(packages().items())),
        *(f"{file.name}:{sha256_of(file)}" for file in list_model_files(work.parent)),
        *(str(spec) for spec in work.signature.inputs),
        work.quantizer.NAME,
        work.consumer,
        str(work.method),
        *sorted(work.keep),
        work.calibration.record.digest,
    ]
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


class CalibrationCache:
    """Quantizers' results by key. `model` is whose they are, as `modelc cache ls` shows it."""

    def __init__(self, store: ResultStore, model: str = "") -> None:
        self._store = store
        self._model = model

    def take(self, key: str, folder: Path) -> Quantized | None:
        """Copy the entry's model into `folder`; None where there is no entry that is right."""
        for stored in self._store.entries(key):
            found = stored.entry.calibrated
            if found is not None and self._store.take(stored, folder):
                return Quantized(
                    path=folder / found.model,
                    versions=found.versions,
                    options=found.options,
                    notes=found.notes,
                )
        return None

    def keep(self, key: str, result: Quantized, what: str = "") -> None:
        """Store a result; where the folder cannot be written, it is not."""
        files = list_model_files(result.path)
        calibrated = CachedQuantization(
            model=result.path.name,
            versions=dict(result.versions),
            options=dict(result.options),
            notes=result.notes,
        )
        entry = CacheEntry(
            key=key,
            model=self._model,
            artifact=what,
            files=tuple(record_of(file) for file in files),
            calibrated=calibrated,
        )
        self._store.put(entry, {file.name: file for file in files})
