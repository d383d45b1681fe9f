"""Puts, takes and collects at random in one store, until it is killed."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from modelc.core.events import Event, Noted
from modelc.core.records import record_of
from modelc.pipeline.cache.result_store import ResultStore, collect_garbage
from modelc.pipeline.cache.store_layout import CachedQuantization, CacheEntry


def refuse(event: Event) -> None:
    """Nothing may be found wrong while others write: a fault ends this process with 1."""
    if isinstance(event, Noted) and "incomplete" not in event.text:
        raise SystemExit(event.text)


def main(folder: Path, seed: str) -> None:
    """Work on a few keys, whose bytes follow from the key."""
    chance = random.Random(seed)
    store = ResultStore(folder, tell=refuse)
    calibrated = CachedQuantization(model="model.fake", versions={}, options={}, notes=())
    with tempfile.TemporaryDirectory() as aside:
        path = Path(aside) / "model.fake"
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            number = chance.randrange(6)
            key = f"{number:064x}"
            path.write_bytes(bytes([number]) * (1 << 21))
            files = (record_of(path),)
            entry = CacheEntry(
                key=key, model="w", artifact="fake", files=files, calibrated=calibrated
            )
            store.put(entry, {"model.fake": path})
            for stored in store.entries(key):
                store.take(stored, Path(aside) / "taken")
            if chance.random() < 0.2:
                collect_garbage(store.layout, limit=6 << 20)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
