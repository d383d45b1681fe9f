"""Labelled samples from the user's own code, written aside once: loaders shuffle, or end."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UsageError
from ..core.loading import watched
from .content import SampleContent, SampleError
from .form import FeedForm
from .label_split import split_label

if TYPE_CHECKING:
    from ..core.contract import Array

# Labelled samples from the user's own code, written aside once: loaders shuffle, or end.


class LabelledLoader:
    """What a loader yields, an item a place. The folder goes with the source, or at `close()`.

    It is iterated once: eager and every artifact must be fed the same samples in the same order.
    """

    is_shared = False
    classes: tuple[str, ...] = ()
    skipped: Mapping[str, int] = {}

    def __init__(self, spec: str, form: FeedForm) -> None:
        self._spec = spec
        self._names = form.names
        self._folder = Path(tempfile.mkdtemp(prefix="modelc-labelled-"))
        self.close = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._count = 0

    def spool(self, items: Iterable[object], label: str | None) -> None:
        """Write every item aside.

        Raises:
            UsageError: the loader raised, or an item is no pair of inputs and label.
        """
        import numpy as np

        for item in watched(items, self._spec):
            try:
                content, found = split_label(item, self._names, label)
            except SampleError as error:
                hint = getattr(error, "hint", "yield pairs of inputs and label, or dicts with both")
                raise UsageError(f"{self.name(self._count)} {error.reason}", hint=hint) from error
            arrays = [content.parts[name] for name in self._names]
            np.savez(self._path(self._count), *arrays, found)  # by position: names may be any
            self._count += 1

    def _path(self, place: int) -> Path:
        return self._folder / f"{place}.npz"

    def __len__(self) -> int:
        return self._count

    def name(self, place: int) -> str:
        """The item's number."""
        return f"{self._spec} item {place}"

    def read(self, place: int) -> tuple[SampleContent, Array]:
        """The item as the loader gave it."""
        import numpy as np

        with np.load(self._path(place), allow_pickle=False) as archive:
            *parts, label = (archive[f"arr_{index}"] for index in range(len(self._names) + 1))
        return SampleContent(parts=dict(zip(self._names, parts, strict=True))), label
