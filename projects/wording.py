"""Errors of commands, placed at the lines and keys of modelc.toml."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.errors import Hint, ModelcError, Option, Place
from .keys import MODEL_KEYS, KeyKind


def place_error(error: ModelcError, places: Mapping[str, Place]) -> ModelcError:
    """An error of a model at the line of the key that it is about, else at that of the model.

    `places` is where each key was said; under "" is where the model is.
    """
    return error.at(places.get(error.option, places[""]), hint=key_hint(error.advice))


def key_hint(hint: Hint) -> Hint:
    """A hint with `calib = "DIR"` for `--calib DIR`, and the like."""
    return Hint(*(_option_as_key(one) if isinstance(one, Option) else one for one in hint.parts))


def _option_as_key(option: Option) -> str:
    key = MODEL_KEYS.get(option.name)
    if key is None:
        return str(option)
    if key.kind is KeyKind.TRUTH:
        return f"{key.name} = true"
    if not option.value:
        return key.name
    value = option.value.strip("\"'")
    shown = value if key.kind in (KeyKind.WHOLE, KeyKind.NUMBER) else f'"{value}"'
    return f"{shown} in {key.name}" if key.many else f"{key.name} = {shown}"
