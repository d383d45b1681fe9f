"""Tokenizers of packs for generation: as IRs for openvino-genai, and where a runtime's differ."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import first_line
from ..runtimes.generation_files import TOKENIZER_FILES, GenerationSettings

MADE_TOKENIZERS = ("openvino_tokenizer", "openvino_detokenizer")
_TOKENIZER_FILE = "tokenizer.json"
_MAX_BYTES = 1 << 28  # of a tokenizer.json: those of large vocabularies have 30 MB
_MAX_SHOWN = 6  # ids of a text in a message
# What tokenizers of different libraries are known to treat differently.
_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "two  spaces, three   spaces\n\n  a line\tand a tab ",
    " 1234567 don't I'LL naïve — «ok» 日本 🙂",
    "def f(x):\n\treturn {'a': [x, 1.5e-3]}  # note",
)


def has_tokenizer(folder: Path) -> bool:
    """Return whether a checkpoint's folder has a file of a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def convert_tokenizer(folder: Path) -> tuple[dict[str, bytes], str]:
    """Return the tokenizer and detokenizer of a checkpoint as IRs, by name; or why there are none.

    openvino-tokenizers makes them of transformers' tokenizer; code of the checkpoint does not run.
    IRs that split texts in another way, or write other ones, are left out.
    """
    if not has_tokenizer(folder):
        return {}, "the checkpoint has no tokenizer"
    try:
        import openvino
        from openvino_tokenizers import convert_tokenizer as convert
        from transformers import AutoTokenizer
    except ImportError as error:
        return {}, f"{first_line(error)}; pip install openvino-tokenizers, and pack it again"
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        models = convert(tokenizer, with_detokenizer=True)
        if difference := _compare_texts(tokenizer, models):
            return {}, f"openvino-tokenizers makes a tokenizer that is another one: {difference}"
        with tempfile.TemporaryDirectory(prefix="modelc-") as place:
            for name, model in zip(MADE_TOKENIZERS, models, strict=True):
                openvino.save_model(model, str(Path(place, f"{name}.xml")))
            return {path.name: path.read_bytes() for path in sorted(Path(place).iterdir())}, ""
    except Exception as error:  # noqa: BLE001 - the library raises anything on a tokenizer
        return {}, f"openvino-tokenizers cannot convert the tokenizer: {first_line(error)}"


def _compare_texts(tokenizer: Any, models: Sequence[Any]) -> str:
    """Return the first text of which the IRs make other ids, or whose ids they write otherwise."""
    import numpy as np
    import openvino

    core = openvino.Core()
    encode, decode = (core.compile_model(model, "CPU") for model in models)
    for text in _TEXTS:
        wanted = list(tokenizer(text)["input_ids"])
        given = encode([text])["input_ids"][0].tolist()
        if given != wanted:
            place = next(
                (i for i, (a, b) in enumerate(zip(given, wanted, strict=False)) if a != b),
                min(len(given), len(wanted)),
            )
            part = slice(place, place + _MAX_SHOWN)
            return f"{text!r} becomes {given[part]} at token {place + 1}, not {wanted[part]}"
        written = str(decode(np.array([wanted], np.int64))[0][0])
        right = tokenizer.decode(wanted, skip_special_tokens=True)
        if written != right:
            return f"it writes {written!r}, not {right!r}"
    return ""


def note_tokenizer(folder: Path, settings: GenerationSettings) -> Iterator[str]:
    """Yield what to know of a checkpoint's tokenizer, in any runtime."""
    if not has_tokenizer(folder):
        yield f"{folder} has no tokenizer: the runtime takes and gives token ids alone"
    largest, size = max(_list_ids(_read_tokenizer(folder)), default=0), settings.vocabulary
    if size is not None and largest >= size:
        yield f"its tokenizer has ids up to {largest}, the model up to {size - 1}: is it another's?"


def note_onnx_tokenizer(folder: Path) -> Iterator[str]:
    """Yield why onnxruntime-genai may split texts in another way than the checkpoint does.

    Measured with 0.18: it adds no tokens of a template, no space before the first word, and opens
    few tokenizers but byte-level BPE.
    """
    read = _read_tokenizer(folder)
    if not read:
        return
    parts = tuple(_iterate_parts(read.get("pre_tokenizer")))
    kind = _as_mapping(read.get("model")).get("type")
    found = []
    if kind != "BPE" or not any(one.get("type") == "ByteLevel" for one in parts):
        found.append(f"is no byte-level BPE ({kind})")
    if any(one.get("add_prefix_space") for one in parts if one.get("type") == "ByteLevel"):
        found.append("puts a space before a text")
    templates = (one.get("single") for one in _iterate_parts(read.get("post_processor")))
    if any("SpecialToken" in item for one in templates if isinstance(one, list) for item in one):
        found.append("adds tokens to each text")
    if found:
        yield (
            "onnxruntime-genai may make other tokens of a text than the checkpoint's tokenizer, "
            f"which {' and '.join(found)}: compare og.Tokenizer(model).encode(text) with "
            "transformers, or give it token ids"
        )


def _read_tokenizer(folder: Path) -> Mapping[str, Any]:
    """Return `tokenizer.json`; empty if there is none that can be read."""
    path = folder / _TOKENIZER_FILE
    if not path.is_file() or path.stat().st_size > _MAX_BYTES:
        return {}
    try:
        return _as_mapping(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, RecursionError):
        return {}


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _iterate_parts(value: object) -> Iterator[Mapping[str, Any]]:
    """Yield a step of a tokenizer, or all steps of a sequence."""
    part = _as_mapping(value)
    for name in ("pretokenizers", "processors"):
        inner = part.get(name)
        for one in inner if isinstance(inner, list) else ():
            yield from _iterate_parts(one)
    yield part


def _list_ids(read: Mapping[str, Any]) -> Iterator[int]:
    vocabulary, added = _as_mapping(read.get("model")).get("vocab"), read.get("added_tokens")
    if isinstance(vocabulary, dict):
        yield from (one for one in vocabulary.values() if isinstance(one, int))
    elif isinstance(vocabulary, list):  # pairs of a piece and its score
        yield len(vocabulary) - 1
    for one in added if isinstance(added, list) else ():
        if isinstance(number := _as_mapping(one).get("id"), int):
            yield number
