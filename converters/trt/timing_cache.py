"""Timings of kernels that are kept between builds: one file a GPU and TensorRT version.

Several builds may share a file: each reads it, builds, and adds its own timings to what is on
disk by then, under a lock. A file that does not fit is never an error; it only saves no time.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.atomic_write import atomic_write
from .engine_options import EngineOptions
from .trt_installation import CudaDevice

if TYPE_CHECKING:
    import tensorrt

CACHE_OFF = "off"
LOCK_SECONDS = 60.0


def cache_file_for(options: EngineOptions, device: CudaDevice | None, version: str) -> str:
    """The file to use; empty where there is to be none.

    Args:
        options: `timing_cache` is a file, `off` or empty; `cache_folder` holds the others.
        device: the GPU that is built for.
        version: TensorRT's.
    """
    if options.timing_cache:
        return "" if options.timing_cache == CACHE_OFF else options.timing_cache
    if not options.cache_folder or device is None:
        return ""
    gpu = re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-")
    major, minor = device.capability
    name = f"{gpu}-sm{major}{minor}-tensorrt-{version}.timing"
    return str(Path(options.cache_folder) / name)


def load_timing_cache(config: tensorrt.IBuilderConfig, path: Path) -> tuple[str, ...]:
    """Give the builder the timings of the file, or an empty cache; say where they do not fit."""
    notes: tuple[str, ...] = ()
    data = _read_bytes(path)
    if data:
        cache = _create_cache(config, data)
        if cache is not None and config.set_timing_cache(cache, ignore_mismatch=False):
            return ()
        notes = (f"the timing cache {path.name} is of another GPU or version: not used",)
    empty = _create_cache(config, b"")
    if empty is None or not config.set_timing_cache(empty, ignore_mismatch=False):
        return (*notes, "TensorRT took no timing cache")
    return notes


def save_timing_cache(
    config: tensorrt.IBuilderConfig, path: Path, *, patience: float = LOCK_SECONDS
) -> tuple[str, ...]:
    """Add the builder's timings to the file as it is now; say why where that cannot be done.

    Args:
        config: after the build.
        path: the file.
        patience: seconds to wait for another build that writes it.
    """
    from filelock import FileLock, Timeout

    cache: tensorrt.ITimingCache | None = config.get_timing_cache()
    if cache is None:
        return ()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f"{path.name}.lock"), timeout=patience):
            return _merge_timings(config, cache, path)
    except Timeout:
        return (f"the timing cache {path.name} is in use by another build: not written",)
    except OSError as error:
        return (f"the timing cache {path.name} cannot be written: {error.strerror}",)


def _merge_timings(
    config: tensorrt.IBuilderConfig, cache: tensorrt.ITimingCache, path: Path
) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    data = _read_bytes(path)
    if data:
        there = _create_cache(config, data)
        if there is None or not cache.combine(there, ignore_mismatch=False):
            notes = (f"the timing cache {path.name} did not fit this GPU and version: replaced",)
    blob: tensorrt.IHostMemory | None = cache.serialize()
    if blob is None:
        return (*notes, f"the timing cache {path.name} was not written: TensorRT gave none")
    atomic_write(path, bytes(blob))
    return notes


def _read_bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _create_cache(config: tensorrt.IBuilderConfig, data: bytes) -> tensorrt.ITimingCache | None:
    """The cache, or None where TensorRT does not know the bytes for one."""
    try:
        cache: tensorrt.ITimingCache | None = config.create_timing_cache(data)
    except (RuntimeError, TypeError):  # the bindings raise where the library gives a null pointer
        return None
    return cache
