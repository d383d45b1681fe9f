"""Dims: sizes that are fixed, that vary in a range, or that follow from another dim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import UsageError

# Sizes of a dim given by name alone until `pipeline/domain_search.py` chooses its bounds.
UNBOUNDED = (1, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Relation:
    """A size as `times * base + plus`, where `base` is the name of a dim that varies freely.

    `stated` is True where no input has the base as a dim of its own, so that its range is written
    with the relation: `h=32*(k=1..8)`.
    """

    base: str
    times: int = 1
    plus: int = 0
    stated: bool = False

    @property
    def equal(self) -> bool:
        """Whether it says that two names are one size."""
        return (self.times, self.plus) == (1, 0)

    def size(self, base: int) -> int:
        """The size that follows from the base's."""
        return self.times * base + self.plus

    def base_of(self, size: int) -> int | None:
        """The base's size that gives this one; None where there is none."""
        found, rest = divmod(size - self.plus, self.times)
        return None if rest or found < 0 else found

    def of(self, base: str) -> str:
        """As `--input` writes it, of this text for the base: `32*k`, `2*seq+1`."""
        times = "" if self.times == 1 else f"{self.times}*"
        return f"{times}{base}{f'{self.plus:+d}' if self.plus else ''}"

    def __str__(self) -> str:
        return self.of(self.base)


@dataclass(frozen=True, kw_only=True)
class Dim:
    """One dimension. Fixed when it has no name; otherwise any size in low..high.

    `opt` is the size to capture at and to tune for. `bounded` is False for a dim given by name
    alone, until its bounds are chosen: its opt is then where the search for them begins. `chosen`
    says that modelc found the bounds and nobody stated them. Where there is a `relation`, low, opt
    and high follow from another dim's.
    """

    low: int
    opt: int
    high: int
    name: str | None = None
    bounded: bool = True
    relation: Relation | None = None
    chosen: bool = False

    @classmethod
    def of_size(cls, size: int) -> Dim:
        """A dimension that is always `size`."""
        return cls(low=size, opt=size, high=size)

    @classmethod
    def any_size(cls, name: str) -> Dim:
        """A dimension of any size."""
        low, opt, high = UNBOUNDED
        return cls(name=name, low=low, opt=opt, high=high, bounded=False)

    @classmethod
    def follow(cls, name: str, relation: Relation, base: Dim) -> Dim:
        """A dimension whose size follows from `base`, which has no relation itself.

        One without a name of its own is called as its relation is written: `2*seq`.

        Raises:
            UsageError: its least size would be below 1, or below 0 where the base may be 0.
        """
        low, opt, high = (relation.size(size) for size in (base.low, base.opt, base.high))
        if low < min(base.low, 1):
            raise UsageError(
                f"dim {name!r} would be {low} where {base.name} is {base.low}: {name}={relation}",
                hint=f"let {base.name} begin at {-((relation.plus - 1) // relation.times)}",
            )
        return cls(
            name=name if name.isidentifier() else str(relation), low=low, opt=opt, high=high,
            bounded=base.bounded, relation=relation, chosen=base.chosen,
        )  # fmt: skip

    @property
    def dynamic(self) -> bool:
        """Whether the artifact must take more than one size here."""
        return self.name is not None and (not self.bounded or self.low != self.high)

    @property
    def free(self) -> Dim:
        """The dim that varies here: the base of its relation, or itself."""
        if self.relation is None:
            return self
        ends = (self.relation.base_of(size) for size in (self.low, self.opt, self.high))
        low, opt, high = (1 if size is None else size for size in ends)
        return Dim(
            name=self.relation.base, low=low, opt=opt, high=high, bounded=self.bounded,
            chosen=self.chosen,
        )  # fmt: skip

    def size(self, sizes: Mapping[str, int]) -> int:
        """Its size where the free dims have these sizes, by name; its opt where they say none."""
        if self.relation is None:
            return sizes.get(self.name or "", self.opt)
        base = sizes.get(self.relation.base)
        return self.opt if base is None else self.relation.size(base)

    def __str__(self) -> str:
        """As `--input` reads it: what is printed gives the same dim again."""
        fixed = self.bounded and self.low == self.high and self.relation is None
        if self.name is None or (fixed and not self.name.isidentifier()):
            return str(self.opt)
        if self.relation is not None:
            base = f"({self.free})" if self.relation.stated and self.bounded else None
            text = self.relation.of(base or self.relation.base)
            return text if self.name == str(self.relation) else f"{self.name}={text}"
        if not self.bounded:
            return self.name
        middle = "" if self.opt == default_opt(self.low, self.high) else f"{self.opt}.."
        return f"{self.name}={self.low}..{middle}{self.high}"


def default_opt(low: int, high: int) -> int:
    """The middle of a range: the size to capture at where the user named none. It is never 0."""
    return max((low + high) // 2, 1)
