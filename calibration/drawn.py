"""Samples that are no data: drawn from the signature, marked as such wherever they are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..core.contract import Feed
from .content import SampleContent

# Samples that are no data: drawn from the signature, marked as such wherever they are used.


class SyntheticSource:
    """As many drawn samples as are asked for; each is drawn anew when it is read."""

    kind = "random"
    skipped: Mapping[str, int] = {}

    def __init__(self, draw: Callable[[int], Feed], count: int) -> None:
        self._draw = draw
        self._count = count

    def __len__(self) -> int:
        return self._count

    def name(self, place: int) -> str:
        """The number of the draw."""
        return f"drawn {place}"

    def read(self, place: int) -> SampleContent:
        """Draw it."""
        return SampleContent(parts=self._draw(place))
