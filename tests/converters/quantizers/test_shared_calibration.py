"""Jobs of one run share a calibration where nothing differs, and give what each gives alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from modelc.converters.quantizers import modelopt_ptq, onnxruntime_static, quantizer_workspace
from modelc.core.contract import QuantizeJob

from .conftest import FloatModel

CONSUMERS = ("onnx", "openvino", "tensorrt-onnx")


@dataclass(frozen=True)
class Counted:
    """A library's call that counts itself."""

    calls: list[object]

    def wrap(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: object, **more: object) -> object:
            self.calls.append(args)
            return real(*args, **more)

        return count


@pytest.fixture
def calibrations(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Counts what reads all samples: the calls of ONNX Runtime's calibrator and of ModelOpt."""
    counted = Counted([])
    for module, name in (
        (onnxruntime_static, "collect_ranges"),
        (modelopt_ptq, "_call_modelopt"),
    ):
        monkeypatch.setattr(module, name, counted.wrap(getattr(module, name)))
    return counted.calls


def jobs(floats: FloatModel, folder: Path, consumers: tuple[str, ...]) -> list[QuantizeJob]:
    """Jobs of one run, each in a folder of its own."""
    memory: dict[Any, Any] = {}
    made = []
    for consumer in consumers:
        place = folder / consumer
        place.mkdir(parents=True)
        others = tuple(one for one in consumers if one != consumer)
        made.append(replace(floats.job(place, consumer), others=others, memory=memory))
    return made


@pytest.mark.parametrize("name", ["digits", "bert"])
def test_onnx_runtime_calibrates_once_for_all_targets(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, calibrations: list[object]
) -> None:
    floats: FloatModel = request.getfixturevalue(name)
    made = [
        onnxruntime_static.quantize(job).path.read_bytes()
        for job in jobs(floats, tmp_path / "shared", CONSUMERS)
    ]
    assert len(calibrations) == 1
    alone = []
    for one in CONSUMERS:
        (tmp_path / one).mkdir()
        job = floats.job(tmp_path / one, one)
        alone.append(onnxruntime_static.quantize(job).path.read_bytes())
    assert (made, len(calibrations)) == (alone, 4)


def test_modelopt_calibrates_once_for_all_targets(
    digits: FloatModel, tmp_path: Path, calibrations: list[object]
) -> None:
    consumers = ("openvino", "tensorrt-onnx")
    made = [
        modelopt_ptq.quantize(job).path.read_bytes()
        for job in jobs(digits, tmp_path / "shared", consumers)
    ]
    assert len(calibrations) == 1
    (tmp_path / "alone").mkdir()
    alone = modelopt_ptq.quantize(digits.job(tmp_path / "alone", "tensorrt-onnx"))
    assert (alone.path.read_bytes(), len(calibrations)) == (made[1], 2)


@pytest.mark.parametrize("change", ["method", "samples", "model"])
def test_another_calibration_is_not_shared(
    change: str,
    digits: FloatModel,
    bert: FloatModel,
    tmp_path: Path,
    calibrations: list[object],
) -> None:
    first, second = jobs(digits, tmp_path, ("onnx", "openvino"))
    if change == "method":
        second = replace(second, method="minmax")
    elif change == "samples":
        feeds = digits.feeds(7)
        feeds.record = replace(feeds.record, digest="other")
        second = replace(second, calibration=feeds)
    else:
        other = bert.job(second.folder, "openvino")
        second = replace(other, memory=first.memory)
    onnxruntime_static.quantize(first)
    onnxruntime_static.quantize(second)
    assert len(calibrations) == 2


def test_layers_that_return_to_floating_point_need_no_calibration(
    digits: FloatModel, tmp_path: Path, calibrations: list[object]
) -> None:
    first, second = jobs(digits, tmp_path, ("onnx", "openvino"))
    onnxruntime_static.quantize(first)
    nodes = onnxruntime_static._QuantizationPlan(
        second, quantizer_workspace.create_workspace(second, opset=13)
    )
    keep = (sorted(nodes.placement().nodes)[0],)
    (second.folder / "again").mkdir()
    kept = replace(second, keep=keep, folder=second.folder / "again")
    made = onnxruntime_static.quantize(kept).path.read_bytes()
    assert len(calibrations) == 1
    (tmp_path / "alone").mkdir()
    alone = replace(kept, memory={}, others=(), folder=tmp_path / "alone")
    assert onnxruntime_static.quantize(alone).path.read_bytes() == made


def test_few_values_of_a_kind_are_kept(digits: FloatModel, tmp_path: Path) -> None:
    place = quantizer_workspace.create_workspace(digits.job(tmp_path, "onnx"), opset=13)
    for number in range(10):
        assert place.recall(("kind", number), lambda n=number: n) == number  # type: ignore[misc]
    assert place.recall(("other", 0), lambda: 7) == 7
    assert len(place.memory) == quantizer_workspace._MOST_KEPT + 1
