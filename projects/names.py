"""Names of models: each becomes a folder, on any system, and is told from a key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ..core.errors import Place
from .faults import Faults
from .keys import RESERVED_NAMES

_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DEVICE_NAMES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.I)  # Windows opens these
_NAME_HINT = "use letters, digits, '-', '_' and '.', 64 at most, a letter or digit first"


def check_names(names: Iterable[str], place: Callable[[str], Place], faults: Faults) -> None:
    """Keep what is wrong with the names of models in `faults`."""
    seen: dict[str, str] = {}
    for name in names:
        why = _name_fault(name)
        twin = seen.setdefault(name.lower(), name)
        if why:
            text = f"the model's name {name[:80]!r} {why}"
            faults.add(text, hint=_NAME_HINT, place=place(name))
        elif twin != name:
            faults.add(
                f"{name} and {twin} are one folder where case does not count",
                hint="rename one of them",
                place=place(name),
            )


def _name_fault(name: str) -> str:
    if not _MODEL_NAME.fullmatch(name) or name.endswith("."):
        return "is no name of a folder on every system"
    if _DEVICE_NAMES.fullmatch(name):
        return "is a device's on Windows"
    return "is a key's" if name in RESERVED_NAMES else ""


def make_model_name(text: str) -> str:
    """A name for a model, made of any text."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:64] or "net"
    return plain if not _name_fault(plain) else f"{plain[:58]}-model"
