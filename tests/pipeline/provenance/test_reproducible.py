"""The same inputs and versions give the same bytes in any process, folder and environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.core.records import sha256_of
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Source

pytestmark = pytest.mark.slow

SAMPLE_MODELS = Path(__file__).parents[3] / "sample_models"
ONE = {"PYTHONHASHSEED": "1", "TZ": "UTC", "OMP_NUM_THREADS": "1"}
OTHER = {"PYTHONHASHSEED": "4242", "TZ": "Asia/Tokyo", "OMP_NUM_THREADS": "2"}
FULL = ("onnx", "onnx:fp16", "openvino", "openvino:fp16", "torchscript", "pt2")
TRACED = ("torchscript", "onnx", "openvino")


def digests(source: Source, out: Path, around: Mapping[str, str], *more: str) -> dict[str, str]:
    """SHA-256 of the files of artifacts that a process of its own made in `out`, by name."""
    out.parent.mkdir(parents=True)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "modelc", "export", str(source.checkpoint)),
            *("--model", str(source.model), "--no-cache", "--quiet", "-o", str(out)),
            *(f"--model-arg={key}={value}" for key, value in source.model_args.items()),
            *(f"--input={spec}" for spec in source.inputs),
            *(() if source.samples is None else ("--samples", str(source.samples))),
            *more,
        ],
        cwd=out.parent,
        env={**os.environ, **around, "PYTHONPATH": _absolute(os.environ.get("PYTHONPATH", ""))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr + ended.stdout
    manifest = read_manifest(out)
    assert manifest is not None
    return {file.name: sha256_of(out / file.name) for file in manifest.files}


def _absolute(paths: str) -> str:
    return os.pathsep.join(str(Path(path).absolute()) for path in paths.split(os.pathsep) if path)


def twice(source: Source, folder: Path, *more: str) -> tuple[dict[str, str], dict[str, str]]:
    """The same export in two processes that agree in nothing else; a copy of the weights each."""
    found = []
    for around, place in ((ONE, "a"), (OTHER, "another/and/deeper")):
        (folder / place).mkdir(parents=True)
        copy = folder / place / source.checkpoint.name
        copy.write_bytes(source.checkpoint.read_bytes())
        mine = replace(source, checkpoint=copy)
        found.append(digests(mine, folder / place / "in" / "out", around, *more))
    return found[0], found[1]


def to(*targets: str) -> tuple[str, ...]:
    return tuple(f"--to={target}" for target in targets)


def test_digits_in_every_format_and_int8(digits_source: Source, tmp_path: Path) -> None:
    # Two quantizers would be chosen between by what they take in time, too.
    calib = ("--calib", str(SAMPLE_MODELS / "digits_calib"), "--quantizer", "onnxruntime")
    wanted = to(*FULL, "onnx:int8", "openvino:int8")
    one, other = twice(digits_source, tmp_path, *wanted, *calib)
    assert one == other
    assert {"model.onnx", "model.xml", "model.bin", "model.int8.onnx", "model.int8.xml"} <= set(one)
    assert {"model.torchscript.pt", "model.pt2"} <= set(one)


def test_an_encoder_in_every_format(bert_source: Source, tmp_path: Path) -> None:
    one, other = twice(bert_source, tmp_path, *to(*FULL))
    assert one == other
    assert {"model.onnx", "model.xml", "model.bin", "model.pt2"} <= set(one)


def test_a_model_with_a_branch_scripted_and_as_onnx(gate_source: Source, tmp_path: Path) -> None:
    one, other = twice(gate_source, tmp_path, *to(*TRACED))
    assert one == other
    assert {"model.onnx", "model.xml", "model.torchscript.pt"} <= set(one)


def test_another_seed_of_the_feeds_changes_the_file(gate_source: Source, tmp_path: Path) -> None:
    """The check above can fail: what an artifact says inside follows what it was judged by."""
    wanted = to("torchscript")
    one = digests(gate_source, tmp_path / "a" / "out", ONE, *wanted)
    other = digests(gate_source, tmp_path / "b" / "out", ONE, *wanted, "--seed=5")
    assert one.keys() == other.keys()
    assert one != other
