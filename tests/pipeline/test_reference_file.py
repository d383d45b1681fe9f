"""Reference files: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelc.core.contract import Array, Outputs
from modelc.core.errors import ErrorCode
from modelc.core.manifest import FeedPlan, Manifest
from modelc.core.records import Checkpoint, FileRecord, record_of
from modelc.pipeline.reference_file import (
    EXACT,
    RUN,
    ReferenceFileError,
    ReferenceIndex,
    ReferenceWriter,
    read_references,
    tie_variant,
)
from modelc.validators.feeds import NamedFeed
from modelc.validators.output_pairs import ReferenceOutputs

from ..open_models import signature_of

SIGNATURE = signature_of("x:float32[batch=1..4,3]", outputs=["scores", "best"])
MANIFEST = Manifest(
    modelc="1",
    created="2026-11-25T10:00:00+00:00",
    order={},
    checkpoint=Checkpoint(path="net.safetensors", kind="state_dict", digest="d" * 64, files=()),
    signature=SIGNATURE,
    feeds=FeedPlan(count=5, seed=0),
    environment={},
)
INDEX = ReferenceIndex(
    checkpoint="d" * 64,
    modelc="1",
    torch="2.9",
    inputs=SIGNATURE.inputs,
    outputs=SIGNATURE.outputs,
)
TIES = tie_variant(last=True, exact=False)


def reference(seed: int = 0, rows: int = 2) -> ReferenceOutputs:
    generator = np.random.default_rng(seed)
    feed = NamedFeed(
        name=f"feed-{seed}",
        arrays={"x": generator.standard_normal((rows, 3)).astype(np.float32)},
        sizes={"batch": rows},
        kind="shape",
        hiding=frozenset({"x"}),
    )
    scores = generator.standard_normal((rows, 5)).astype(np.float32)
    scores[0, :3] = [np.nan, np.inf, -0.0]
    outputs: Outputs = {"scores": scores, "best": np.array([1, 2], np.int64)}
    return ReferenceOutputs(feed=feed, outputs=outputs, left_out=frozenset({"best"}))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., FileRecord]:
    """`write(index)`: a file with a feed, its float64 outputs, and a variant without outputs."""

    def make(index: ReferenceIndex = INDEX, one: ReferenceOutputs | None = None) -> FileRecord:
        one = one or reference()
        writer = ReferenceWriter(tmp_path / "references.npz")
        writer.add_feed(one)
        exact = {
            n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in one.outputs.items()
        }
        exact["scores"] = exact["scores"] + 1e-9
        writer.add_answer(one.feed.arrays, EXACT, exact)
        writer.add_answer(one.feed.arrays, TIES, None)
        writer.finish(index)
        return record_of(writer.path)

    return make


def test_what_is_written_is_read(write: Callable[..., FileRecord], tmp_path: Path) -> None:
    one = reference()
    found = read_references(tmp_path, [write()], MANIFEST)
    (read,) = found.references
    assert (read.feed.name, read.feed.kind, read.feed.sizes) == ("feed-0", "shape", {"batch": 2})
    assert (*read.feed.hiding, *read.left_out) == ("x", "best")
    np.testing.assert_array_equal(read.feed.arrays["x"], one.feed.arrays["x"])
    for name, array in one.outputs.items():
        assert read.outputs[name].tobytes() == array.tobytes()
    answers = {variant: outputs for (_, variant), outputs in found.answers.items()}
    assert answers[TIES] is None
    exact = answers[EXACT]
    assert exact is not None
    wanted = one.outputs["scores"].astype(np.float64) + 1e-9
    assert exact["scores"].tobytes() == wanted.tobytes()


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_differences_are_restored_bit_for_bit(tmp_path: Path, kind: str) -> None:
    one = reference()
    generator = np.random.default_rng(1)
    scores = generator.standard_normal((2, 5)).astype(kind)
    scores[1, :2] = [np.nan, -np.inf]
    run = replace(one, outputs={**one.outputs, "scores": one.outputs["scores"].astype(np.float16)})
    for base in (one, run):
        writer = ReferenceWriter(tmp_path / "references.npz")
        writer.add_feed(base)
        for variant, array in (("other", scores), ("scalar", np.array(scores[0, 0]))):
            writer.add_answer(base.feed.arrays, variant, {"scores": array})
        writer.finish(INDEX)
        record = record_of(writer.path)
        found = read_references(tmp_path, [record], MANIFEST).answers
        other = {variant: outputs for (_, variant), outputs in found.items()}["other"]
        assert other is not None
        assert other["scores"].tobytes() == scores.tobytes()


def test_the_same_references_are_the_same_bytes(write: Callable[..., FileRecord]) -> None:
    assert write().sha256 == write().sha256


OTHER_INPUT = signature_of("x:float64[batch=1..4,3]").inputs
NARROW = signature_of("x:float32[batch=3..4,3]").inputs


@pytest.mark.parametrize(
    "index",
    [
        replace(INDEX, checkpoint="e" * 64),
        replace(INDEX, outputs=("scores",)),
        replace(INDEX, inputs=OTHER_INPUT),
        replace(INDEX, inputs=NARROW),
        replace(INDEX, inputs=()),
        replace(INDEX, format=2),
    ],
    ids=["checkpoint", "outputs", "dtype", "sizes", "inputs", "format"],
)
def test_references_of_another_model_are_refused(
    write: Callable[..., FileRecord], tmp_path: Path, index: ReferenceIndex
) -> None:
    record = write(index)
    with pytest.raises(ReferenceFileError) as caught:
        read_references(tmp_path, [record], MANIFEST)
    assert caught.value.code is ErrorCode.CORRUPT_FILE
    assert "\n" not in caught.value.message


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, Array]], None]) -> FileRecord:
    """The file with another index or other arrays, as someone may write it."""
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    index = json.loads(arrays.pop("index").tobytes())
    change(index, arrays)
    text = np.frombuffer(json.dumps(index).encode(), dtype=np.uint8)
    np.savez(path, index=text, **arrays)
    return record_of(path)


def without_arrays(_: dict[str, Any], arrays: dict[str, Array]) -> None:
    arrays.clear()


def with_objects(_: dict[str, Any], arrays: dict[str, Array]) -> None:
    arrays["0"] = np.array([{"a": print}], dtype=object)


def with_records(_: dict[str, Any], arrays: dict[str, Array]) -> None:
    arrays["0"] = np.zeros(3, dtype=[("a", "f4"), ("b", "f4")])


def with_text(_: dict[str, Any], arrays: dict[str, Array]) -> None:
    arrays["0"] = np.array(["a"])


def with_other_feed(_: dict[str, Any], arrays: dict[str, Array]) -> None:
    arrays["0"] = arrays["0"] + 1


def with_unknown_output(index: dict[str, Any], _: dict[str, Array]) -> None:
    answer = next(one for one in index["answers"] if one["variant"] == EXACT)
    answer["outputs"]["other"] = {"array": 0, "delta": False}


def without_run(index: dict[str, Any], _: dict[str, Array]) -> None:
    index["answers"] = [one for one in index["answers"] if one["variant"] != RUN]


def with_misfit_delta(index: dict[str, Any], _: dict[str, Array]) -> None:
    answer = next(one for one in index["answers"] if one["variant"] == EXACT)
    answer["outputs"]["scores"] = {"array": 0, "delta": True}


def with_byte_delta(index: dict[str, Any], arrays: dict[str, Array]) -> None:
    answer = next(one for one in index["answers"] if one["variant"] == EXACT)
    arrays["77"] = np.zeros((2, 5), np.int8)
    answer["outputs"]["scores"] = {"array": 77, "delta": True}


def beyond_the_domain(index: dict[str, Any], _: dict[str, Array]) -> None:
    for feed in index["feeds"]:
        feed["beyond"] = True


def without_feeds(index: dict[str, Any], _: dict[str, Array]) -> None:
    index["feeds"] = []


def with_wrong_types(index: dict[str, Any], _: dict[str, Array]) -> None:
    index["feeds"] = "none"


CHANGES = [
    without_arrays, with_objects, with_records, with_text, with_other_feed, with_unknown_output,
    without_run, with_misfit_delta, with_byte_delta, beyond_the_domain, without_feeds,
    with_wrong_types,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_damaged_references_are_refused(
    write: Callable[..., FileRecord],
    tmp_path: Path,
    change: Callable[[dict[str, Any], dict[str, Array]], None],
) -> None:
    """Even with the digest that the manifest of a malicious folder records."""
    write()
    record = rewritten(tmp_path / "references.npz", change)
    with pytest.raises(ReferenceFileError) as caught:
        read_references(tmp_path, [record], MANIFEST)
    assert caught.value.code is ErrorCode.CORRUPT_FILE


def test_a_bomb_is_not_unpacked(write: Callable[..., FileRecord], tmp_path: Path) -> None:
    write()
    path = tmp_path / "references.npz"
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open("99.npy", "w", force_zip64=True) as stream,
    ):
        for _ in range(300):
            stream.write(bytes(1 << 20))
    with pytest.raises(ReferenceFileError) as caught:
        read_references(tmp_path, [record_of(path)], MANIFEST)
    assert caught.value.code is ErrorCode.CORRUPT_FILE


def test_a_changed_file_is_not_read(write: Callable[..., FileRecord], tmp_path: Path) -> None:
    record = write()
    (tmp_path / "references.npz").write_bytes(b"other")
    with pytest.raises(ReferenceFileError) as caught:
        read_references(tmp_path, [record], MANIFEST)
    assert caught.value.code is ErrorCode.FILE_CHANGED
