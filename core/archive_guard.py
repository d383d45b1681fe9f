"""Looks through a torch.export archive for what would run code when torch opens it.

torch.export.load unpickles parts of the archive without `weights_only`, loads compiled libraries
and hands size expressions to sympy, which evaluates them as Python. So the parts are looked at
first, without opening the whole.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from typing import TYPE_CHECKING

from .errors import CheckpointError, ConsentError, Hint, Option, first_line
from .torch_sizes import find_size_fault
from .zip_archive import find_archive_fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PICKLE_MEMBERS = re.compile(
    r"(?:^|/)(?:data/(?:sample_inputs|weights|constants)/[^/]*\.pt|serialized_\w+\.(?:pt|json))$"
)
_PROGRAM_MEMBERS = re.compile(r"(?:^|/)(?:models/[^/]*\.json|serialized_exported_program\.json)$")
_CALL_NAME = re.compile(r"([A-Za-z_]\w*)\s*\(")
_HARMLESS_TEXT = re.compile(r"[\w\s+\-*/%(),.<>=!&|~]*")
# sympy's srepr quotes the names of symbols, and the digits of floats
_QUOTED_SYMBOL = re.compile(r"\b(Symbol|Float)\('([\w+-]+(?:\.\d+(?:[eE][+-]?\d+)?)?)'")
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z_]")


def refuse_archive_code(path: Path) -> None:
    """Refuse an archive with parts that run code when opened.

    Raises:
        ConsentError: there is such a part, which the message names.
        CheckpointError: it is damaged.
    """
    fault = find_archive_fault(path)
    if fault:
        raise CheckpointError(
            f"{path} cannot be read: {fault}", hint="export it again with torch.export.save"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            found = next(_find_dangers(archive), None)
    except Exception as error:  # zipfile and JSON raise anything at damaged members
        raise CheckpointError(
            f"{path} cannot be looked through: {type(error).__name__}: {first_line(error)}",
            hint="copy or download the file again",
        ) from error
    if found is not None:
        name, what = found
        raise ConsentError(
            f"{path} would run code when opened: {name} is {what}",
            hint=Hint("add ", Option("allow-pickle"), ", only if you trust its maker"),
            option="allow-pickle",
        )


def _find_dangers(archive: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
    names = archive.namelist()
    yield from ((name, "a compiled library") for name in names if "data/aotinductor/" in name)
    for name in filter(_PROGRAM_MEMBERS.search, names):
        for text in _find_expressions(json.loads(archive.read(name))):
            if not _is_arithmetic(text):
                yield name, f"an expression that is no arithmetic: {text[:60]!r}"
    for name in _pickle_members(archive):
        reason = (
            "a pickled object" if "/opaque" in name else _refusal_of_weights(archive.read(name))
        )
        if reason:
            yield name, reason


def _pickle_members(archive: zipfile.ZipFile) -> list[str]:
    """The members that torch unpickles: some by their names, others because a config says so."""
    names = archive.namelist()
    found = [
        name for name in names if _PICKLE_MEMBERS.search(name) and not _PROGRAM_MEMBERS.search(name)
    ]
    for name in names:
        if not name.endswith("_config.json"):
            continue
        for entry in json.loads(archive.read(name)).get("config", {}).values():
            payload = str(entry["path_name"])
            if entry.get("use_pickle") or payload.startswith("opaque"):
                found.append(f"{name.rpartition('/')[0]}/{payload}")
    return found


def _find_expressions(value: object) -> Iterator[str]:
    """Every `expr_str` in the program: torch gives it to sympy.sympify, which evaluates it."""
    if isinstance(value, dict):
        for key, child in value.items():
            if key == "expr_str" and isinstance(child, str):
                yield child
            else:
                yield from _find_expressions(child)
    elif isinstance(value, list):
        for child in value:
            yield from _find_expressions(child)


def _is_arithmetic(text: str) -> bool:
    """Numbers, names, operators and the capitalised functions of sympy and torch; no attributes."""
    text = _QUOTED_SYMBOL.sub(r"\1(\2", text)
    calls = _CALL_NAME.findall(text)
    return (
        _HARMLESS_TEXT.fullmatch(text) is not None
        and "__" not in text
        and _ATTRIBUTE.search(text) is None
        and all(call[0].isupper() or call in ("and", "or", "not") for call in calls)
    )


def _refusal_of_weights(data: bytes) -> str:
    """Why torch would not load these bytes as weights; empty when it would."""
    import torch

    if not data:
        return ""
    fault = find_size_fault(io.BytesIO(data))
    if fault:
        return f"unsound: {fault}"
    try:
        torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - the unpickler raises anything at garbage
        return f"more than tensors ({first_line(error, limit=80)})"
    return ""
