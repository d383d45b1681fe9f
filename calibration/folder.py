"""A folder of sample files, or one file: found in sorted order, read one at a time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .assume import ImageReaders
from .content import SampleContent, make_content
from .formats import IMAGE_GROUP, file_group


@dataclass(frozen=True, kw_only=True)
class FolderListing:
    """The files below a folder by kind, each in sorted order, and what is none."""

    root: Path
    groups: dict[str, list[Path]]
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def main(self) -> str:
        """The kind with the most files, images before others; empty where there are none."""
        order = sorted(self.groups, key=lambda kind: (-len(self.groups[kind]), kind != IMAGE_GROUP))
        return next(iter(order), "")

    @property
    def others(self) -> dict[str, int]:
        """The kinds that are not used, with how many files they have."""
        return {kind: len(found) for kind, found in self.groups.items() if kind != self.main}


def list_sample_files(root: Path) -> FolderListing:
    """Every sample file of a folder and its subfolders, or the one file.

    Hidden files and folders are passed over; symbolic links are followed, each folder once.
    """
    listing = FolderListing(root=root, groups={})
    for path in [root] if root.is_file() else _walk_files(root, listing.skipped):
        group = file_group(path.suffix)
        if group:
            listing.groups.setdefault(group, []).append(path)
        else:
            listing.skipped[path.suffix.lower() or "without suffix"] += 1
    return listing


def _walk_files(root: Path, skipped: Counter[str]) -> Iterator[Path]:
    """Files in sorted order, those of a folder before those of its subfolders."""
    seen: set[Path] = set()

    def count_unreadable(_: OSError) -> None:
        skipped["unreadable folders"] += 1

    for place, folders, names in os.walk(root, onerror=count_unreadable, followlinks=True):
        real = Path(place).resolve()
        if real in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.startswith("."):
                skipped["hidden"] += 1
            elif Path(place, name).exists() and not Path(place, name).is_file():
                skipped["named pipes and devices"] += 1
            else:
                yield Path(place, name)


class FolderSource:
    """Sample files of one kind: a file is a sample, or a batch of samples."""

    kind = "folder"

    def __init__(self, listing: FolderListing, names: Sequence[str], images: ImageReaders) -> None:
        self.skipped = listing.skipped
        self._root = listing.root
        self._files = listing.groups.get(listing.main, [])
        self._names = names
        self._images = images

    def __len__(self) -> int:
        return len(self._files)

    def name(self, place: int) -> str:
        """The path below the folder; of a single file its name."""
        path = self._files[place]
        return path.name if path == self._root else path.relative_to(self._root).as_posix()

    def read(self, place: int) -> SampleContent:
        """What the file holds.

        Raises:
            SampleError: it cannot be read, or is not of the inputs' names.
        """
        path = self._files[place]
        found = self._images.any_reader(path.suffix, self._names)(path)
        return make_content(found.value, self._names, found.look)
