"""Settings by name, as what their keys say that they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .records import KeyPath, Setting


class SettingReader:
    """Reads settings whose values the table of keys has checked; None where nobody said one."""

    def __init__(self, said: Mapping[KeyPath, Setting]) -> None:
        self._said = said

    def _value(self, name: str) -> object:
        one = self._said.get((name,))
        return None if one is None else one.value

    def text(self, name: str) -> str | None:
        """A text."""
        value = self._value(name)
        return None if value is None else str(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Several texts, or none."""
        value = self._value(name)
        return value if isinstance(value, tuple) else ()

    def path(self, name: str) -> Path | None:
        """A path."""
        text = self.text(name)
        return None if text is None else Path(text)

    def whole(self, name: str) -> int | None:
        """A whole number."""
        value = self._value(name)
        return value if isinstance(value, int) else None

    def number(self, name: str) -> float | None:
        """A number."""
        value = self._value(name)
        return float(value) if isinstance(value, int | float) else None

    def truth(self, name: str) -> bool:
        """Whether it is so; what nobody said is not."""
        return self._value(name) is True
