"""One weight of a real artifact, off by so little that no output shows it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import onnx
import pytest
from onnx import numpy_helper

from modelc.converters.registry import target_named
from modelc.core.contract import Weighted
from modelc.core.events import ignore_events
from modelc.core.kinds import Precision, ReasonCode
from modelc.core.verdict import State, Verdict
from modelc.pipeline.eager_reference import open_reference, read_checkpoint
from modelc.pipeline.judge_case import Candidate, JudgeRequest
from modelc.pipeline.order import Judging
from modelc.pipeline.run_progress import Progress
from modelc.pipeline.verdict_rules import judge_candidate

from ..reasons import reason_codes

if TYPE_CHECKING:
    from pathlib import Path

    from modelc.pipeline.order import Source


@pytest.mark.parametrize("name", ["torchscript", "pt2", "onnx", "openvino"])
def test_every_format_shows_its_weights(name: str, exported_digits: Path) -> None:
    target = target_named(name)
    assert isinstance(target, Weighted)
    path = exported_digits / f"model{target.SUFFIX}"
    constants = list(target.weights(path))
    assert len(constants) >= 8
    assert {str(array.dtype) for array in constants} == {"float32"}
    assert any(array.size == 640 for array in constants)  # classify.weight, 10 x 64


def test_one_weight_off_by_a_hundred_thousandth_is_refused_by_name(
    digits_source: Source,
    exported_digits: Path,
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.onnx"
    shutil.copyfile(exported_digits / "model.onnx", path)
    model = onnx.load(path)
    tensor = next(t for t in model.graph.initializer if t.name.endswith("hidden.weight"))
    array = numpy_helper.to_array(tensor).copy()
    array[3, 5] *= 1.00001
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, path)
    stage = Progress(tell=ignore_events, logs=tmp_path / "logs")
    checkpoint = read_checkpoint(digits_source, stage)
    subject = open_reference(digits_source, checkpoint, Judging(), stage)

    def judged(path: Path) -> Verdict:
        candidate = Candidate(
            name="onnx", target=target_named("onnx"), precision=Precision.FP32, path=path
        )
        asked = JudgeRequest(candidate=candidate, eager=subject, judging=Judging(), progress=stage)
        return judge_candidate(asked).verdict

    assert judged(exported_digits / "model.onnx").passed
    verdict = judged(path)
    assert verdict.state is State.FAILED
    assert all(output.passed for output in verdict.outputs)
    assert reason_codes(verdict) == [ReasonCode.WEIGHT_ALTERED]
    assert "hidden.weight" in verdict.reason
    assert "1 of 8192 " in verdict.reason
    assert verdict.faults
