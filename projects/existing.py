"""That what settings name is there, and that nothing is left to be filled in."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from ..core.loading import is_loader_spec
from .faults import Faults
from .keys import MODEL_KEYS, Key, KeyKind
from .records import Setting

# What `modelc init` writes where only the user knows.
FACTORY_FORM = "PKG.MOD:FACTORY"
_OPEN_SIZE = re.compile(r"EDIT_\w+")
_OUTPUT_KEYS = frozenset({"timing-cache"})  # made by modelc where it is not there


def check_paths(said: Iterable[Setting], faults: Faults) -> None:
    """Keep in `faults` what is named and not there, and what `modelc init` left open."""
    for one in said:
        key = MODEL_KEYS.get(one.path[0]) if len(one.path) == 1 else None
        if key is None:
            continue
        texts = one.value if isinstance(one.value, tuple) else (str(one.value),)
        for text in texts:
            _check_filled(one, text, faults)
            if _is_path(key, text):
                _check_exists(one, Path(text), faults)


def _is_path(key: Key, text: str) -> bool:
    if (
        key.kind not in (KeyKind.PATH, KeyKind.SOURCE)
        or text in key.words
        or key.name in _OUTPUT_KEYS
    ):
        return False
    return not (key.kind is KeyKind.SOURCE and is_loader_spec(text))


def _check_filled(one: Setting, text: str, faults: Faults) -> None:
    left = FACTORY_FORM if one.path == ("model",) and text == FACTORY_FORM else ""
    if one.path == ("input",):
        left = ", ".join(open_sizes(text))
    if left:
        faults.add(
            f"still to be filled in: {left}",
            place=one.told.of(one.name),
            hint="put in what holds for your model"
            if left != FACTORY_FORM
            else "name the function or class that builds the module, as nets.resnet:build",
        )


def open_sizes(text: str) -> tuple[str, ...]:
    """The words in a text that stand for sizes only the user knows."""
    return tuple(dict.fromkeys(_OPEN_SIZE.findall(text)))


def _check_exists(one: Setting, path: Path, faults: Faults) -> None:
    try:
        if path.exists():
            return
        names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    except OSError:  # a name that is too long, a folder that may not be read
        names = []
    near = difflib.get_close_matches(path.name, names, n=1)
    hint = f"did you mean {path.parent / near[0]}?" if near else f"put it there, or mend {one.name}"
    faults.add(f"there is no {path}", hint=hint, place=one.told.of(one.name))
