"""The benchmark of what TensorRT-RTX builds."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelc.benchmarks.tensorrt_rtx import (
    BUILT,
    CHOSEN,
    PRECISIONS,
    SAMPLES,
    EngineResult,
    build_engines,
    make_table,
)
from modelc.tests.nets.cases import case_named, cases


def test_the_chosen_architectures_exist_and_are_forty_or_more() -> None:
    names = {one.name for one in cases()}
    assert set(CHOSEN) <= names
    assert len(set(CHOSEN)) >= 40
    assert names.isdisjoint(one.name for one in SAMPLES)


def test_the_table_counts_what_was_built_and_names_what_was_not() -> None:
    built = EngineResult(
        case="a", shapes="dynamic", precision="int8", state=BUILT, seconds=1.25, size=2_000_000,
        layers={"int8": 3, "fp32": 1},
    )  # fmt: skip
    stopped = EngineResult(
        case="b", shapes="dynamic", precision="int8", state="onnx failed", reason="no  operator"
    )
    table = make_table([built, stopped])
    assert "| int8 | 1 of 2 | 0 of 0 |" in table
    assert "1.2 s, 2.0 MB, 1 fp32, 3 int8" in table
    assert table.count("no operator") == 1  # in one line


@pytest.mark.rtx
@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("bert", 6), ("resnet-plain", 4), ("vae-decoder", 3)])
def test_small_nets_are_built_in_every_precision(tmp_path: Path, name: str, count: int) -> None:
    """Too few channels for FP8 and INT4 in the second, and in the third for INT8 as well."""
    pytest.importorskip("tensorrt_rtx")
    results = build_engines(case_named(name), "dynamic", tmp_path / name, 600, PRECISIONS[:count])
    found = {one.precision: one for one in results}
    assert {one.state for one in found.values() if one.precision != "bf16"} == {BUILT}
    assert found["fp16"].layers.keys() <= {"fp16", "fp32"}
    for precision in PRECISIONS[3:count]:
        assert found[precision].layers[precision] > 0
    assert "int8" not in found["fp32"].layers
