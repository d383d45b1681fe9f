"""A runtime whose default dtype is lower than the judged one is measured by default too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from modelc.converters import openvino_ir
from modelc.core.contract import Feed, Outputs, Target
from modelc.core.signature import Signature
from modelc.core.target_extensions import OpenedByDefault, SelfTuned, Settled
from modelc.core.verdict import DefaultRun, State
from modelc.pipeline.order import Order
from modelc.pipeline.run_order import run

from .conftest import Fake, FakeRunner, eagerly

SQNR = 24.0  # dB: the limit of bf16


def off_by(share: float) -> Callable[[Feed], Outputs]:
    """Eager's answers, each off by a share of the largest, upwards and downwards in turn."""

    def answer(feed: Feed) -> Outputs:
        found = eagerly(feed)["output"]
        signs = np.where(np.arange(found.size) % 2, 1, -1).reshape(found.shape)
        return {"output": (found + share * np.abs(found).max() * signs).astype(np.float32)}

    return answer


@dataclass(frozen=True, kw_only=True)
class Tuned(Fake):
    """A format whose runtime computes in bf16 where nobody says otherwise."""

    compute: str = "bf16"
    share: float = 1e-3

    def open_by_default(
        self, path: Path, device: str, signature: Signature
    ) -> OpenedByDefault | None:
        assert path.exists()
        assert device == "cpu"
        if not self.compute:
            return None
        runner = FakeRunner(signature, off_by(self.share))
        return OpenedByDefault(runner=runner, compute=self.compute, advice='open("PATH")')

    def judge_settings(self, device: str) -> dict[str, str]:
        assert device == "cpu"
        return {"precision": "exact"}


def by_default(target: Tuned, order: Callable[..., Order]) -> DefaultRun | None:
    manifest = run(order("fake"), targets=(cast("Target", target),))
    (artifact,), (verdict,) = manifest.artifacts, manifest.verdicts
    assert verdict.passed
    assert artifact.domain is not None
    assert artifact.domain.settings == {"device": "cpu", "precision": "exact"}
    notes = [note for note in verdict.notes if 'open("model.fake")' in note]
    assert bool(notes) is (verdict.by_default is not None)
    return verdict.by_default


def test_the_default_run_is_measured_with_a_line_to_paste(order: Callable[..., Order]) -> None:
    found = by_default(Tuned(), order)
    assert found is not None
    assert (found.compute, found.state) == ("bf16", State.PASSED)
    assert found.advice == 'open("model.fake")'
    assert found.sqnr is not None
    assert SQNR < found.sqnr < 90


def test_a_wrong_default_run_is_recorded_and_does_not_reject(order: Callable[..., Order]) -> None:
    found = by_default(Tuned(share=0.5), order)
    assert found is not None
    assert found.state is State.FAILED
    assert found.reason


def test_a_default_with_the_judged_dtype_is_not_run(order: Callable[..., Order]) -> None:
    assert by_default(Tuned(compute=""), order) is None


@pytest.mark.needs("openvino")
def test_openvino_reports_its_default_dtype(exported_digits: Path) -> None:
    import openvino

    assert isinstance(openvino_ir, SelfTuned)
    assert isinstance(openvino_ir, Settled)
    assert openvino_ir.judge_settings("cpu")["INFERENCE_PRECISION_HINT"] == "f32"
    picked = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()
    opened = openvino_ir.open_by_default(exported_digits / "model.xml", "cpu", Signature(inputs=()))
    if picked == "f32":
        assert opened is None
    else:
        assert opened is not None
        assert opened.compute == {"bf16": "bf16", "f16": "fp16"}[picked]
        assert 'INFERENCE_PRECISION_HINT": "f32"' in opened.advice
