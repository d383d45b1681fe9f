"""Kernel timings between builds: one file for each GPU and TensorRT version.

Several builds may share a file: each reads it, builds, and merges its timings into the file on disk
under a lock. A file of another GPU or version is not an error; it only saves no time.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.atomic_write import atomic_write
from .trt_installation import CudaDevice

if TYPE_CHECKING:
    import tensorrt

CACHE_OFF = "off"
LOCK_SECONDS = 60.0


def cache_file_for(option: str, folder: Path | None, built_for: str, version: str) -> str:
    """Return the file to use; empty for none.

    Args:
        option: a file, `off`, or empty for a file of the folder.
        folder: holds one file for each GPU and library version; None if there is no cache.
        built_for: the GPU to build for, as `device_key` writes it, or the compute capabilities.
        version: the library with its version.
    """
    if option or folder is None:
        return "" if option == CACHE_OFF else option
    return str(folder / f"{built_for}-{version}.timing")


def device_key(device: CudaDevice) -> str:
    """Return the name and compute capability of a GPU as a part of a file name."""
    gpu = re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-")
    major, minor = device.capability
    return f"{gpu}-sm{major}{minor}"


def load_timing_cache(config: tensorrt.IBuilderConfig, path: Path) -> tuple[str, ...]:
    """Set the builder's cache from the file, else an empty one; return notes."""
    notes: tuple[str, ...] = ()
    if path.is_file():
        cache = _create_cache(config, path.read_bytes())
        if cache is not None and config.set_timing_cache(cache, ignore_mismatch=False):
            return ()
        notes = (f"the timing cache {path.name} is of another GPU or TensorRT: not used",)
    empty = _create_cache(config, b"")
    if empty is None or not config.set_timing_cache(empty, ignore_mismatch=False):
        return (*notes, "TensorRT does not accept an empty timing cache")
    return notes


def save_timing_cache(
    config: tensorrt.IBuilderConfig, path: Path, *, timeout: float = LOCK_SECONDS
) -> tuple[str, ...]:
    """Merge the builder's timings into the file; return notes on failure.

    `timeout` is how many seconds to wait for another build that writes the file.
    """
    from filelock import FileLock, Timeout

    cache: tensorrt.ITimingCache | None = config.get_timing_cache()
    if cache is None:
        return ()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f"{path.name}.lock"), timeout=timeout):
            return _merge_timings(config, cache, path)
    except Timeout:
        return (f"the timing cache {path.name} is in use by another build: not written",)
    except OSError as error:
        return (f"the timing cache {path.name} cannot be written: {error.strerror}",)


def _merge_timings(
    config: tensorrt.IBuilderConfig, cache: tensorrt.ITimingCache, path: Path
) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    if path.is_file():
        on_disk = _create_cache(config, path.read_bytes())
        if on_disk is None or not cache.combine(on_disk, ignore_mismatch=False):
            notes = (f"the timing cache {path.name} was of another GPU or TensorRT: replaced",)
    blob: tensorrt.IHostMemory | None = cache.serialize()
    if blob is None:
        return (*notes, f"the timing cache {path.name} was not written: serialize() failed")
    atomic_write(path, bytes(blob))
    return notes


def _create_cache(config: tensorrt.IBuilderConfig, data: bytes) -> tensorrt.ITimingCache | None:
    """Create a cache; None if TensorRT does not accept the bytes."""
    try:
        cache: tensorrt.ITimingCache | None = config.create_timing_cache(data)
    except (RuntimeError, TypeError):  # the bindings raise where the library gives a null pointer
        return None
    return cache
