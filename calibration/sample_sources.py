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

from ..core.contract import Array, Feed
from ..core.errors import first_line
from ..core.nested_values import wrap_loader_errors
from .calibration_report import FindingKind
from .feed_form import FeedForm
from .sample_content import SampleContent, SampleError, make_content
from .sample_formats import IMAGE_GROUP, SHARD_SUFFIX, ImageReaders, file_group


@dataclass(frozen=True, kw_only=True)
class SampleSource:
    """Samples in places: files, groups of archive members, items of a loader, or draws.

    `kind` is folder, shards, loader or random. `name` returns the name of a place in findings;
    `read` returns its arrays, or raises SampleError. `skip_counts` counts ignored files by kind.
    `close` deletes temporary files.
    """

    kind: str
    count: int
    name: Callable[[int], str]
    read: Callable[[int], SampleContent]
    skip_counts: Mapping[str, int] = field(default_factory=dict)
    close: Callable[[], object] = lambda: None


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

    def name(self, path: Path) -> str:
        """Return the path relative to the folder, or the name of a single file."""
        return path.name if path == self.root else path.relative_to(self.root).as_posix()


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

    def count_folder(_: OSError) -> None:
        skip_counts["unreadable folders"] += 1

    for place, folders, names in os.walk(root, onerror=count_folder, followlinks=True):
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


def open_folder(listing: FolderListing, names: Sequence[str], images: ImageReaders) -> SampleSource:
    """Open the sample files of the main kind: a file is a sample, or a batch of samples."""
    files = listing.groups.get(listing.main, [])
    return SampleSource(
        kind="folder",
        count=len(files),
        name=lambda place: listing.name(files[place]),
        read=lambda place: images.read(files[place], files[place].suffix, names),
        skip_counts=listing.skip_counts,
    )


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

    @property
    def name(self) -> str:
        """The shard's name and the key."""
        return f"{self.shard.name}/{self.key}" if self.key else self.shard.name

    def read(self, names: Sequence[str], images: ImageReaders) -> SampleContent:
        """Return the arrays of the members: named for inputs, and one for the remaining input.

        Raises:
            SampleError: a member cannot be read, or two of them give the same input.
        """
        if self.broken:
            raise SampleError(FindingKind.UNREADABLE, self.broken)
        if len(self.members) == 1 and not self.members[0].field:
            return self._read_member(self.members[0], names, images)
        named = [member.field for member in self.members if member.field]
        rest = [name for name in names if name not in named]
        if len(self.members) - len(named) > (1 if rest else 0):
            members = ((self.key, one.field, one.suffix[1:]) for one in self.members)
            files = ", ".join(".".join(filter(None, parts)) for parts in members)
            raise SampleError(FindingKind.NAMES, f"has several members for one input: {files}")
        contents = [
            self._read_member(member, [member.field] if member.field else rest, images)
            for member in self.members
        ]
        parts = {name: array for one in contents for name, array in one.parts.items()}
        look = next((one.look for one in contents if one.look), None)
        return make_content(parts, names, look)

    def _read_member(
        self, member: _ShardMember, names: Sequence[str], images: ImageReaders
    ) -> SampleContent:
        if member.size > _LARGEST:
            raise SampleError(
                FindingKind.UNREADABLE,
                f"has a member of {member.size:,} bytes; the limit is {_LARGEST:,}",
            )
        with self.shard.open("rb") as stream:
            stream.seek(member.start)
            blob = io.BytesIO(stream.read(member.size))
        return images.read(blob, member.suffix, names)


def open_shards(shards: Sequence[Path], names: Sequence[str], images: ImageReaders) -> SampleSource:
    """Open the groups of one or several shards, in order."""
    skip_counts: Counter[str] = Counter()
    groups = [group for shard in shards for group in _index_shard(shard, names, skip_counts)]
    return SampleSource(
        kind="shards",
        count=len(groups),
        name=lambda place: groups[place].name,
        read=lambda place: groups[place].read(names, images),
        skip_counts=skip_counts,
    )


def _index_shard(
    shard: Path, names: Sequence[str], skip_counts: Counter[str]
) -> Iterator[_ShardGroup]:
    """Yield the shard's groups in the order of their first members."""
    groups: dict[str, list[_ShardMember]] = {}
    broken = ""
    try:
        with tarfile.open(shard, "r:") as archive:
            for info in archive:
                archive.members = []  # type: ignore[attr-defined]  # free the list of all members
                if not info.isdir():
                    _add_member(info, groups, names, skip_counts)
            broken = _explain_truncation(shard, archive.offset)
    except (tarfile.TarError, OSError, EOFError) as error:
        broken = f"cannot be read to its end: {type(error).__name__}: {first_line(error)}"
    for key, members in groups.items():
        if members:
            yield _ShardGroup(shard, key, tuple(members))
    if broken:
        yield _ShardGroup(shard, "", (), broken)


