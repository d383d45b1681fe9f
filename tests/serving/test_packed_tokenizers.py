"""Tokenizers beside packed decoders: IRs that differ are left out, and notes name what differs."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from modelc.runtimes.generation_files import GenerationSettings
from modelc.serving.packed_tokenizers import (
    convert_tokenizer,
    note_onnx_tokenizer,
    note_tokenizer,
)

Convert = Callable[[str, Callable[[str], str]], tuple[dict[str, bytes], str]]
BYTES = {"type": "ByteLevel", "add_prefix_space": False}
PLAIN = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}}, "pre_tokenizer": BYTES}


class _Tokenizer:
    """One id for each character."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(one) for one in text]}

    def decode(self, ids: Sequence[int], **_: object) -> str:
        return "".join(map(chr, ids))


@pytest.fixture
def converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Convert:
    """`converted(change, write)`: the result where the IRs change texts so before and after."""
    np, openvino = pytest.importorskip("numpy"), pytest.importorskip("openvino")
    transformers = pytest.importorskip("transformers")
    (tmp_path / "tokenizer.json").write_text("{}")
    plain = _Tokenizer()

    def convert(change: str, write: Callable[[str], str]) -> tuple[dict[str, bytes], str]:
        def encode(texts: list[str]) -> dict[str, Any]:
            text = texts[0].replace("  ", " ") if change == "spaces" else texts[0]
            return {"input_ids": np.array([plain(text)["input_ids"]])}

        def decode(ids: Any) -> list[list[str]]:
            return [[write(plain.decode(ids[0]))]]

        library: Any = types.ModuleType("openvino_tokenizers")
        library.convert_tokenizer = lambda *_, **__: (encode, decode)
        monkeypatch.setitem(sys.modules, "openvino_tokenizers", library)
        core = types.SimpleNamespace(compile_model=lambda model, _: model)
        monkeypatch.setattr(openvino, "Core", lambda: core)
        monkeypatch.setattr(openvino, "save_model", lambda _, path: Path(path).write_text("ir"))
        own = types.SimpleNamespace(from_pretrained=lambda *_, **__: plain)
        monkeypatch.setattr(transformers, "AutoTokenizer", own)
        return convert_tokenizer(tmp_path)

    return convert


def test_a_tokenizer_that_is_the_checkpoints_is_made(converted: Convert) -> None:
    made, missing = converted("", lambda text: text)
    assert sorted(made) == ["openvino_detokenizer.xml", "openvino_tokenizer.xml"]
    assert missing == ""


def test_a_tokenizer_that_joins_spaces_is_left_out(converted: Convert) -> None:
    made, missing = converted("spaces", lambda text: text)
    assert made == {}
    assert "token 5" in missing


def test_a_tokenizer_that_writes_other_texts_is_left_out(converted: Convert) -> None:
    made, missing = converted("", lambda text: text.replace(" ", "▁"))
    assert made == {}
    assert "The▁quick" in missing


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({}, ""),
        ({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}}, "Unigram"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "no byte-level BPE"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{}, BYTES]}}, ""),
        ({"pre_tokenizer": {**BYTES, "add_prefix_space": True}}, "space before"),
        ({"post_processor": {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {}}]}},
         "adds tokens"),
        ({"model": None}, "no byte-level BPE"),
    ],
)  # fmt: skip
def test_a_note_names_what_onnxruntime_genai_may_do_otherwise(
    tmp_path: Path, changed: dict[str, Any], named: str
) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({**PLAIN, **changed}))
    found = " ".join(note_onnx_tokenizer(tmp_path))
    assert bool(found) == bool(named)
    assert named in found


def test_ids_that_the_model_does_not_have_are_a_note(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({**PLAIN, "added_tokens": [{"id": 7}]}))
    assert not list(note_tokenizer(tmp_path, GenerationSettings(vocabulary=8)))
    (note,) = note_tokenizer(tmp_path, GenerationSettings(vocabulary=7))
    assert "up to 7" in note
