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
from .assume import Images
from .content import Content, MisfitError, content_of
from .findings import Kind
from .formats import SHARD, group_of

_LARGEST = 2 * 10**9  # bytes of a member: it is read into memory whole


@dataclass(frozen=True, slots=True)
class _Member:
    """One member of use: where its bytes lie, and what it holds."""

    field: str  # the input's name; empty where the member alone says it
    suffix: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class _Group:
    """One sample: its key and its members in a shard. `broken` is why the shard ends here."""

    shard: Path
    key: str
    members: tuple[_Member, ...]
    broken: str = ""


class ShardSource:
    """The groups of one or several shards, in order."""

    kind = "shards"

    def __init__(self, shards: Sequence[Path], names: Sequence[str], images: Images) -> None:
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

    def read(self, place: int) -> Content:
        """The members of a group, together.

        Raises:
            MisfitError: a member cannot be read, or two of them give the same input.
        """
        group = self._groups[place]
        if group.broken:
            raise MisfitError(Kind.UNREADABLE, group.broken)
        if len(group.members) == 1 and not group.members[0].field:
            return self._alone(group, group.members[0], self._names)
        return self._joined(group)

    def _joined(self, group: _Group) -> Content:
        """Members that say their input, and at most one that does not, for the input left over."""
        told = [member.field for member in group.members if member.field]
        rest = [name for name in self._names if name not in told]
        if len(group.members) - len(told) > (1 if rest else 0):
            names = ", ".join(group.key + _tail(member) for member in group.members)
            raise MisfitError(Kind.NAMES, f"has more than one member for an input: {names}")
        contents = [
            self._alone(group, member, [member.field] if member.field else rest)
            for member in group.members
        ]
        parts = {name: array for one in contents for name, array in one.parts.items()}
        look = next((one.look for one in contents if one.look), None)
        return content_of(parts, self._names, look)

    def _alone(self, group: _Group, member: _Member, names: Sequence[str]) -> Content:
        if member.size > _LARGEST:
            raise MisfitError(Kind.UNREADABLE, f"has a member of {member.size:,} bytes")
        with group.shard.open("rb") as stream:
            stream.seek(member.start)
            blob = io.BytesIO(stream.read(member.size))
        found = self._images.any_reader(member.suffix, names)(blob)
        return content_of(found.value, names, found.look)

    def _index(self, shard: Path) -> Iterator[_Group]:
        """The shard's groups, in the order of their first members."""
        groups: dict[str, list[_Member]] = {}
        broken = ""
        try:
            with tarfile.open(shard, "r:") as archive:
                for info in archive:
                    archive.members = []  # type: ignore[attr-defined]  # it would keep them all
                    self._enter(info, groups)
                broken = _unfinished(shard, archive.offset)
        except (tarfile.TarError, OSError, EOFError) as error:
            broken = f"cannot be read to its end: {type(error).__name__}: {first_line(error)}"
        for key, members in groups.items():
            if members:
                yield _Group(shard, key, tuple(members))
        if broken:
            yield _Group(shard, "", (), broken)

    def _enter(self, info: tarfile.TarInfo, groups: dict[str, list[_Member]]) -> None:
        path = PurePosixPath(info.name)
        if info.isdir():
            return
        if not info.isreg() or info.issparse() or path.name.startswith("."):
            self.skipped["hidden" if path.name.startswith(".") else "links"] += 1
            return
        stem, _, tail = path.name.partition(".")
        members = groups.setdefault((path.parent / stem).as_posix(), [])
        field, _, last = tail.rpartition(".")
        usable = group_of(f".{last}") not in ("", SHARD)
        if usable and field in ("", *self._names):
            members.append(_Member(field, f".{last}", info.offset_data, info.size))
        else:
            self.skipped[f".{tail}" if tail else "without suffix"] += 1


def _unfinished(shard: Path, offset: int) -> str:
    """Why the archive is not at its end at `offset`, where tarfile, silent on it, stopped."""
    with shard.open("rb") as stream:
        stream.seek(offset)
        block = stream.read(tarfile.BLOCKSIZE)
    whole = len(block) in (0, tarfile.BLOCKSIZE) and not any(block)
    return "" if whole else f"cannot be read to its end: no header at byte {offset:,}"


def _tail(member: _Member) -> str:
    return f".{member.field}{member.suffix}" if member.field else member.suffix
