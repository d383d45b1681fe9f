"""Read files of torch.save safely, and reject torch.export archives that would run code."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import warnings
import zipfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING

from .errors import (
    CheckpointError,
    ConsentError,
    ErrorCode,
    Hint,
    MissingError,
    Option,
    first_line,
)
from .installation import hint_for_extra
from .torch_sizes import find_size_fault
from .untrusted_files import find_archive_fault, is_zip_archive

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCKED_GLOBAL = re.compile(
    r"Unsupported (?:global|class|operand)[^\n]*?GLOBAL (\S+)|Unsupported \w+ (\d+)"
)


def read_torch_file(source: Path | IO[bytes], name: str = "", *, may_allow: bool = False) -> object:
    """Read a file of torch.save, with memory-mapped tensors if possible.

    Args:
        source: a file, or an open seekable stream.
        name: its name in messages; the path if empty.
        may_allow: whether --allow-pickle reads what is rejected.

    Raises:
        ConsentError: it holds more than tensors and plain values; the hint says what allows that,
            or without `may_allow` what to save instead.
        CheckpointError: it is damaged.
    """
    import pickle

    called = name or str(source)
    check_torch_file(source, called)
    try:
        return load_torch_file(source, weights_only=True)
    except pickle.UnpicklingError as error:
        match = _BLOCKED_GLOBAL.search(str(error))
        if match is None:
            raise unreadable_error(called, error) from error
        what = match.group(1) or f"pickle opcode {match.group(2)}"
        if what.startswith(f"{TORCHAO}.") and TORCHAO not in sys.modules:
            import_torchao(called)
            return read_torch_file(source, name, may_allow=may_allow)
        message = f"{called} holds more than weights: {what}"
        if may_allow:
            tail = ", only if you trust its maker: it runs code of theirs"
            hint, option = Hint("add ", Option("allow-pickle"), tail), "allow-pickle"
        else:
            save = "save its tensors alone with torch.save where it was made, as model.state_dict()"
            hint, option = Hint(save), ""
        code = ErrorCode.CONSENT_REQUIRED
        raise ConsentError(message, hint=hint, option=option, code=code) from error
    except Exception as error:  # the unpickler raises anything on garbage
        raise unreadable_error(called, error) from error


TORCHAO = "torchao"


def import_torchao(called: str) -> None:
    """Import torchao, which registers its own tensors as safe for `weights_only=True`.

    Args:
        called: the file that needs it.

    Raises:
        MissingError: it is not installed.
    """
    if find_spec(TORCHAO) is None:
        raise MissingError(
            f"{called} holds tensors of torchao, which is not installed",
            hint=hint_for_extra(TORCHAO),
        )
    loggers = [logging.getLogger(name) for name in ("", TORCHAO, "torch.utils._pytree")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:  # it logs each kernel for GPUs that it cannot load
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module(f"{TORCHAO}.quantization")
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


_QUANTIZED_OPERATORS = "torch.ops.quantized_decomposed."


def register_operators(path: Path) -> None:
    """Import the module of torch that defines the operators of pt2e, if an archive calls these.

    torch.export.load does not import it.
    """
    if not is_zip_archive(path):
        return
    with zipfile.ZipFile(path) as archive:
        programs = filter(_PROGRAM_MEMBERS.search, archive.namelist())
        if any(_QUANTIZED_OPERATORS.encode() in archive.read(name) for name in programs):
            import_module("torch.ao.quantization.fx._decomposed")


def check_torch_file(source: Path | IO[bytes], called: str) -> None:
    """Reject a file that declares more than it contains, before torch allocates memory.

    Raises:
        CheckpointError: its archive is corrupt, or a declared size lacks its bytes.
    """
    packed = is_zip_archive(source)
    fault = (find_archive_fault(source) if packed else "") or find_size_fault(source)
    if fault:
        raise CheckpointError(
            f"{called} cannot be read: {fault}",
            hint="copy or download the file again, or save it again with torch.save",
            code=ErrorCode.CORRUPT_FILE,
        )


def load_torch_file(source: Path | IO[bytes], *, weights_only: bool) -> object:
    """Load on the CPU, memory-mapping zip files on disk; torch's own errors pass through."""
    import torch

    mapped = isinstance(source, Path) and is_zip_archive(source)
    with warnings.catch_warnings():
        # torch warns about pickle protocols above 2, then reads or rejects them anyway
        warnings.filterwarnings("ignore", message="Detected pickle protocol")
        loaded: object = torch.load(
            source, map_location="cpu", weights_only=weights_only, mmap=mapped or None
        )
    return loaded


def unreadable_error(name: Path | str, error: Exception) -> CheckpointError:
    """Return the error for a file that torch cannot read."""
    return CheckpointError(
        f"{name} cannot be read: {type(error).__name__}: {first_line(error)}",
        hint="copy or download the file again, or save it again with torch.save",
        code=ErrorCode.CORRUPT_FILE,
    )


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
    """Reject an archive with parts that run code when opened.

    Raises:
        ConsentError: it has such a part, which the message names.
        CheckpointError: it is damaged.
    """
    fault = find_archive_fault(path)
    if fault:
        raise CheckpointError(
            f"{path} cannot be read: {fault}",
            hint="export it again with torch.export.save",
            code=ErrorCode.CORRUPT_FILE,
        )
    try:
        with zipfile.ZipFile(path) as archive:
            found = next(_find_dangers(archive), None)
    except Exception as error:  # zipfile and JSON raise anything on damaged members
        raise CheckpointError(
            f"{path} cannot be checked: {type(error).__name__}: {first_line(error)}",
            hint="copy or download the file again",
            code=ErrorCode.CORRUPT_FILE,
        ) from error
    if found is not None:
        name, what = found
        raise ConsentError(
            f"{path} would run code when opened: {name} is {what}",
            hint=Hint("add ", Option("allow-pickle"), ", only if you trust its maker"),
            option="allow-pickle",
            code=ErrorCode.CONSENT_REQUIRED,
        )


def _find_dangers(archive: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
    names = archive.namelist()
    yield from ((name, "a compiled library") for name in names if "data/aotinductor/" in name)
    for name in filter(_PROGRAM_MEMBERS.search, names):
        for text in _find_expressions(json.loads(archive.read(name))):
            if not _is_arithmetic(text):
                yield name, f"a non-arithmetic expression: {text[:60]!r}"
    for name in _pickle_members(archive):
        reason = (
            "a pickled object" if "/opaque" in name else _refusal_of_weights(archive.read(name))
        )
        if reason:
            yield name, reason


def _pickle_members(archive: zipfile.ZipFile) -> list[str]:
    """Return the members that torch unpickles: some by name, others because a config says so."""
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
    """Yield every `expr_str` in the program, which torch evaluates with sympy.sympify."""
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
    """Return whether it uses only numbers, names, operators and functions of sympy and torch."""
    text = _QUOTED_SYMBOL.sub(r"\1(\2", text)
    calls = _CALL_NAME.findall(text)
    return (
        _HARMLESS_TEXT.fullmatch(text) is not None
        and "__" not in text
        and _ATTRIBUTE.search(text) is None
        and all(call[0].isupper() or call in ("and", "or", "not") for call in calls)
    )


def _refusal_of_weights(data: bytes) -> str:
    """Return why torch cannot load these bytes as weights; empty if it can."""
    import torch

    if not data:
        return ""
    fault = find_size_fault(io.BytesIO(data))
    if fault:
        return f"invalid: {fault}"
    try:
        torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - the unpickler raises anything at garbage
        return f"more than tensors ({first_line(error, limit=80)})"
    return ""
