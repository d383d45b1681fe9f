"""Where samples come from: a folder of files, WebDataset shards, a loader, or synthetic draws."""

from __future__ import annotations

import io
import os
import random
import shutil
import sys
import tarfile
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath

from ..core.contract import Feed
from ..core.errors import first_line
from ..core.nested_values import wrap_loader_errors
from .calibration_report import FindingKind
from .feed_form import FeedForm
from .sample_content import SampleContent, SampleError, make_content
from .sample_formats import IMAGE_GROUP, SHARD_SUFFIX, ImageReaders, file_group


@dataclass(frozen=True, kw_only=True)
class FolderListing:
    """The sample files below a folder by kind, each sorted, and the kinds of other files."""

    root: Path
    groups: dict[str, list[Path]]
    skip_counts: Counter[str] = field(default_factory=Counter)

    @property
    def main(self) -> str:
        """The kind with the most files, images first on ties; empty if there are none."""
        order = sorted(self.groups, key=lambda kind: (-len(self.groups[kind]), kind != IMAGE_GROUP))
        return next(iter(order), "")

    @property
    def others(self) -> dict[str, int]:
        """The unused kinds, with their numbers of files."""
        return {kind: len(found) for kind, found in self.groups.items() if kind != self.main}


def list_sample_files(root: Path) -> FolderListing:
    """List the sample files of a folder and its subfolders, or the one file.

    Hidden files and folders are ignored; symbolic links are followed, each folder once.
    """
    listing = FolderListing(root=root, groups={})
    for path in [root] if root.is_file() else _walk_files(root, listing.skip_counts):
        group = file_group(path.suffix)
        if group:
            listing.groups.setdefault(group, []).append(path)
        else:
            listing.skip_counts[path.suffix.lower() or "without suffix"] += 1
    return listing


def _walk_files(root: Path, skip_counts: Counter[str]) -> Iterator[Path]:
    """Yield files in sorted order, those of a folder before its subfolders."""
    seen: set[Path] = set()

    def count_unreadable(_: OSError) -> None:
        skip_counts["unreadable folders"] += 1

    for place, folders, names in os.walk(root, onerror=count_unreadable, followlinks=True):
        real = Path(place).resolve()
        if real in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.startswith("."):
                skip_counts["hidden"] += 1
            elif Path(place, name).exists() and not Path(place, name).is_file():
                skip_counts["named pipes and devices"] += 1
            else:
                yield Path(place, name)


class FolderSource:
    """Sample files of one kind: a file is a sample, or a batch of samples."""

    kind = "folder"

    def __init__(self, listing: FolderListing, names: Sequence[str], images: ImageReaders) -> None:
        self.skip_counts = listing.skip_counts
        self._root = listing.root
        self._files = listing.groups.get(listing.main, [])
        self._names = names
        self._images = images

    def __len__(self) -> int:
        return len(self._files)

    def name(self, place: int) -> str:
        """Return the path relative to the folder, or the name of a single file."""
        path = self._files[place]
        return path.name if path == self._root else path.relative_to(self._root).as_posix()

    def read(self, place: int) -> SampleContent:
        """Return the file's content.

        Raises:
            SampleError: it cannot be read, or its arrays do not match the inputs' names.
        """
        path = self._files[place]
        found = self._images.any_reader(path.suffix, self._names)(path)
        return make_content(found.value, self._names, found.look)


# WebDataset shards: `.tar` files whose members are grouped by key, read in place.
#
# `0001.jpg` and `0001.json` are one group; `0001.x.npy` holds the input `x` of it. Members are
# found by one walk over the headers and read from their offsets: nothing is extracted.


_LARGEST = 2 * 10**9  # bytes of a member, which is read into memory


@dataclass(frozen=True, slots=True)
class _ShardMember:
    """A usable member: the position of its bytes, and its input and format."""

    field: str  # the input's name; empty if the member's name has none
    suffix: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class _ShardGroup:
    """One sample: its key and members in a shard. `broken` says why the shard ends here."""

    shard: Path
    key: str
    members: tuple[_ShardMember, ...]
    broken: str = ""


