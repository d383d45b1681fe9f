"""Seals: the same for equal records however they were read, another for any change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from modelc.core.grammar import parse_input
from modelc.core.manifest import Manifest
from modelc.core.signature import merge_inputs
from modelc.pipeline.cache.file_digests import FileDigests
from modelc.pipeline.cache.reuse import ReuseSources, find_up_to_date
from modelc.pipeline.manifest_file import encode_json, read_manifest
from modelc.pipeline.provenance.seals import (
    bind_manifest,
    canonical_digest,
    capture_method,
    is_bound,
    seal_document,
    seal_holds,
    signature_digest,
    unbind_artifact,
    verdict_digest,
)

from ...reasons import because


@pytest.fixture(scope="module")
def manifest(exported_digits: Path) -> Manifest:
    found = read_manifest(exported_digits)
    assert found is not None
    return found


def test_equal_values_have_one_digest_whatever_their_form() -> None:
    assert canonical_digest({"a": 1, "b": [1.0, {}]}) == canonical_digest({"b": [1, {}], "a": 1.0})
    assert canonical_digest({"a": 1}) == canonical_digest(
        {"a": 1, "later": None, "too": [], "as": 0}
    )


@pytest.mark.parametrize("other", [{"a": 2}, {"a": "1"}, {"b": 1}, {"a": [1]}, {"a": True}, {}])
def test_different_values_have_different_digests(other: dict[str, object]) -> None:
    assert canonical_digest({"a": 1}) != canonical_digest(other)


def test_elements_of_a_list_keep_their_places() -> None:
    assert canonical_digest([0, 1]) != canonical_digest([1, 0])
    assert canonical_digest([None, 1]) != canonical_digest([1])


def test_a_sealed_text_holds_until_a_byte_of_it_changes(manifest: Manifest) -> None:
    text = seal_document(encode_json(replace(manifest, seal="")))
    assert seal_holds(text) is True
    assert seal_holds(text.replace(b'"cpu"', b'"CPU"', 1)) is False
    assert seal_holds(text.replace(b"\n  ", b"\n\t ", 1)) is False


def test_a_document_without_a_seal_is_not_sealed() -> None:
    assert seal_holds(b"{}\n") is None
    with pytest.raises(RuntimeError):
        seal_document(b"{}\n")


def test_a_seal_is_valid_until_the_artifact_is_judged_again(manifest: Manifest) -> None:
    first = manifest.artifacts[0]
    changed = replace(
        manifest,
        verdicts=tuple(
            replace(one, device="another") if one.artifact == first.name else one
            for one in manifest.verdicts
        ),
    )
    assert is_bound(first, manifest)
    assert not is_bound(bind_manifest(changed).artifacts[0], changed)
    anew = bind_manifest(unbind_artifact(changed, first.name))
    assert is_bound(anew.artifacts[0], anew)
    assert anew.artifacts[0].seal != first.seal


def test_file_locations_are_not_in_the_digest_of_a_verdict(manifest: Manifest) -> None:
    verdict = manifest.verdicts[0]
    assert verdict_digest(replace(verdict, artifact="rejected/x")) == verdict_digest(verdict)
    assert verdict_digest(replace(verdict, reasons=because("x"))) != verdict_digest(verdict)


def test_an_artifact_with_an_edited_verdict_is_not_up_to_date(
    manifest: Manifest, exported_digits: Path, tmp_path: Path
) -> None:
    keyed = replace(
        manifest, artifacts=tuple(replace(one, key=f"k-{one.name}") for one in manifest.artifacts)
    )
    keys = {one.name: one.key for one in keyed.artifacts}
    first, *others = keyed.verdicts
    edited = replace(keyed, verdicts=(replace(first, reasons=because("better than that")), *others))
    with FileDigests(tmp_path) as digests:
        place = exported_digits
        caching = ReuseSources(root=Path.cwd(), digests=digests)
        before = find_up_to_date(keyed, place, keys, caching)
        after = find_up_to_date(edited, place, keys, caching)
    assert set(before.artifacts) == set(keys)
    assert set(before.artifacts) - set(after.artifacts) == {first.artifact}


def test_another_dim_dtype_or_order_is_another_signature() -> None:
    texts = (["x:float32[b=1..4,3]"], ["x:float32[b=1..5,3]"], ["x:float16[b=1..4,3]"])
    specs = [merge_inputs([parse_input(one) for one in text], {}) for text in texts]
    assert len({signature_digest(one) for one in specs}) == 3
    named = specs[0].with_outputs(("a", "b"))
    assert signature_digest(named) != signature_digest(specs[0].with_outputs(("b", "a")))


def test_the_capture_is_found_along_the_lineage(manifest: Manifest) -> None:
    found = {one.name: capture_method(one, manifest) for one in manifest.artifacts}
    assert found["onnx"] == found["openvino"] == found["openvino-fp16"] == "export"
    alone = replace(manifest, artifacts=tuple(a for a in manifest.artifacts if a.name != "onnx"))
    assert capture_method(next(a for a in alone.artifacts if a.name == "openvino"), alone) == ""
