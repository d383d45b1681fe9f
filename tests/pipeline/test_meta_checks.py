"""Metadata is checked against the model, embedded in every format, and compared by verify."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from modelc.converters.registry import TARGETS, target_named
from modelc.core.errors import UsageError
from modelc.core.events import Noted
from modelc.core.manifest import Manifest
from modelc.core.model_meta import ModelMeta, TokenizerReference
from modelc.core.preprocess import Preprocess
from modelc.core.records import sha256_of
from modelc.pipeline.inspection import inspect
from modelc.pipeline.manifest_file import MANIFEST_FILE, read_manifest, write_manifest
from modelc.pipeline.model_metadata import decode_meta, read_meta
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.provenance.artifact_checks import CheckOutcome
from modelc.pipeline.provenance.verify_folder import verify_folder
from modelc.pipeline.run_order import run
from modelc.reports.html_page import render_html

META = ModelMeta(
    classes=tuple("abcdefghij"),
    preprocess=Preprocess.parse("scale=1/255,channels=gray"),
    license="MIT",
    extra={"team": "<vision>"},
)


def digits(source: Source, out: Path, *targets: str, meta: ModelMeta | None = META) -> Manifest:
    return run(Order(source=source, wanted=tuple(map(Wanted.parse, targets)), out=out, meta=meta))


def failing(folder: Path) -> set[tuple[str, str]]:
    found = verify_folder(folder).checks
    return {(one.of, one.what) for one in found if one.found is CheckOutcome.FAILED}


@pytest.mark.parametrize(
    "text",
    [
        "classes=a,b,c",
        "classes-output=missing",
        "classes-output=output",
        "preprocess=imagenet",
        "preprocess=resize=9x9,channels=gray",
        "preprocess=layout=NHWC,channels=gray",
        "preprocess-input=y",
        "preprocess-input=x",
    ],
)
def test_what_contradicts_the_model_is_refused(
    digits_source: Source, tmp_path: Path, text: str
) -> None:
    with pytest.raises(UsageError) as caught:
        digits(digits_source, tmp_path / "out", "torchscript", meta=read_meta([text]))
    assert caught.value.option in ("meta", "preprocess")
    assert not (tmp_path / "out" / MANIFEST_FILE).exists()


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (
            "resize=9x9,channels=gray,scale=1/255",
            "resize=8x8,layout=NCHW,channels=gray,scale=1/255",
        ),
        ("layout=NHWC,channels=gray,mean=0.5", "layout=NCHW,channels=gray,mean=0.5"),
    ],
)
def test_the_hint_changes_only_what_is_wrong(
    digits_source: Source, tmp_path: Path, text: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        digits(digits_source, tmp_path, "torchscript", meta=read_meta([f"preprocess={text}"]))
    assert caught.value.hint == f"give --meta preprocess={hint}"


@pytest.mark.slow
def test_every_format_holds_it_and_reads_it_back(digits_source: Source, tmp_path: Path) -> None:
    names = ("torchscript", "pt2", "onnx", "openvino", "onnx:fp16", "tensorrt-onnx")
    manifest = digits(digits_source, tmp_path, *names)
    assert manifest.passed
    whole = replace(
        META,
        classes_output="output",
        preprocess=Preprocess.parse("scale=1/255,channels=gray,layout=NCHW"),
        preprocess_input="x",
    )
    assert manifest.meta == whole
    for artifact in manifest.artifacts:
        path = tmp_path / artifact.files[0].name
        stated = target_named(artifact.target, TARGETS).read_metadata(path)  # type: ignore[attr-defined]
        assert decode_meta(stated["meta"]) == whole, artifact.name
        assert inspect(path).meta == whole, artifact.name
    assert not failing(tmp_path)


def test_onnx_has_the_keys_of_other_tools(digits_source: Source, tmp_path: Path) -> None:
    digits(digits_source, tmp_path, "onnx")
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    found = {entry.key: entry.value for entry in model.metadata_props}
    assert found["model_license"] == "MIT"
    assert found["names"].startswith("{0: 'a', 1: 'b'")
    found["modelc.meta"] = "["
    onnx.helper.set_model_props(model, found)
    onnx.save(model, tmp_path / "hostile.onnx")
    hostile = inspect(tmp_path / "hostile.onnx")
    assert hostile.meta is None
    assert "meta" in hostile.inspection.facts


def test_verify_finds_other_metadata(digits_source: Source, tmp_path: Path) -> None:
    digits(digits_source, tmp_path, "torchscript")
    assert not failing(tmp_path)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    write_manifest(replace(manifest, meta=replace(manifest.meta, license="GPL-3.0")), tmp_path)
    assert failing(tmp_path) == {("torchscript", "inside")}


def test_artifacts_of_an_earlier_run_are_named(digits_source: Source, tmp_path: Path) -> None:
    digits(digits_source, tmp_path, "torchscript", meta=None)
    events: list[object] = []
    wanted = (Wanted.parse("pt2"),)
    run(Order(source=digits_source, wanted=wanted, out=tmp_path, meta=META), events.append)
    notes = [one.text for one in events if isinstance(one, Noted) and one.warning]
    assert any(text.startswith("torchscript ") for text in notes)
    assert ("torchscript", "inside") in failing(tmp_path)
    assert ("pt2", "inside") not in failing(tmp_path)
    events.clear()
    again = (Wanted.parse("torchscript"), Wanted.parse("pt2"))
    run(Order(source=digits_source, wanted=again, out=tmp_path, meta=META), events.append)
    assert not [one for one in events if isinstance(one, Noted) and one.warning]


def test_a_changed_tokenizer_is_a_fault(digits_source: Source, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    tokens = TokenizerReference(source=str(file), files={file.name: sha256_of(file)})
    out = tmp_path / "out"
    digits(digits_source, out, "torchscript", meta=ModelMeta(tokenizer=tokens))
    assert not failing(out)
    file.write_text("[]")
    assert failing(out) == {("tokenizer", "files")}
    file.unlink()
    assert not failing(out)


def test_the_report_shows_it_escaped(records: object) -> None:
    manifest: Manifest = records.full()  # type: ignore[attr-defined]
    page = render_html(replace(manifest, meta=META))
    assert 'id="metadata"' in page
    assert "&lt;vision&gt;" in page
    assert 'id="metadata"' not in render_html(manifest)


def test_a_hostile_manifest_is_no_manifest(digits_source: Source, tmp_path: Path) -> None:
    digits(digits_source, tmp_path, "torchscript")
    document = json.loads((tmp_path / MANIFEST_FILE).read_bytes())
    document["meta"]["preprocess"]["std"] = [0]
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(document))
    with pytest.raises(UsageError):
        read_manifest(tmp_path)


def test_a_build_keeps_the_metadata_of_its_parent(digits_source: Source, tmp_path: Path) -> None:
    from modelc.pipeline.make_order import build_order

    digits(digits_source, tmp_path, "onnx")
    path = tmp_path / "model.onnx"
    wanted = (Wanted.parse("openvino"),)
    order = Order(source=Source(checkpoint=path), wanted=wanted, out=tmp_path)
    built = build_order(path, order)
    assert built.meta is not None
    assert built.meta.license == "MIT"
    other = replace(order, meta=ModelMeta(preprocess=Preprocess.parse("unit,channels=bgr")))
    with pytest.raises(UsageError):
        build_order(path, other)
