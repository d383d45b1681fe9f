"""Samples from the user's own code: any iterable of feeds, as a DataLoader, a list or a generator.

What is used is written to a private folder first. A loader may shuffle, augment, or end after one
pass; calibration needs the same samples several times, one at a time in memory.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from ..core.contract import Feed
from ..core.loading import watched
from .content import SampleContent, SampleError, make_content
from .form import FeedForm

# Samples from the user's own code: any iterable of feeds, as a DataLoader, a list or a generator.
#
# What is used is written to a private folder first. A loader may shuffle, augment, or end after one
# pass; calibration needs the same samples several times, one at a time in memory.


POOL_FACTOR = 16  # a random selection is made among the first 16 times as many samples as it needs


class LoaderSource:
    """The samples of a loader, spooled. The folder goes with the source, or at `close()`."""

    kind = "loader"
    skipped: Mapping[str, int] = {}

    def __init__(self, spec: str, items: Iterable[object], form: FeedForm) -> None:
        self._spec = spec
        self._items = items
        self._form = form
        self._folder = Path(tempfile.mkdtemp(prefix="modelc-calibration-"))
        self.close = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._names: list[str] = []
        self._faults: dict[int, SampleError] = {}
        self._surplus: tuple[str, ...] = ()

    def spool(self, limit: int, seed: int | None = None) -> None:
        """Take `limit` samples: the first, or with a seed random ones of the first 16 * `limit`."""
        pool = min(limit if seed is None else limit * POOL_FACTOR, sys.maxsize)
        chance = random.Random(seed)
        for index, (name, found) in enumerate(islice(self._samples(), pool)):
            place = index if index < limit else chance.randint(0, index)  # reservoir sampling
            if place < limit:
                self._keep(place, name, found)

    def _keep(self, place: int, name: str, found: SampleContent | SampleError) -> None:
        if place == len(self._names):
            self._names.append(name)
        self._names[place] = name
        self._faults.pop(place, None)
        if isinstance(found, SampleError):
            self._faults[place] = found
        else:
            self._write(place, found)

    def _samples(self) -> Iterator[tuple[str, SampleContent | SampleError]]:
        """Each sample with its name; a batch is cut, what does not fit is told later."""
        for number, item in enumerate(watched(self._items, self._spec)):
            name = f"{self._spec} item {number}"
            try:
                content = make_content(item, self._form.names)
                rows = self._form.rows(content.parts)
            except SampleError as error:
                yield name, error
                continue
            for index, row in enumerate(rows):
                one = SampleContent(parts=row, surplus=content.surplus)
                yield (name if len(rows) == 1 else f"{name} row {index}"), one

    def _path(self, place: int) -> Path:
        return Path(self._folder, f"{place}.npz")

    def _write(self, place: int, content: SampleContent) -> None:
        import numpy as np

        self._surplus = tuple(dict.fromkeys((*self._surplus, *content.surplus)))
        # by position: numpy has parameters of its own, which an input may be called like
        np.savez(self._path(place), *(content.parts[name] for name in self._form.names))

    def __len__(self) -> int:
        return len(self._names)

    def name(self, place: int) -> str:
        """The item's number, and the row in it."""
        return self._names[place]

    def read(self, place: int) -> SampleContent:
        """The sample as the loader gave it.

        Raises:
            SampleError: the item held something else than the inputs.
        """
        import numpy as np

        fault = self._faults.get(place)
        if fault is not None:
            raise fault
        with np.load(self._path(place), allow_pickle=False) as archive:
            found = [archive[f"arr_{index}"] for index in range(len(self._form.names))]
        parts: Feed = dict(zip(self._form.names, found, strict=True))
        return SampleContent(parts=parts, surplus=self._surplus)
