"""INT8 of a detector that joins boxes in pixels and scores in 0..1 in one tensor."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from modelc.calibration.calibration_options import CalibrationOptions
from modelc.converters.registry import target_named
from modelc.core.kinds import Precision
from modelc.core.manifest import Manifest
from modelc.pipeline.order import Lowering, Order, Source, Wanted
from modelc.pipeline.run_order import run

HERE = Path(__file__).parent
IMAGES, SCORES = 24, slice(4, None)


@pytest.fixture(scope="module")
def calib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calib")
    draw = np.random.default_rng(0)
    for index in range(IMAGES):
        image = draw.standard_normal((3, 16, 16)).astype(np.float32)
        np.save(folder / f"{index:02}.npy", image)
    return folder


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    from safetensors.torch import save_file

    sys.path.append(str(HERE))  # tests are not a package
    nets = importlib.import_module("head_nets")
    path = tmp_path_factory.mktemp("nets") / "head.safetensors"
    save_file(nets.head().state_dict(), path)
    yield Source(
        checkpoint=path,
        model="head_nets:head",
        inputs=("x:float32[batch=1..2,3,16,16]{-5..5}",),
    )
    sys.path.remove(str(HERE))


def int8_by(quantizer: str | None, source: Source, calib: Path, out: Path, to: str) -> Manifest:
    options = CalibrationOptions(source=str(calib))
    lowering = Lowering(calibration=options, quantizer=quantizer)
    wanted = (Wanted(target=to, precision=Precision.INT8),)
    return run(Order(source=source, wanted=wanted, out=out, lowering=lowering))


def scores_vary(path: Path, manifest: Manifest, calib: Path) -> bool:
    """By running the file, without the judge."""
    with target_named("onnx").open_runner(path, "cpu", manifest.signature) as runner:
        outputs = [runner.run({"x": np.load(one)[None]}) for one in sorted(calib.glob("*.npy"))]
    scores = np.concatenate([next(iter(o.values()))[:, SCORES] for o in outputs])
    return bool(np.ptp(scores, axis=(0, 2, 3)).all())


def test_int8_whose_scores_are_constant_is_rejected(
    detector: Source, calib: Path, tmp_path: Path
) -> None:
    manifest = int8_by("onnxruntime", detector, calib, tmp_path, "onnx")
    assert manifest.exit_code == 1
    (artifact,) = (a for a in manifest.artifacts if a.precision is Precision.INT8)
    assert artifact.rejected
    assert not scores_vary(tmp_path / artifact.files[0].name, manifest, calib)
    verdict = manifest.verdict_of(artifact.name)
    assert verdict is not None
    assert verdict.sqnr is not None
    assert verdict.sqnr > verdict.tolerance.min_sqnr
    (dead,) = (group for group in verdict.groups if group.dead_count)
    assert (dead.axis, dead.dead) == (1, ((4, 13),))