def _add_member(
    info: tarfile.TarInfo,
    groups: dict[str, list[_ShardMember]],
    names: Sequence[str],
    skip_counts: Counter[str],
) -> None:
    path = PurePosixPath(info.name)
    if not info.isreg() or info.issparse() or path.name.startswith("."):
        skip_counts["hidden" if path.name.startswith(".") else "links"] += 1
        return
    stem, _, tail = path.name.partition(".")
    members = groups.setdefault((path.parent / stem).as_posix(), [])
    field, _, last = tail.rpartition(".")
    usable = file_group(f".{last}") not in ("", SHARD_SUFFIX)
    if usable and field in ("", *names):
        members.append(_ShardMember(field, f".{last}", info.offset_data, info.size))
    else:
        skip_counts[f".{tail}" if tail else "without suffix"] += 1


def _explain_truncation(shard: Path, offset: int) -> str:
    """Say why the archive is truncated at `offset`; tarfile stops silently."""
    with shard.open("rb") as stream:
        stream.seek(offset)
        block = stream.read(tarfile.BLOCKSIZE)
    whole = len(block) in (0, tarfile.BLOCKSIZE) and not any(block)
    return "" if whole else f"cannot be read to its end: no header at byte {offset:,}"


# Loaders: any iterable of feeds, such as a DataLoader, a list or a generator.
#
# Samples are written to a temporary folder first. A loader may shuffle, augment, or end after one
# pass; calibration needs the same samples several times, one at a time in memory.


POOL_FACTOR = 16  # a random selection draws from the first 16 * limit samples


class ArraySpool:
    """Arrays by place in a temporary folder, deleted with the object or by `close()`."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="modelc-samples-"))
        self.close = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def write(self, place: int, arrays: Iterable[Array]) -> None:
        """Store the arrays of a place."""
        import numpy as np

        # by position: an input may have the name of a NumPy parameter
        np.savez(self._folder / f"{place}.npz", *arrays)

    def read(self, place: int) -> list[Array]:
        """Return the arrays of a place."""
        import numpy as np

        with np.load(self._folder / f"{place}.npz", allow_pickle=False) as archive:
            return [archive[f"arr_{index}"] for index in range(len(archive.files))]


def open_loader(
    spec: str, items: Iterable[object], form: FeedForm, limit: int, seed: int | None
) -> SampleSource:
    """Store `limit` samples: the first, or with a seed random ones of the first 16 limits."""
    spool = ArraySpool()
    names: list[str] = []
    faults: dict[int, SampleError] = {}
    surplus: dict[str, None] = {}
    pool = min(limit if seed is None else limit * POOL_FACTOR, sys.maxsize)
    chance = random.Random(seed)
    for index, (name, found) in enumerate(islice(_loader_samples(spec, items, form), pool)):
        place = index if index < limit else chance.randint(0, index)  # reservoir sampling
        if place >= limit:
            continue
        names[place : place + 1] = [name]
        faults.pop(place, None)
        if isinstance(found, SampleError):
            faults[place] = found
        else:
            surplus.update(dict.fromkeys(found.surplus))
            spool.write(place, [found.parts[part] for part in form.names])

    def read(place: int) -> SampleContent:
        if place in faults:
            raise faults[place]
        parts = dict(zip(form.names, spool.read(place), strict=True))
        return SampleContent(parts=parts, surplus=tuple(surplus))

    return SampleSource(
        kind="loader", count=len(names), name=names.__getitem__, read=read, close=spool.close
    )


def _loader_samples(
    spec: str, items: Iterable[object], form: FeedForm
) -> Iterator[tuple[str, SampleContent | SampleError]]:
    """Yield each sample with its name; split batches, yield errors."""
    for number, item in enumerate(wrap_loader_errors(items, spec)):
        name = f"{spec} item {number}"
        try:
            content = make_content(item, form.names)
            rows = form.rows(content.parts)
        except SampleError as error:
            yield name, error
            continue
        for index, row in enumerate(rows):
            one = SampleContent(parts=row, surplus=content.surplus)
            yield (name if len(rows) == 1 else f"{name} row {index}"), one


def draw_samples(draw: Callable[[int], Feed], count: int) -> SampleSource:
    """Return synthetic samples, drawn from the signature each time they are read."""
    return SampleSource(
        kind="random",
        count=count,
        name=lambda place: f"drawn {place}",
        read=lambda place: SampleContent(parts=draw(place)),
    )
