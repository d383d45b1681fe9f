"""Files that a declaration of metadata names: class names, a tokenizer, the declaration itself."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from ..core.errors import ErrorCode, Hint, Option, UsageError, nearest_files, refuse_pipe
from ..core.model_meta import MAX_CLASSES, TokenizerReference, meta_error
from ..core.records import sha256_of

_MAX_BYTES = 1 << 23  # of a file of names; ImageNet-21k has half a megabyte
_HUB_ID = re.compile(r"(?:hf://)?[\w.-]{1,96}(?:/[\w.-]{1,96})?(?:@[\w./-]{1,128})?", re.ASCII)
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model",
    "sentencepiece.bpe.model", "chat_template.jinja",
)  # fmt: skip


def read_declaration(path: Path) -> Mapping[str, object]:
    """Return the table of a TOML or JSON file.

    Raises:
        UsageError: it cannot be read, or holds something else.
    """
    if not path.exists():
        raise UsageError(
            f"--meta {str(path)[:200]} is neither KEY=VALUE nor a file",
            hint=Hint("for example ", Option("meta", "license=Apache-2.0")),
            option="meta",
            code=ErrorCode.NOT_FOUND,
        )
    text = _read_text(path, "FILE")
    try:
        table = json.loads(text) if path.suffix.lower() == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        form = "JSON" if path.suffix.lower() == ".json" else "TOML"
        raise meta_error("FILE", f"{path} is not {form}", "write it as key = value") from error
    if not isinstance(table, dict):
        raise meta_error("FILE", f"{path} holds no table of keys", "write it as key = value")
    return table


def read_classes(text: str) -> tuple[str, ...]:
    """Return the names in a JSON list, in a file, or separated by commas.

    A file holds a name a line, or JSON: a list, or names by index, as `id2label` of a config.

    Raises:
        UsageError: the file cannot be read, or the names are not those of 0, 1, 2 ...
    """
    if text.startswith(("[", "{")):
        return _parse_names(text, "the text")
    path = Path(text)
    if not is_path(path):
        names = tuple(name.strip() for name in text.split(","))
        if len(names) == 1:
            near = nearest_files(path)
            raise meta_error(
                "classes", f"there is no file {text[:200]}",
                f"did you mean {near[0]}?" if near else "give a file, or names as cat,dog",
            )  # fmt: skip
        return names
    content = _read_text(path, "classes")
    if path.suffix.lower() == ".json":
        return _parse_names(content, str(path))
    lines = content.split("\n")  # a name with another separator is rejected
    while lines and not lines[-1].strip():
        lines.pop()
    if len(lines) > MAX_CLASSES:
        raise meta_error("classes", f"{path} has {len(lines)} lines, more than {MAX_CLASSES}")
    return tuple(line.strip() for line in lines)


def _parse_names(text: str, origin: str) -> tuple[str, ...]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise meta_error("classes", f"{origin} is not JSON", 'write ["cat", "dog"]') from error
    if isinstance(found, dict) and isinstance(found.get("id2label"), dict):
        found = found["id2label"]
    if isinstance(found, dict):
        indices = [str(index) for index in range(len(found))]
        if sorted(found) != sorted(indices):
            raise meta_error("classes", f"the keys of {origin} are not 0 to {len(found) - 1}")
        found = [found[index] for index in indices]
    if not isinstance(found, list):
        raise meta_error("classes", f"{origin} is not a list of names", 'write ["cat", "dog"]')
    names = [one[-1] if isinstance(one, list) and one else one for one in found]  # [wnid, name]
    if not all(isinstance(name, str) for name in names):
        raise meta_error("classes", f"{origin} holds more than texts", 'write ["cat", "dog"]')
    return tuple(names)


def list_tokenizer(text: str) -> TokenizerReference:
    """Return the reference of a tokenizer: with its files if it is here, else an id on the hub.

    Raises:
        UsageError: it is neither.
    """
    path = Path(text)
    if not is_path(path):
        if not _HUB_ID.fullmatch(text) or text.startswith("."):
            raise meta_error(
                "tokenizer", f"{text[:200]} does not exist and is not an id on the hub",
                "give a folder, a file, or an id as bert-base-uncased or org/name@revision",
            )  # fmt: skip
        return TokenizerReference(source=text)
    files = [path] if path.is_file() else [path / name for name in _TOKENIZER_FILES]
    found = {file.name: sha256_of(file) for file in files if file.is_file()}
    if not found:
        raise meta_error("tokenizer", f"{path} holds no file of a tokenizer",
                         f"it has one of {', '.join(_TOKENIZER_FILES[:5])} ...")  # fmt: skip
    return TokenizerReference(source=path.as_posix(), files=found)


def is_path(path: Path) -> bool:
    """Return whether a path exists; a name that cannot be one does not."""
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or with a null
        return False


def _read_text(path: Path, key: str) -> str:
    refuse_pipe(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise meta_error(key, f"{path} is larger than {_MAX_BYTES} bytes")
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise meta_error(key, f"{path} cannot be read: {error.strerror}", "give a file") from error
    except UnicodeDecodeError as error:
        raise meta_error(key, f"{path} is not UTF-8", "save it as UTF-8") from error
