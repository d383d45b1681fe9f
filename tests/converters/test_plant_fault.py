"""Faults that formats plant in copies of their files: each alters what the copy computes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from modelc.core.contract import Outputs, Target
from modelc.core.errors import RunnerError
from modelc.core.records import sha256_of
from modelc.core.target_extensions import FaultKind, Plantable, PlantedFault
from modelc.pipeline.eager_reference import EagerReference
from modelc.validators.feeds import FeedDrawer

# Of digits in these formats there is nothing to alter, or no way to alter it.
NONE = {
    ("onnx", FaultKind.EPSILON): "batch norms are folded into convolutions",
    ("openvino", FaultKind.EPSILON): "batch norms are folded into convolutions",
    ("tensorrt-onnx", FaultKind.EPSILON): "batch norms are folded into convolutions",
    ("torchscript", FaultKind.EPSILON): "a script has it as a constant of the module",
    ("torchscript", FaultKind.ATTRIBUTE): "no operator has another number",
    ("pt2", FaultKind.ATTRIBUTE): "no operator has another number",
    ("pt2", FaultKind.SIZE): "a guard would have to allow it",
}


def run(target: Target, path: Path, digits: EagerReference, sizes: dict[str, int]) -> Outputs:
    """The outputs of a file on a feed that is drawn at these sizes."""
    feed = FeedDrawer.of(digits.signature, 0, None).feed("drawn", sizes)
    with target.open_runner(path, "cpu", digits.signature) as runner:
        return runner.run(feed.arrays)


def planted(
    target: Plantable, path: Path, kind: FaultKind, seed: int, digits: EagerReference, folder: Path
) -> PlantedFault | None:
    place = folder / f"{kind}-{seed}"
    place.mkdir(parents=True)
    return target.plant_fault(path, kind, Random(seed), digits.signature, place)


@pytest.mark.parametrize("kind", list(FaultKind))
def test_a_fault_alters_what_a_copy_computes(
    target: Target, model_file: Path, digits: EagerReference, kind: FaultKind, tmp_path: Path
) -> None:
    if not isinstance(target, Plantable):
        pytest.skip("files of this format cannot be altered")
    digest = sha256_of(model_file)
    altered = 0
    for seed in range(4):
        fault = planted(target, model_file, kind, seed, digits, tmp_path)
        if fault is None:
            assert (target.NAME, kind) in NONE
            return
        assert fault.place
        assert fault.change
        assert set(fault.sizes) == ({"batch"} if kind is FaultKind.SIZE else set())
        sizes = {"batch": 4, **fault.sizes}
        try:
            wrong = run(target, fault.path, digits, sizes)
        except RunnerError:
            altered += 1  # a runtime may reject what is altered
            continue
        right = run(target, model_file, digits, sizes)
        altered += any(not np.array_equal(right[name], wrong[name]) for name in right)
    assert altered
    assert sha256_of(model_file) == digest


def test_the_same_draw_plants_the_same_fault(
    target: Target, model_file: Path, digits: EagerReference, tmp_path: Path
) -> None:
    if not isinstance(target, Plantable):
        pytest.skip("files of this format cannot be altered")
    faults = [
        planted(target, model_file, FaultKind.WEIGHT, 3, digits, tmp_path / folder)
        for folder in ("first", "second")
    ]
    (one,) = {fault and (fault.place, fault.change) for fault in faults}
    assert one is not None
