"""Collects garbage less often while frameworks build graphs out of a million small objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Young objects before a collection, and the rarity of the older generations. Python's own
# (700, 10, 10) costs an eighth of a ResNet-50 export (benchmarks/export.py); never collecting
# gains no more than this.
_GC_THRESHOLD = (100_000, 50, 50)


@contextmanager
def relax_gc() -> Iterator[None]:
    """Raise the collector's thresholds for the block."""
    before = gc.get_threshold()
    gc.set_threshold(*_GC_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
