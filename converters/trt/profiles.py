"""Optimization profiles: for each input the least, the best and the greatest shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...core.errors import Hint, Option, UsageError
from ...core.signature import InputSpec, Signature

Shape: TypeAlias = tuple[int, ...]
_HINT = "write --profile x=1x3x224x224:4x3x224x224:8x3x224x224, inputs apart by commas"
_PARTS = 3


@dataclass(frozen=True, kw_only=True)
class ShapeRange:
    """The shapes that one input may have, and the one (`opt`) that kernels are chosen for."""

    name: str
    low: Shape
    opt: Shape
    high: Shape

    def holds(self, shape: Sequence[int]) -> bool:
        """Whether an input of this shape may be fed."""
        return len(shape) == len(self.low) and all(
            low <= size <= high for low, size, high in zip(self.low, shape, self.high, strict=True)
        )

    def __str__(self) -> str:
        return f"{self.name}={':'.join('x'.join(map(str, s)) for s in self.shapes)}"

    @property
    def shapes(self) -> tuple[Shape, Shape, Shape]:
        """Least, best, greatest."""
        return self.low, self.opt, self.high


Profile: TypeAlias = tuple[ShapeRange, ...]


def profile_text(profile: Profile) -> str:
    """The profile as a user would write it."""
    return ",".join(map(str, profile))


def read_profiles(texts: Iterable[str]) -> tuple[Profile, ...]:
    """Read each `x=1x8:4x8:8x8,mask=1x8:4x8:8x8`.

    Raises:
        UsageError: a text is not of that form, or its shapes do not grow.
    """
    return tuple(_parse_profile(text) for text in texts)


def _parse_profile(text: str) -> Profile:
    ranges = tuple(_parse_range(part.strip(), text) for part in text.split(","))
    names = [one.name for one in ranges]
    if len(set(names)) != len(names):
        raise UsageError(f"--profile {text!r} names an input twice", hint=_HINT, option="profile")
    return ranges


def _parse_range(part: str, text: str) -> ShapeRange:
    name, equals, shapes = part.rpartition("=")
    found = [_parse_shape(shape) for shape in shapes.split(":")]
    if not (name and equals) or len(found) != _PARTS or None in found:
        raise UsageError(f"--profile {text!r}: cannot read {part!r}", hint=_HINT, option="profile")
    low, opt, high = (shape or () for shape in found)
    if not len(low) == len(opt) == len(high) or any(
        not 0 <= a <= b <= c for a, b, c in zip(low, opt, high, strict=True)
    ):
        raise UsageError(
            f"--profile {text!r}: the shapes of {name!r} are not min <= opt <= max",
            hint=_HINT,
            option="profile",
        )
    return ShapeRange(name=name, low=low, opt=opt, high=high)


def _parse_shape(text: str) -> Shape | None:
    """`1x3x8` as sizes, nothing as a scalar's shape; None where it is neither."""
    parts = text.split("x") if text else []
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else None


def profiles_for(signature: Signature, extra: Sequence[Profile]) -> tuple[Profile, ...]:
    """The signature's own profile, then one for each of `extra`.

    An input that an extra profile leaves out has the signature's shapes there.

    Raises:
        UsageError: an extra profile names no input, or has another rank, or a fixed dim changed.
    """
    own = {spec.name: _spec_range(spec) for spec in signature.inputs}
    return (tuple(own.values()), *(_complete_profile(profile, own, signature) for profile in extra))


def _spec_range(spec: InputSpec) -> ShapeRange:
    return ShapeRange(
        name=spec.name,
        low=tuple(dim.low for dim in spec.dims),
        opt=tuple(dim.opt for dim in spec.dims),
        high=tuple(dim.high for dim in spec.dims),
    )


def _complete_profile(
    profile: Profile, own: Mapping[str, ShapeRange], signature: Signature
) -> Profile:
    specs = {spec.name: spec for spec in signature.inputs}
    given = {one.name: one for one in profile}
    for name, one in given.items():
        if name not in specs:
            raise UsageError(
                f"--profile {profile_text(profile)} names {name!r}, which is no input",
                hint=f"the inputs are {', '.join(specs)}",
                option="profile",
            )
        _check_range(one, specs[name], profile)
    return tuple(given.get(name, known) for name, known in own.items())


def _check_range(one: ShapeRange, spec: InputSpec, profile: Profile) -> None:
    if len(one.low) != len(spec.dims):
        raise UsageError(
            f"--profile {profile_text(profile)}: {spec.name} has {len(spec.dims)} dims, not {len(one.low)}",
            hint=f"its form is {spec}",
            option="profile",
        )
    for dim, low, high in zip(spec.dims, one.low, one.high, strict=True):
        if not dim.dynamic and (low, high) != (dim.opt, dim.opt):
            raise UsageError(
                f"--profile {profile_text(profile)}: a dim of {spec.name} is always {dim.opt}",
                hint=Hint(
                    f"its form is {spec}; a dim that varies needs a name in ", Option("input")
                ),
                option="profile",
            )


def find_unbounded(signature: Signature, given: Sequence[Profile]) -> tuple[str, ...]:
    """One line for each dim without bounds: an engine takes no size that no profile holds.

    Args:
        signature: whose sizes the first profile has.
        given: the user's own profiles; an input that one of them names is theirs to bound.
    """
    profiled = {one.name for profile in given for one in profile}
    owners: dict[str, str] = {}
    for spec in signature.inputs:
        for dim in spec.dims:
            if not dim.bounded and dim.name is not None and spec.name not in profiled:
                owners.setdefault(dim.name, spec.name)
    return tuple(
        f"dim {name!r} of {owner} has no bounds, which an optimization profile needs: "
        f"say {name}=min..max in --input, or give --profile"
        for name, owner in owners.items()
    )


def select_profile(profiles: Sequence[Profile], shapes: Mapping[str, Sequence[int]]) -> int | None:
    """The first profile that holds every shape; None where none does."""
    for index, profile in enumerate(profiles):
        if all(one.holds(shapes[one.name]) for one in profile):
            return index
    return None
