"""The sample models at full size, in every format: exported, and validated from their manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from modelc.converters.registry import target_named
from modelc.core.contract import Feed, Outputs
from modelc.core.manifest import Manifest
from modelc.core.verdict import State
from modelc.pipeline.api import export
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_folder import validate_folder
from modelc.sample_models import encoder, gate, lstm, make, nested, resnet

pytestmark = [pytest.mark.slow, pytest.mark.needs("onnx"), pytest.mark.needs("openvino")]

FORMATS = ("torchscript", "onnx", "openvino", "openvino:fp16")
NAMES = ("torchscript", "onnx", "openvino", "openvino-fp16")
FACTORIES = {  # name in make.FACTORIES -> factory and inputs
    "resnet": ("resnet:resnet50", resnet.SIGNATURE),
    "encoder": ("encoder:bert", encoder.SIGNATURE),
    "lstm": ("lstm:tagger", lstm.SIGNATURE),
    "nested": ("nested:detector", nested.SIGNATURE),
    "gate": ("gate:gate", gate.SIGNATURE),
}


@pytest.fixture(scope="module", params=["digits", "resnet", "encoder", "lstm", "nested", "gate"])
def folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, digits_source: Source
) -> Iterator[Path]:
    """One model in four artifacts; removed after its tests, as some are large."""
    import shutil
    import warnings

    place = tmp_path_factory.mktemp(request.param)
    source = digits_source
    if request.param != "digits":
        factory, inputs = FACTORIES[request.param]
        path = make.write_checkpoint(request.param, place)
        source = Source(checkpoint=path, model=f"modelc.sample_models.{factory}", inputs=inputs)
    wanted = tuple(Wanted.parse(text) for text in FORMATS)
    with warnings.catch_warnings(record=True):
        run(Order(source=source, wanted=wanted, out=place / "out"))
    yield place / "out"
    shutil.rmtree(place)


@pytest.fixture
def manifest(folder: Path) -> Manifest:
    found = read_manifest(folder)
    assert found is not None
    return found


def test_all_four_artifacts_pass(manifest: Manifest) -> None:
    assert {v.artifact: (v.state, v.reason) for v in manifest.verdicts} == dict.fromkeys(
        NAMES, (State.PASSED, "")
    )
    assert manifest.exit_code == 0


def test_every_verdict_rests_on_three_shapes(manifest: Manifest) -> None:
    for verdict in manifest.verdicts:
        assert {"min", "opt", "max"} <= set(verdict.feeds)
        shapes = {
            o.feed: o.shape for o in verdict.outputs if o.output == manifest.signature.outputs[0]
        }
        assert len({shapes["min"], shapes["opt"], shapes["max"]}) == 3


def test_the_folder_passes_again_from_its_manifest_alone(folder: Path, manifest: Manifest) -> None:
    found = validate_folder(folder)
    assert found.passed
    assert found.exit_code == 0
    assert [v.feeds for v in found.verdicts] == [v.feeds for v in manifest.verdicts]


def test_half_weights_take_about_half_the_bytes(manifest: Manifest) -> None:
    sizes = {artifact.name: artifact.size for artifact in manifest.artifacts}
    if sizes["openvino"] > 1_000_000:  # below that, the graph's own text counts
        assert 0.45 < sizes["openvino-fp16"] / sizes["openvino"] < 0.6


def test_single_precision_is_far_better_than_its_tolerance(manifest: Manifest) -> None:
    for name in ("torchscript", "onnx", "openvino"):
        verdict = manifest.verdict_of(name)
        assert verdict is not None
        assert verdict.sqnr is None or verdict.sqnr > 100


def test_gate_is_right_for_both_outcomes_in_every_format(tmp_path: Path) -> None:
    path = make.write_checkpoint("gate", tmp_path)
    found = export(
        path,
        to=FORMATS,
        out=tmp_path / "out",
        model="modelc.sample_models.gate:gate",
        inputs=gate.SIGNATURE,
    ).manifest
    assert found.passed
    captures = {artifact.name: artifact.capture for artifact in found.artifacts}
    assert (captures["torchscript"], captures["onnx"]) == ("script", "script")
    for name in NAMES:
        assert outcomes_of(found, name, tmp_path / "out") == {True, False}


def outcomes_of(manifest: Manifest, name: str, folder: Path) -> set[bool]:
    """The outcomes for which the artifact equals gate itself, on feeds drawn here."""
    artifact = next(artifact for artifact in manifest.artifacts if artifact.name == name)
    right: set[bool] = set()
    generator = np.random.default_rng(5)
    path = folder / artifact.files[0].name
    with target_named(artifact.target).open_runner(path, "cpu", manifest.signature) as runner:
        for shift in (1.0, -1.0, 0.5, -0.5):
            feed = {"x": (generator.standard_normal((3, 16)) + shift).astype(np.float32)}
            (output,) = runner.run(feed).values()
            if np.allclose(output, eagerly(feed)["output"], atol=1e-3):
                right.add(bool(feed["x"].mean() > 0))
    return right


def eagerly(feed: Feed) -> Outputs:
    import torch

    with torch.no_grad():
        return {"output": gate.gate()(torch.tensor(feed["x"])).numpy()}


@pytest.fixture(scope="module")
def heldout(digits_source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels that training never saw."""
    with np.load(digits_source.checkpoint.with_name("digits_heldout.npz")) as archive:
        return archive["x"], archive["y"]


def hits(run_it: Callable[[Feed], Outputs], images: np.ndarray, labels: np.ndarray) -> int:
    """The number of right classes, eight images at a time."""
    parts = [images[start : start + 8] for start in range(0, len(images), 8)]
    answers = [next(iter(run_it({"x": part}).values())).argmax(axis=1) for part in parts]
    return int((np.concatenate(answers) == labels).sum())


@pytest.mark.parametrize("name", [*NAMES, "pt2"])
def test_every_artifact_classifies_as_many_digits_as_eager(
    exported_digits: Path, heldout: tuple[np.ndarray, np.ndarray], name: str
) -> None:
    from modelc.checkpoints.checkpoint_files import identify
    from modelc.checkpoints.checkpoint_loader import load_checkpoint
    from modelc.checkpoints.eager_model import open_eager
    from modelc.pipeline.recorded_run import Moved, source_from_record

    manifest = read_manifest(exported_digits)
    assert manifest is not None
    source = source_from_record(manifest, exported_digits, Moved())
    checkpoint = identify(source.checkpoint, factory=source.model, factory_args=source.model_args)
    eager = open_eager(load_checkpoint(checkpoint), manifest.signature)
    artifact = next(artifact for artifact in manifest.artifacts if artifact.name == name)
    path = exported_digits / artifact.files[0].name
    with target_named(artifact.target).open_runner(path, "cpu", manifest.signature) as runner:
        found = hits(runner.run, *heldout)
    assert found == hits(eager.run, *heldout)
    assert found > 0.99 * len(heldout[1])
