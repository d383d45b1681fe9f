"""Good conversions stay good on the feeds that hurt, in full and in half precision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from modelc.core.kinds import Precision
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.run_order import run

WANTED = tuple(
    Wanted(target=target, precision=precision)
    for target in ("onnx", "openvino")
    for precision in (Precision.FP32, Precision.FP16)
)


@pytest.mark.slow
@pytest.mark.needs("onnx")
@pytest.mark.needs("openvino")
@pytest.mark.parametrize("name", ["gate", "nested", "lstm", "bert", "digits"])
def test_a_good_model_passes_in_every_format(
    name: str, sources: Callable[[str], Source], tmp_path: Path
) -> None:
    manifest = run(Order(source=sources(name), wanted=WANTED, out=tmp_path / "out"))
    assert manifest.passed, [(v.artifact, v.reason) for v in manifest.verdicts]
    assert not [record for record in manifest.feeds.drawn if record.skipped]
    kinds = {record.kind for record in manifest.feeds.drawn}
    assert {"shape", "batch", "value"} <= kinds
    for verdict in manifest.verdicts:
        assert set(verdict.feeds) == {record.name for record in manifest.feeds.drawn}
        assert verdict.worst is not None


@pytest.mark.slow
@pytest.mark.needs("onnx")
def test_a_search_blames_nobody_for_what_is_eagers_own_luck(tmp_path: Path) -> None:
    """A constant sound is normed by nothing but roundoff: eager's noise there is a lottery."""
    from modelc.tests.nets import zoo

    manifest = run(
        Order(
            source=zoo.checkpoint("wav2vec2", tmp_path, seed=2),
            wanted=(Wanted(target="onnx"),),
            out=tmp_path / "out",
            judging=Judging(seed=2, search=10.0),
        )
    )
    assert manifest.passed, [verdict.reason for verdict in manifest.verdicts]
