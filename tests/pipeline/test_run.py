"""A run on digits, from its manifest."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from modelc import __version__
from modelc.core.contract import EAGER
from modelc.core.manifest import Manifest
from modelc.core.records import Artifact, sha256_of
from modelc.core.verdict import State
from modelc.pipeline.manifest_file import MANIFEST_FILE, read_manifest
from modelc.pipeline.order import Source


@pytest.fixture(scope="module")
def manifest(exported_digits: Path) -> Manifest:
    found = read_manifest(exported_digits)
    assert found is not None
    return found


def named(manifest: Manifest, name: str) -> Artifact:
    return next(artifact for artifact in manifest.artifacts if artifact.name == name)


def test_every_step_has_an_artifact_that_passed(manifest: Manifest) -> None:
    names = tuple(artifact.name for artifact in manifest.artifacts)
    assert (manifest.passed, manifest.exit_code) == (True, 0)
    assert (manifest.failures, manifest.notes) == ((), ())
    assert manifest.steps == names
    assert tuple(verdict.artifact for verdict in manifest.verdicts) == names
    assert {verdict.state for verdict in manifest.verdicts} == {State.PASSED}


def test_digests_and_sizes_are_the_files_own(manifest: Manifest, exported_digits: Path) -> None:
    for file in (file for artifact in manifest.artifacts for file in artifact.files):
        path = exported_digits / file.name
        assert (file.sha256, file.size) == (sha256_of(path), path.stat().st_size)


def test_the_folder_contains_the_files_of_the_manifest_and_logs(
    manifest: Manifest, exported_digits: Path
) -> None:
    files = {file.name for artifact in manifest.artifacts for file in artifact.files}
    found = {path.name for path in exported_digits.iterdir()}
    assert found == {*files, MANIFEST_FILE, "logs", "worst"}


def test_checkpoint_and_samples_are_recorded_by_relative_path_and_digest(
    manifest: Manifest, digits_source: Source, exported_digits: Path
) -> None:
    found, samples = manifest.checkpoint, digits_source.samples
    assert samples is not None
    assert found.factory == digits_source.model
    assert found.digest == sha256_of(digits_source.checkpoint)
    assert manifest.feeds.samples_digest == sha256_of(samples)
    assert (exported_digits / found.path).samefile(digits_source.checkpoint)
    assert (exported_digits / str(manifest.feeds.samples)).samefile(samples)


def test_a_captured_artifact_descends_from_the_checkpoint(manifest: Manifest) -> None:
    found = named(manifest, "torchscript")
    assert (found.parent, found.made_from) == (manifest.checkpoint.digest, EAGER)


@pytest.mark.needs("onnx")
@pytest.mark.needs("openvino")
@pytest.mark.parametrize("name", ["openvino", "openvino-fp16"])
def test_an_ir_descends_from_the_onnx(manifest: Manifest, name: str) -> None:
    found = named(manifest, name)
    assert (found.parent, found.made_from) == (named(manifest, "onnx").digest, "onnx")


def test_versions_are_recorded(manifest: Manifest) -> None:
    assert manifest.modelc == __version__
    assert {"python", "platform", "torch", "numpy"} <= set(manifest.environment)
    assert all(artifact.versions for artifact in manifest.artifacts)


def test_the_attempt_that_passed_is_recorded(manifest: Manifest) -> None:
    for artifact in manifest.artifacts:
        (attempt,) = artifact.attempts
        assert (attempt.outcome, attempt.reason) == ("passed", "")
        assert attempt.capture == (artifact.capture or "convert")


def test_every_output_is_judged_on_every_feed(manifest: Manifest) -> None:
    for verdict in manifest.verdicts:
        assert verdict.feeds[:4] == ("sample", "min", "opt", "max")
        judged = [(output.feed, output.output) for output in verdict.outputs]
        assert judged == [(feed, "output") for feed in verdict.feeds]
        assert {output.shape for output in verdict.outputs} >= {(1, 10), (4, 10), (8, 10)}


def test_the_manifest_names_no_absolute_path(exported_digits: Path) -> None:
    document = json.loads((exported_digits / MANIFEST_FILE).read_text())
    document.pop("needs")  # has what other tests of this process read as well
    texts = re.findall(r'"([^"]*)"', json.dumps(document))
    assert len(texts) > 99
    assert not [text for text in texts if Path(text).is_absolute()]
