"""WebDataset shards: `.tar` files whose members are grouped by key, read in place.

`0001.jpg` and `0001.json` are one group; `0001.x.npy` holds the input `x` of it. Members are found
by one walk over the headers and read from their offsets: nothing is extracted.
"""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..core.errors import first_line
from .assume import ImageReaders
from .content import SampleContent, SampleError, make_content
from .findings import FindingKind
from .formats import SHARD_SUFFIX, file_group

# WebDataset shards: `.tar` files whose members are grouped by key, read in place.
#
# `0001.jpg` and `0001.json` are one group; `0001.x.npy` holds the input `x` of it. Members are
# found by one walk over the headers and read from their offsets: nothing is extracted.


_LARGEST = 2 * 10**9  # bytes of a member: it is read into memory whole


@dataclass(frozen=True, slots=True)
class _ShardMember:
    """One member of use: where its bytes lie, and what it holds."""

    field: str  # the input's name; empty where the member alone says it
    suffix: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class _ShardGroup:
    """One sample: its key and its members in a shard. `broken` is why the shard ends here."""

    shard: Path
    key: str
    members: tuple[_ShardMember, ...]
    broken: str = ""


class ShardSource:
    """The groups of one or several shards, in order."""

    kind = "shards"

    def __init__(self, shards: Sequence[Path], names: Sequence[str], images: ImageReaders) -> None:
        self.skipped: Counter[str] = Counter()
        self._names = names
        self._images = images
        self._groups = [group for shard in shards for group in self._index(shard)]

    def __len__(self) -> int:
        return len(self._groups)

    def name(self, place: int) -> str:
        """The shard and the key in it."""
        group = self._groups[place]
        return f"{group.shard.name}/{group.key}" if group.key else group.shard.name

    def read(self, place: int) -> SampleContent:
        """The members of a group, together.

        Raises:
            SampleError: a member cannot be read, or two of them give the same input.
        """
        group = self._groups[place]
        if group.broken:
            raise SampleError(FindingKind.UNREADABLE, group.broken)
        if len(group.members) == 1 and not group.members[0].field:
            return self._alone(group, group.members[0], self._names)
        return self._join_members(group)

    def _join_members(self, group: _ShardGroup) -> SampleContent:
        """Members that say their input, and at most one that does not, for the input left over."""
        told = [member.field for member in group.members if member.field]
        rest = [name for name in self._names if name not in told]
        if len(group.members) - len(told) > (1 if rest else 0):
            names = ", ".join(group.key + _member_tail(member) for member in group.members)
            raise SampleError(FindingKind.NAMES, f"has more than one member for an input: {names}")
        contents = [
            self._alone(group, member, [member.field] if member.field else rest)
            for member in group.members
        ]
        parts = {name: array for one in contents for name, array in one.parts.items()}
        look = next((one.look for one in contents if one.look), None)
        return make_content(parts, self._names, look)

    def _alone(
        self, group: _ShardGroup, member: _ShardMember, names: Sequence[str]
    ) -> SampleContent:
        if member.size > _LARGEST:
            raise SampleError(FindingKind.UNREADABLE, f"has a member of {member.size:,} bytes")
        with group.shard.open("rb") as stream:
            stream.seek(member.start)
            blob = io.BytesIO(stream.read(member.size))
        found = self._images.any_reader(member.suffix, names)(blob)
        return make_content(found.value, names, found.look)

    def _index(self, shard: Path) -> Iterator[_ShardGroup]:
        """The shard's groups, in the order of their first members."""
        groups: dict[str, list[_ShardMember]] = {}
        broken = ""
        try:
            with tarfile.open(shard, "r:") as archive:
                for info in archive:
                    archive.members = []  # type: ignore[attr-defined]  # it would keep them all
                    self._enter(info, groups)
                broken = _explain_truncation(shard, archive.offset)
        except (tarfile.TarError, OSError, EOFError) as error:
            broken = f"cannot be read to its end: {type(error).__name__}: {first_line(error)}"
        for key, members in groups.items():
            if members:
                yield _ShardGroup(shard, key, tuple(members))
        if broken:
            yield _ShardGroup(shard, "", (), broken)

    def _enter(self, info: tarfile.TarInfo, groups: dict[str, list[_ShardMember]]) -> None:
        path = PurePosixPath(info.name)
        if info.isdir():
            return
        if not info.isreg() or info.issparse() or path.name.startswith("."):
            self.skipped["hidden" if path.name.startswith(".") else "links"] += 1
            return
        stem, _, tail = path.name.partition(".")
        members = groups.setdefault((path.parent / stem).as_posix(), [])
        field, _, last = tail.rpartition(".")
        usable = file_group(f".{last}") not in ("", SHARD_SUFFIX)
        if usable and field in ("", *self._names):
            members.append(_ShardMember(field, f".{last}", info.offset_data, info.size))
        else:
            self.skipped[f".{tail}" if tail else "without suffix"] += 1


def _explain_truncation(shard: Path, offset: int) -> str:
    """Why the archive is not at its end at `offset`, where tarfile, silent on it, stopped."""
    with shard.open("rb") as stream:
        stream.seek(offset)
        block = stream.read(tarfile.BLOCKSIZE)
    whole = len(block) in (0, tarfile.BLOCKSIZE) and not any(block)
    return "" if whole else f"cannot be read to its end: no header at byte {offset:,}"


def _member_tail(member: _ShardMember) -> str:
    return f".{member.field}{member.suffix}" if member.field else member.suffix
