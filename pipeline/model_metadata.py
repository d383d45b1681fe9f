"""Metadata of a model: read what is declared, check it against the model, write and read its text.

A declaration is `KEY=VALUE` texts, a TOML or JSON file of the same keys, or a table of modelc.toml.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import ErrorCode, Hint, Option, RunnerError, UsageError, unknown_name_error
from ..core.model_meta import MAX_META_BYTES, ModelMeta, meta_error
from ..core.preprocess import Preprocess
from .declared_files import is_path, list_tokenizer, read_classes, read_declaration
from .provenance.seals import plain_json

META_KEY = "meta"  # of the embedded metadata
PLAIN_KEYS = (
    "classes", "classes-output", "preprocess", "preprocess-input", "tokenizer", "license",
)  # fmt: skip
EXTRA = "extra."
_PATH_KEYS = ("classes", "tokenizer")


def read_meta(texts: Sequence[str]) -> ModelMeta:
    """Return the metadata of `--meta` texts; `KEY=VALUE` precedes what a file says.

    Raises:
        UsageError: a key is unknown or given twice, or a value is invalid.
    """
    return make_meta(split_meta(texts, Path()))


def split_meta(texts: Sequence[str], base: Path) -> dict[str, str]:
    """Return the texts of `--meta` by key; paths are relative to `base`.

    Raises:
        UsageError: a key is given twice, or a file cannot be read.
    """
    pairs: dict[str, str] = {}
    filed: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign:
            filed |= read_meta_file(base / text)
            continue
        if key in pairs:
            raise meta_error(key, "given twice", f"give --meta {key}= once")
        pairs[key] = _local_path(value, base) if key in _PATH_KEYS else value
    return {**filed, **pairs}


def make_meta(pairs: Mapping[str, str]) -> ModelMeta:
    """Return the metadata of texts by key.

    Raises:
        UsageError: a key is unknown, or a value is invalid.
    """
    fields: dict[str, Any] = {}
    extra: dict[str, str] = {}
    for key, text in pairs.items():
        if key.startswith(EXTRA):
            extra[key.removeprefix(EXTRA)] = text
        elif key not in _READERS:
            error = unknown_name_error("metadata key", key[:80], [*PLAIN_KEYS, f"{EXTRA}NAME"])
            error.option = META_KEY
            raise error
        elif not text.strip():
            raise meta_error(key, "an empty text", f"for example --meta {_EXAMPLES[key]}")
        else:
            fields[key.replace("-", "_")] = _READERS[key](text.strip())
    meta = ModelMeta(**fields, extra=extra)
    if len(encode_meta(meta)) > MAX_META_BYTES:
        raise meta_error("classes", f"all of it exceeds {MAX_META_BYTES} bytes", "shorten names")
    return meta


def read_meta_file(path: Path) -> dict[str, str]:
    """Return the texts by key of a TOML or JSON file, or of a manifest.

    Paths in it are relative to its folder.

    Raises:
        UsageError: it does not exist, is neither, or has other keys or values.
    """
    table = read_declaration(path)
    if "schema_version" in table:
        from .manifest_file import read_manifest_file

        return dict(list_texts(read_manifest_file(path).meta))
    return dict(flatten_meta(table, path.parent))


def list_texts(meta: ModelMeta) -> Iterator[tuple[str, str]]:
    """Yield the texts by key that declare the metadata of a manifest again."""
    steps, tokens = meta.included_preprocess or meta.preprocess, meta.tokenizer
    texts = {
        "classes": json.dumps(meta.classes) if meta.classes else "",
        "classes-output": meta.classes_output,
        "preprocess": "" if steps is None else str(steps),
        "preprocess-input": meta.preprocess_input,
        "tokenizer": "" if tokens is None else tokens.source,
        "license": meta.license,
        **{f"{EXTRA}{key}": text for key, text in meta.extra.items()},
    }
    yield from ((key, text) for key, text in texts.items() if text)


def flatten_meta(table: Mapping[str, object], base: Path) -> Iterator[tuple[str, str]]:
    """Yield the keys of a table with their values as texts; paths are relative to `base`.

    Raises:
        UsageError: a key is unknown, or a value has another type.
    """
    for key, value in table.items():
        if key == EXTRA[:-1] and isinstance(value, Mapping):
            for name, one in value.items():
                yield f"{EXTRA}{name}", _plain_text(f"{EXTRA}{name}", one)
        elif key == "preprocess" and isinstance(value, Mapping):
            yield key, _preprocess_text(value)
        elif key == "classes" and isinstance(value, list | tuple | Mapping):
            yield key, json.dumps(value)
        elif key in PLAIN_KEYS:
            text = _plain_text(key, value)
            yield key, _local_path(text, base) if key in _PATH_KEYS else text
        else:
            raise unknown_name_error("metadata key", key[:80], [*PLAIN_KEYS, EXTRA[:-1]])


def _local_path(text: str, base: Path) -> str:
    """Return a path relative to the working folder, if it is one relative to `base`."""
    return str(base / text) if is_path(base / text) else text


def _plain_text(key: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise meta_error(key, f"a {type(value).__name__} is not a text", 'write it as "text"')
    return str(value)


def _preprocess_text(table: Mapping[str, object]) -> str:
    """Return the table as `--preprocess` reads it."""
    preset = [str(table["preset"])] if "preset" in table else []
    pairs = []
    for key, value in table.items():
        if key != "preset":
            sign = "x" if key in ("resize", "crop") else ","
            parts = value if isinstance(value, list | tuple) else (value,)
            pairs.append(f"{key}={sign.join(map(str, parts))}")
    return ",".join([*preset, *pairs])


def _read_license(text: str) -> str:
    from packaging.licenses import canonicalize_license_expression

    try:
        return str(canonicalize_license_expression(text))
    except ValueError as error:
        raise meta_error(
            "license", f"{text[:80]!r} is not an SPDX expression",
            "give an id of spdx.org/licenses, as Apache-2.0, or LicenseRef-NAME for another",
        ) from error  # fmt: skip


_READERS: dict[str, Callable[[str], object]] = {
    "classes": read_classes,
    "classes-output": str,
    "preprocess": Preprocess.parse,
    "preprocess-input": str,
    "tokenizer": list_tokenizer,
    "license": _read_license,
}
_EXAMPLES = {
    "classes": "classes=labels.txt",
    "classes-output": "classes-output=logits",
    "preprocess": "preprocess=imagenet",
    "preprocess-input": "preprocess-input=pixel_values",
    "tokenizer": "tokenizer=./tokenizer",
    "license": "license=Apache-2.0",
}


def join_preprocess(meta: ModelMeta | None, text: str | None) -> ModelMeta | None:
    """Return the metadata with `--preprocess` where it declares none.

    Raises:
        UsageError: both are given, and differ.
    """
    if text is None:
        return meta
    given = Preprocess.parse(text)
    if meta is None or meta.preprocess is None:
        return replace(meta or ModelMeta(), preprocess=given)
    check_agreement(meta.preprocess, given)
    return meta


def check_agreement(declared: Preprocess, given: Preprocess) -> None:
    """Check that two descriptions of preprocessing are one.

    Raises:
        UsageError: they differ in more than what one of them leaves open.
    """
    open_keys = [key for key in ("layout", "channels") if not getattr(given, key)]
    filled = replace(given, **{key: getattr(declared, key) for key in open_keys})
    left = [key for key in ("layout", "channels") if not getattr(declared, key)]
    if filled != replace(declared, **{key: getattr(filled, key) for key in left}):
        raise UsageError(
            f"--preprocess {given} contradicts the declared preprocessing {declared}",
            hint=Hint("leave out ", Option("preprocess"), ", or declare the same"),
            option="preprocess",
            code=ErrorCode.INVALID_VALUE,
        )


def merge_meta(declared: ModelMeta | None, recorded: ModelMeta) -> ModelMeta:
    """Return what a manifest records, with what is declared now in its place.

    Raises:
        UsageError: the preprocessing differs: the recorded one is that of the parent.
    """
    if declared is None:
        return recorded
    if declared.preprocess is not None and recorded.preprocess is not None:
        check_agreement(recorded.preprocess, declared.preprocess)
        declared = replace(declared, preprocess=recorded.preprocess)
    kept = {key: value for key, value in vars(declared).items() if value not in ((), "", None, {})}
    return replace(recorded, **kept)


# The text in an artifact: JSON without what is empty, the same for the same record.


def encode_meta(meta: ModelMeta) -> str:
    """Return the metadata as JSON in ASCII on one line; empty for none."""
    if meta.is_empty:
        return ""
    plain = _without_defaults(plain_json(meta))
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=True)


def write_entry(meta: ModelMeta | None) -> dict[str, str]:
    """Return the entry of an artifact's metadata; none if nothing is declared."""
    text = encode_meta(meta or ModelMeta())
    return {META_KEY: text} if text else {}


def decode_meta(text: str) -> ModelMeta:
    """Return the metadata that an artifact contains; it may be anybody's.

    Raises:
        RunnerError: it is too long, no JSON, or has values that no metadata has.
    """
    import msgspec

    if not text:
        return ModelMeta()
    if len(text) > MAX_META_BYTES:
        raise _corrupt_error(f"it has {len(text)} characters, more than {MAX_META_BYTES}")
    try:
        return msgspec.json.decode(text.encode(), type=ModelMeta)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise _corrupt_error(str(error)[:200]) from error
    except UsageError as error:
        raise _corrupt_error(error.message) from error


def _corrupt_error(why: str) -> RunnerError:
    return RunnerError(
        f"its metadata is invalid: {why}", hint="export it again", code=ErrorCode.CORRUPT_FILE
    )


def _without_defaults(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without_defaults(one) for key, one in value.items()}
        return {key: one for key, one in kept.items() if one not in (None, "", [], {})}
    return value
