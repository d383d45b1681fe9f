"""Results of quantizers are reused if nothing changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from modelc.converters.quantizers.quantizer_registry import QUANTIZERS
from modelc.core.contract import Feed, Quantized
from modelc.core.grammar import parse_input
from modelc.core.records import CalibrationRecord
from modelc.core.signature import merge_inputs
from modelc.pipeline import quantization
from modelc.pipeline.cache.result_store import ResultStore
from modelc.pipeline.quantization import CalibrationCache, QuantizationTask, quantization_key


@dataclass(frozen=True)
class Samples:
    """Calibration samples of which only the digest counts here."""

    digest: str

    @property
    def record(self) -> CalibrationRecord:
        return CalibrationRecord(
            source="calib", kind="folder", found=1, used=1, held_out=0, selection="first", seed=0,
            digest=self.digest,
        )  # fmt: skip

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Feed]:
        return iter(())


def save_model(path: Path, *, location: str | None = None, opset: int = 20) -> None:
    """`y = x + w`, with `w` in a file beside it or in it."""
    import onnx
    from onnx import numpy_helper, parser

    text = f'<ir_version: 9, opset_import: ["": {opset}]> g (float[6] x) => (float[6] y)'
    model = parser.parse_model(f"{text} {{ y = Add(x, w) }}")
    model.graph.initializer.append(
        numpy_helper.from_array(np.arange(6, dtype=np.float32), name="w")
    )
    onnx.save(
        model, path, save_as_external_data=location is not None, location=location, size_threshold=0
    )


@pytest.fixture
def work(tmp_path: Path) -> QuantizationTask:
    """A model whose weight lies in a file of its own, and samples."""
    save_model(tmp_path / "model.onnx", location="weights.dat")
    return QuantizationTask(
        quantizer=QUANTIZERS[0],
        consumer="onnx",
        parent=tmp_path / "model.onnx",
        signature=merge_inputs([parse_input("x:float32[batch=1..8,6]")], {}),
        calibration=Samples("d1"),
    )


@pytest.fixture
def cache(tmp_path: Path) -> CalibrationCache:
    return CalibrationCache(ResultStore(tmp_path / "cache"))


@pytest.fixture
def result(tmp_path: Path) -> Quantized:
    (tmp_path / "made").mkdir()
    save_model(tmp_path / "made" / "q.onnx")
    return Quantized(
        path=tmp_path / "made" / "q.onnx",
        versions={"onnxruntime": "1"},
        options={"method": "minmax"},
        notes=("kept in FP32: head",),
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def test_a_result_is_restored_by_its_key(
    cache: CalibrationCache, work: QuantizationTask, result: Quantized, place: Path
) -> None:
    cache.keep(quantization_key(work), result)
    assert cache.take(quantization_key(replace(work, method="entropy")), place) is None
    assert cache.take(quantization_key(work), place) == replace(result, path=place / "q.onnx")
    assert (place / "q.onnx").read_bytes() == result.path.read_bytes()


def test_every_part_of_the_work_is_in_the_key(work: QuantizationTask) -> None:
    keys = {
        quantization_key(work),
        quantization_key(replace(work, quantizer=QUANTIZERS[1])),
        quantization_key(replace(work, consumer="openvino")),
        quantization_key(replace(work, method="minmax")),
        quantization_key(replace(work, keep=("node_1",))),
        quantization_key(replace(work, calibration=Samples("d2"))),
        quantization_key(
            replace(work, signature=merge_inputs([parse_input("x:float32[batch=1..4,6]")], {}))
        ),
    }
    assert len(keys) == 7


@pytest.mark.parametrize("part", ["digest_of_code", "describe_machine", "packages"])
def test_another_modelc_machine_or_library_is_another_key(
    work: QuantizationTask, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    before = quantization_key(work)
    other = {"torch": "9"} if part == "packages" else "another"
    monkeypatch.setattr(quantization, part, lambda *_: other)
    assert quantization_key(work) != before


def test_a_changed_weight_or_graph_is_another_key(work: QuantizationTask) -> None:
    before = quantization_key(work)
    path = work.parent.with_name("weights.dat")
    weights = path.read_bytes()
    path.write_bytes(weights[:-1] + b"!")
    assert quantization_key(work) != before
    path.write_bytes(weights)
    save_model(work.parent, location="weights.dat", opset=21)
    assert quantization_key(work) != before


def test_a_read_only_cache_is_read(
    cache: CalibrationCache, work: QuantizationTask, result: Quantized, place: Path, tmp_path: Path
) -> None:
    cache.keep(quantization_key(work), result)
    folders = [path for path in (tmp_path / "cache").rglob("*") if path.is_dir()]
    for path in (tmp_path / "cache", *folders):
        path.chmod(0o555)
    try:
        assert cache.take(quantization_key(work), place) is not None
    finally:
        for path in (tmp_path / "cache", *folders):
            path.chmod(0o755)
