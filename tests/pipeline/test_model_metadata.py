"""`--meta`: what is declared, its files, its limits, and the text in an artifact."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.core.errors import ErrorCode, RunnerError, UsageError
from modelc.core.model_meta import MAX_META_BYTES, ModelMeta, TokenizerReference
from modelc.core.preprocess import Preprocess
from modelc.pipeline.model_metadata import (
    decode_meta,
    encode_meta,
    flatten_meta,
    join_preprocess,
    list_texts,
    make_meta,
    merge_meta,
    read_meta,
    split_meta,
)

FULL = ModelMeta(
    classes=("Katze", "hund, groß", "日本"),
    classes_output="logits",
    preprocess=Preprocess.parse("imagenet,channels=bgr,layout=NHWC"),
    preprocess_input="pixels",
    tokenizer=TokenizerReference(source="org/name@main"),
    license="Apache-2.0 OR MIT",
    extra={"team": "vision", "note": "a = b"},
)


def test_the_text_in_an_artifact_is_ascii_and_reads_back() -> None:
    text = encode_meta(FULL)
    assert text.isascii()
    assert "\n" not in text
    assert decode_meta(text) == FULL
    assert encode_meta(ModelMeta()) == ""


def test_the_texts_of_a_record_declare_it_again() -> None:
    assert make_meta(dict(list_texts(FULL))) == FULL


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("labels.txt", "cat\r\nbig dog\n\n"),
        ("labels.json", '["cat", "big dog"]'),
        ("index.json", '{"0": ["n01", "cat"], "1": ["n02", "big dog"]}'),
        ("config.json", '{"id2label": {"1": "big dog", "0": "cat"}}'),
    ],
)
def test_files_of_class_names(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert read_meta([f"classes={tmp_path / name}"]).classes == ("cat", "big dog")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("classes=a,,b", ErrorCode.INVALID_VALUE),
        ("classes=missing.txt", ErrorCode.INVALID_VALUE),
        ('classes=["a", 1]', ErrorCode.INVALID_VALUE),
        ('classes={"1": "a"}', ErrorCode.INVALID_VALUE),
        ("classes=a,b\x1b[2J", ErrorCode.INVALID_VALUE),
        ("license=Apache", ErrorCode.INVALID_VALUE),
        ("licence=MIT", ErrorCode.UNKNOWN_NAME),
        ("tokenizer=./missing", ErrorCode.INVALID_VALUE),
        ("extra.bad key=1", ErrorCode.INVALID_VALUE),
        (f"extra.long={'x' * 5000}", ErrorCode.INVALID_VALUE),
        ("license=", ErrorCode.INVALID_VALUE),
        ("missing.toml", ErrorCode.NOT_FOUND),
    ],
)
def test_values_that_are_refused(text: str, code: ErrorCode) -> None:
    with pytest.raises(UsageError) as caught:
        read_meta([text])
    assert caught.value.code is code
    assert caught.value.option == "meta"


def test_a_key_twice_is_refused_and_a_text_precedes_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        split_meta(["license=MIT", "license=MIT"], Path())
    (tmp_path / "m.toml").write_text('license = "MIT"\nclasses = ["a", "b"]\n')
    meta = read_meta([str(tmp_path / "m.toml"), "license=Apache-2.0"])
    assert (meta.license, meta.classes) == ("Apache-2.0", ("a", "b"))


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "names").write_text("a\nb\n")
    (tmp_path / "m.json").write_text('{"classes": "names", "extra": {"version": 3}}')
    meta = read_meta([str(tmp_path / "m.json")])
    assert (meta.classes, meta.extra) == (("a", "b"), {"version": "3"})


def test_a_table_of_preprocessing_is_that_of_the_option() -> None:
    table = {"preprocess": {"preset": "imagenet", "resize": [240, 320], "mean": [0.5, 0.4, 0.3]}}
    meta = make_meta(dict(flatten_meta(table, Path())))
    assert meta.preprocess == Preprocess.parse("imagenet,resize=240x320,mean=0.5,0.4,0.3")


def test_a_tokenizer_here_has_the_digests_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a\n")
    (tmp_path / "weights.bin").write_text("not of the tokenizer")
    found = read_meta([f"tokenizer={tmp_path}"]).tokenizer
    assert found is not None
    assert list(found.files) == ["vocab.txt"]


def test_preprocess_is_recorded_and_may_not_contradict() -> None:
    declared = ModelMeta(preprocess=Preprocess.parse("imagenet,channels=bgr"))
    recorded = join_preprocess(None, "imagenet")
    assert recorded is not None
    assert recorded.preprocess == Preprocess.parse("imagenet")
    assert join_preprocess(declared, "imagenet") == declared  # the channels are left open
    with pytest.raises(UsageError) as caught:
        join_preprocess(declared, "imagenet,crop=192")
    assert caught.value.option == "preprocess"


def test_what_a_parent_records_is_kept_and_its_preprocessing_may_not_change() -> None:
    merged = merge_meta(ModelMeta(license="MIT"), FULL)
    assert merged == replace(FULL, license="MIT")
    assert merge_meta(None, FULL) == FULL
    with pytest.raises(UsageError):
        merge_meta(ModelMeta(preprocess=Preprocess.parse("unit")), FULL)


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "{",
        '{"classes": 3}',
        '{"classes": ["\\u001b[2J"]}',
        '{"preprocess": {"std": [0]}}',
        '{"tokenizer": {"source": "a", "files": {"b": "no digest"}}}',
        '{"extra": ' + "[" * 5000 + "]" * 5000 + "}",
        json.dumps({"classes": ["x" * 300]}),
        json.dumps({"license": "x" * MAX_META_BYTES}),
        json.dumps({"classes": [str(i) for i in range(70_000)]}),
    ],
)
def test_a_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(RunnerError):
        decode_meta(text)
