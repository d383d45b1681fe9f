"""What commands say of their options, said of the lines and keys of modelc.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..core.errors import ModelcError
from .keys import MODEL, Key, Kind

OPTION = re.compile(r"--([a-z0-9-]+)")
_GIVEN = re.compile(
    r"--(?P<name>[a-z][a-z0-9-]*)"
    r"""(?:[ ](?P<value>"[^"]*"|'[^']*'|(?:\[[^\]]*\]|[^\s,;)\[])+))?"""
)
_COMMAND = re.compile(r"\b(?:modelc|pip) [\w-]+ ")
_PLAIN = re.compile(r"[a-z]+")  # a word of the sentence; values have another sign in them


def placed(error: ModelcError, places: Mapping[str, str]) -> ModelcError:
    """An error of a model at the line of the key that it speaks of, else at that of the model.

    `places` is where each key was said, as `modelc.toml:18 [models.digits] model`; under "" is
    where the model is.
    """
    found = place_of(error, places)
    return type(error)(f"{found}: {error.message}", hint=in_keys(error.hint))


def place_of(error: ModelcError, places: Mapping[str, str]) -> str:
    """The place that `placed` puts before an error."""
    options = OPTION.findall(f"{error.message} {error.hint}")
    return next((places[name] for name in options if name in places), places[""])


def in_keys(hint: str) -> str:
    """A hint with `calib = "DIR"` for `--calib DIR`, and the like; that of a command stays."""
    return hint if _COMMAND.search(hint) else _GIVEN.sub(_as_key, hint)


def _as_key(found: re.Match[str]) -> str:
    key, text = MODEL.get(found["name"]), found["value"] or ""
    if key is None:
        return found.group()
    if key.kind is Kind.TRUTH:
        return f"{key.name} = true" + found.group().removeprefix(f"--{key.name}")
    value = text.strip("\"'").rstrip(":.") if _is_value(key, text) else ""
    if not value:
        return key.name + found.group().removeprefix(f"--{key.name}")
    rest = text.strip("\"'").removeprefix(value)
    number = key.kind in (Kind.WHOLE, Kind.NUMBER)
    shown = value if number else f'"{value}"'
    return (f"{shown} in {key.name}" if key.many else f"{key.name} = {shown}") + rest


def _is_value(key: Key, text: str) -> bool:
    known = (*key.choices, *key.words, "auto")
    return not _PLAIN.fullmatch(text) or text in known or key.name == "to"
