"""Formats that narrow integers are held to the range that they are right in."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from torch import Tensor, nn

from modelc.core.kinds import ReasonCode
from modelc.core.manifest import Manifest
from modelc.core.signature import ValueRange
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_file import rejudge_folder, validate_file
from modelc.pipeline.validate_folder import validate_folder

from ..conftest import saved

WIDE: tuple[float, float] = (-(2**40), 2**40)
INT32: tuple[float, float] = (-(2**31) + 1, 2**31 - 1)
FLOAT: tuple[float, float] = (-(2**20), 2**20)


class Scaled(nn.Module):
    """Floats beside integers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 0.5))


class Passed(Scaled):
    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return x * self.scale, ids + 0


class Shifted(Scaled):
    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return x * self.scale, ids >> 2


class Divided(Scaled):
    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return x * self.scale, torch.div(ids, 3, rounding_mode="trunc")


class Days(Scaled):
    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return x * self.scale, torch.div(ids, 86_400, rounding_mode="floor")


class Timed(nn.Module):
    """Sines of a time step: of large steps no two runtimes have the same."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.out = nn.Linear(32, 4)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        angles = ids[:, None].float() * torch.exp(-torch.arange(16) / 16 * 9.2)
        found: Tensor = self.out(torch.cat([angles.sin(), angles.cos()], 1))
        return x + found


NETS = {net.__name__: net for net in (Passed, Shifted, Divided, Days, Timed)}


def exported(
    name: str,
    folder: Path,
    *targets: str,
    ids: str = "ids:int64[batch]",
    samples: Path | None = None,
) -> Manifest:
    """The manifest of the net in these formats, made in `folder/out`."""
    module = f"restricted_{name}"
    sys.modules[module] = sys.modules[__name__]
    source = Source(
        checkpoint=saved(name, NETS[name](), folder),
        model=f"{module}:{name}",
        inputs=("x:float32[batch=1..4,4]", ids),
        samples=samples,
    )
    wanted = tuple(Wanted.parse(target) for target in targets)
    return run(Order(source=source, wanted=wanted, out=folder / "out", judging=Judging()))


def domain(manifest: Manifest, name: str) -> tuple[float, float]:
    """The range of ids that the artifact passed in."""
    verdict = manifest.verdict_of(name)
    artifact = next(one for one in manifest.artifacts if one.name == name)
    assert verdict is not None
    assert verdict.passed, verdict.reason
    assert artifact.domain is not None
    values = artifact.domain.inputs[1].values
    assert values is not None
    return values.low, values.high


def test_openvino_computes_integers_in_32_bits(tmp_path: Path) -> None:
    manifest = exported("Passed", tmp_path, "onnx", "openvino")
    assert manifest.signature.inputs[1].values == ValueRange(
        low=-(2**40), high=2**40, chosen=True, usual=(0, 1)
    )
    assert domain(manifest, "onnx") == WIDE
    assert domain(manifest, "openvino") == INT32
    again = validate_folder(tmp_path / "out")
    assert domain(again, "openvino") == INT32
    assert domain(rejudge_folder(tmp_path / "out", Judging()), "openvino") == INT32
    source = Source(
        checkpoint=tmp_path / "Passed.safetensors",
        model="restricted_Passed:Passed",
        inputs=("x:float32[batch=1..4,4]", "ids:int64[batch]"),
    )
    alone = validate_file(tmp_path / "out" / "model.xml", source)
    assert alone.passed
    assert alone.domain is not None
    values = alone.domain.inputs[1].values
    assert values is not None
    assert (values.low, values.high) == INT32
    assert alone.domain.settings["INFERENCE_PRECISION_HINT"] == "f32"


def test_openvino_shifts_no_negative_number(tmp_path: Path) -> None:
    manifest = exported("Shifted", tmp_path, "onnx", "openvino")
    low, high = domain(manifest, "openvino")
    assert low == 0
    assert high >= FLOAT[1]


def test_onnx_divides_through_floats(tmp_path: Path) -> None:
    manifest = exported("Divided", tmp_path, "onnx", "torchscript")
    assert domain(manifest, "onnx") == FLOAT
    assert domain(manifest, "torchscript") == WIDE


def test_a_model_that_is_unstable_at_large_values_passes(tmp_path: Path) -> None:
    manifest = exported("Timed", tmp_path, "onnx")
    low, high = domain(manifest, "onnx")
    assert low <= -1023
    assert high >= 1023


def test_a_stated_range_is_not_narrowed(tmp_path: Path) -> None:
    ids = f"ids:int64[batch]{{0..{2**40}}}"
    manifest = exported("Passed", tmp_path, "onnx", "openvino", ids=ids)
    assert domain(manifest, "onnx") == (0, 2**40)
    (tmp_path / "half").mkdir()
    half = exported("Passed", tmp_path / "half", "openvino", ids=f"ids:int64[batch]{{0..{2**30}}}")
    assert domain(half, "openvino") == (0, 2**30)  # it holds
    verdict = manifest.verdict_of("rejected/openvino")
    assert verdict is not None
    assert verdict.faults[0].code is ReasonCode.WIDE_VALUES
    assert verdict.faults[0].text.endswith(f" {2**31}")


def test_days_are_right_over_a_stated_range_of_seconds(tmp_path: Path) -> None:
    """The first capture divides in floats, which are a day off one second before midnight."""
    exported("Days", tmp_path, "onnx", ids=f"ids:int64[batch]{{0..{2**31 - 1}}}")
    session = ort.InferenceSession(tmp_path / "out" / "model.onnx")
    feed = 86_400 * np.arange(1, 24_855) - 1
    found = session.run(None, {"x": np.ones((len(feed), 4), np.float32), "ids": feed})[1]
    assert np.array_equal(found, feed // 86_400)


def test_a_range_that_holds_large_samples_alone_has_wide_feeds(tmp_path: Path) -> None:
    """Timestamps at noon: floats give the right day, as they do for small numbers."""
    samples = tmp_path / "rows.npz"
    ids = 86_400 * np.array([19_770, 19_907, 20_263]) + 43_200
    np.savez(samples, x=np.ones((3, 4), np.float32), ids=ids)
    manifest = exported("Days", tmp_path, "onnx", ids="ids[batch]", samples=samples)
    assert domain(manifest, "onnx") == WIDE
    session = ort.InferenceSession(tmp_path / "out" / "model.onnx")
    midnight = 86_400 * np.arange(19_770, 20_263)
    for feed in (midnight, midnight - 1):
        found = session.run(None, {"x": np.ones((len(feed), 4), np.float32), "ids": feed})[1]
        assert np.array_equal(found, feed // 86_400)
