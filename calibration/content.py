"""What one file, member or item holds: arrays by the names of the model's inputs."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ..core.contract import Array
from ..core.errors import first_line
from ..core.loading import named
from .findings import FindingKind

Blob: TypeAlias = Path | io.BytesIO  # a file, or a member of an archive in memory


class SampleError(Exception):
    """A sample that cannot be fed: which kind of finding it is, and why, in one line."""

    def __init__(self, kind: FindingKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


def unreadable_error(error: BaseException) -> SampleError:
    """What a reader raises for a file that a library cannot read."""
    reason = f"cannot be read: {type(error).__name__}: {first_line(error, limit=160)}"
    return SampleError(FindingKind.UNREADABLE, reason)


@dataclass(frozen=True, kw_only=True)
class ImageLook:
    """An image file as it is stored: its mode, and how many distinct values its samples have."""

    mode: str
    levels: int


@dataclass(frozen=True, kw_only=True)
class ReadResult:
    """What a reader found in one file: an array, or arrays by name or position."""

    value: object
    look: ImageLook | None = None


@dataclass(frozen=True, kw_only=True)
class SampleContent:
    """The arrays for the inputs, as they were stored; `surplus` is what no input takes."""

    parts: Mapping[str, Array]
    surplus: tuple[str, ...] = ()
    look: ImageLook | None = None


FileReader: TypeAlias = Callable[[Blob], ReadResult]


def make_content(
    value: object, names: Sequence[str], look: ImageLook | None = None
) -> SampleContent:
    """Give the arrays in `value` the names of inputs, by the rule of `core.loading.named`.

    Raises:
        SampleError: an input is missing, or it is no array.
    """
    found = named(value, names, is_array)
    if found is None:
        raise SampleError(FindingKind.NAMES, f"holds one array; the inputs are {', '.join(names)}")
    return _complete_content(found.parts, names, found.surplus, look)


def _complete_content(
    parts: Mapping[str, object],
    names: Sequence[str],
    surplus: tuple[str, ...],
    look: ImageLook | None,
) -> SampleContent:
    missing = [name for name in names if name not in parts]
    if missing:
        held = ", ".join([*parts, *surplus]) or "nothing"
        raise SampleError(FindingKind.NAMES, f"lacks {', '.join(missing)}; it holds {held}")
    arrays = {name: _content_array(name, parts[name]) for name in names}
    return SampleContent(parts=arrays, surplus=surplus, look=look)


def is_array(value: object) -> bool:
    """Whether it is an array of numpy's, a number of numpy's or a tensor of torch's."""
    import numpy as np

    return isinstance(value, (np.ndarray, np.generic)) or _is_tensor(value)


def _is_tensor(value: object) -> bool:
    """Asked without importing torch: who has a tensor has imported it."""
    return any(kind.__module__ == "torch" for kind in type(value).__mro__) and hasattr(
        value, "detach"
    )


def _content_array(name: str, value: object) -> Array:
    import numpy as np

    from ..core.arrays import to_array

    if _is_tensor(value):
        try:
            return to_array(value)  # type: ignore[arg-type]  # just asked
        except (RuntimeError, NotImplementedError, TypeError) as error:  # meta, nested, quantized
            told = f"{name} is a tensor that holds no plain array: {first_line(error, limit=80)}"
            raise SampleError(FindingKind.DTYPE, told) from error
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    raise SampleError(
        FindingKind.DTYPE, f"{name} is a {type(value).__name__}, not an array or a tensor"
    )