class ShardSource:
    """The groups of one or several shards, in order."""

    kind = "shards"

    def __init__(self, shards: Sequence[Path], names: Sequence[str], images: ImageReaders) -> None:
        self.skip_counts: Counter[str] = Counter()
        self._names = names
        self._images = images
        self._groups = [group for shard in shards for group in self._index(shard)]

    def __len__(self) -> int:
        return len(self._groups)

    def name(self, place: int) -> str:
        """Return the shard's name and the key."""
        group = self._groups[place]
        return f"{group.shard.name}/{group.key}" if group.key else group.shard.name

    def read(self, place: int) -> SampleContent:
        """Return the arrays of a group's members.

        Raises:
            SampleError: a member cannot be read, or two of them give the same input.
        """
        group = self._groups[place]
        if group.broken:
            raise SampleError(FindingKind.UNREADABLE, group.broken)
        if len(group.members) == 1 and not group.members[0].field:
            return self._read_member(group, group.members[0], self._names)
        return self._join_members(group)

    def _join_members(self, group: _ShardGroup) -> SampleContent:
        """Join members named for inputs and at most one other, for the remaining input."""
        named = [member.field for member in group.members if member.field]
        rest = [name for name in self._names if name not in named]
        if len(group.members) - len(named) > (1 if rest else 0):
            names = ", ".join(group.key + _member_tail(member) for member in group.members)
            raise SampleError(FindingKind.NAMES, f"has several members for one input: {names}")
        contents = [
            self._read_member(group, member, [member.field] if member.field else rest)
            for member in group.members
        ]
        parts = {name: array for one in contents for name, array in one.parts.items()}
        look = next((one.look for one in contents if one.look), None)
        return make_content(parts, self._names, look)

    def _read_member(
        self, group: _ShardGroup, member: _ShardMember, names: Sequence[str]
    ) -> SampleContent:
        if member.size > _LARGEST:
            raise SampleError(
                FindingKind.UNREADABLE,
                f"has a member of {member.size:,} bytes; the limit is {_LARGEST:,}",
            )
        with group.shard.open("rb") as stream:
            stream.seek(member.start)
            blob = io.BytesIO(stream.read(member.size))
        found = self._images.any_reader(member.suffix, names)(blob)
        return make_content(found.value, names, found.look)

    def _index(self, shard: Path) -> Iterator[_ShardGroup]:
        """Yield the shard's groups in the order of their first members."""
        groups: dict[str, list[_ShardMember]] = {}
        broken = ""
        try:
            with tarfile.open(shard, "r:") as archive:
                for info in archive:
                    archive.members = []  # type: ignore[attr-defined]  # free the list of all members
                    self._add_member(info, groups)
                broken = _explain_truncation(shard, archive.offset)
        except (tarfile.TarError, OSError, EOFError) as error:
            broken = f"cannot be read to its end: {type(error).__name__}: {first_line(error)}"
        for key, members in groups.items():
            if members:
                yield _ShardGroup(shard, key, tuple(members))
        if broken:
            yield _ShardGroup(shard, "", (), broken)

    def _add_member(self, info: tarfile.TarInfo, groups: dict[str, list[_ShardMember]]) -> None:
        path = PurePosixPath(info.name)
        if info.isdir():
            return
        if not info.isreg() or info.issparse() or path.name.startswith("."):
            self.skip_counts["hidden" if path.name.startswith(".") else "links"] += 1
            return
        stem, _, tail = path.name.partition(".")
        members = groups.setdefault((path.parent / stem).as_posix(), [])
        field, _, last = tail.rpartition(".")
        usable = file_group(f".{last}") not in ("", SHARD_SUFFIX)
        if usable and field in ("", *self._names):
            members.append(_ShardMember(field, f".{last}", info.offset_data, info.size))
        else:
            self.skip_counts[f".{tail}" if tail else "without suffix"] += 1


def _explain_truncation(shard: Path, offset: int) -> str:
    """Say why the archive is truncated at `offset`; tarfile stops silently."""
    with shard.open("rb") as stream:
        stream.seek(offset)
        block = stream.read(tarfile.BLOCKSIZE)
    whole = len(block) in (0, tarfile.BLOCKSIZE) and not any(block)
    return "" if whole else f"cannot be read to its end: no header at byte {offset:,}"


def _member_tail(member: _ShardMember) -> str:
    return f".{member.field}{member.suffix}" if member.field else member.suffix


# Loaders: any iterable of feeds, such as a DataLoader, a list or a generator.
#
# Samples are written to a temporary folder first. A loader may shuffle, augment, or end after one
# pass; calibration needs the same samples several times, one at a time in memory.


POOL_FACTOR = 16  # a random selection draws from the first 16 * limit samples


class LoaderSource:
    """A loader's samples. The temporary folder is deleted with the source or by `close()`."""

    kind = "loader"
    skip_counts: Mapping[str, int] = {}

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
        """Store `limit` samples: the first, or with a seed random ones of the first 16 limits."""
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
        """Yield each sample with its name; split batches, yield errors."""
        for number, item in enumerate(wrap_loader_errors(self._items, self._spec)):
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
        # by position: an input may have the name of a NumPy parameter
        np.savez(self._path(place), *(content.parts[name] for name in self._form.names))

    def __len__(self) -> int:
        return len(self._names)

    def name(self, place: int) -> str:
        """Return the item's number and row."""
        return self._names[place]

    def read(self, place: int) -> SampleContent:
        """Return the sample as the loader yielded it.

        Raises:
            SampleError: the item does not match the inputs.
        """
        import numpy as np

        fault = self._faults.get(place)
        if fault is not None:
            raise fault
        with np.load(self._path(place), allow_pickle=False) as archive:
            found = [archive[f"arr_{index}"] for index in range(len(self._form.names))]
        parts: Feed = dict(zip(self._form.names, found, strict=True))
        return SampleContent(parts=parts, surplus=self._surplus)


# Samples that are no data: drawn from the signature, marked as such wherever they are used.


class SyntheticSource:
    """Synthetic samples, drawn from the signature each time they are read."""

    kind = "random"
    skip_counts: Mapping[str, int] = {}

    def __init__(self, draw: Callable[[int], Feed], count: int) -> None:
        self._draw = draw
        self._count = count

    def __len__(self) -> int:
        return self._count

    def name(self, place: int) -> str:
        """Return the number of the draw."""
        return f"drawn {place}"

    def read(self, place: int) -> SampleContent:
        """Draw the sample."""
        return SampleContent(parts=self._draw(place))
