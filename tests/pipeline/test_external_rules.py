"""An external runtime's description and its replies to requests at the same time are judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from modelc.converters.registry import target_named
from modelc.core.contract import Feed, Outputs, Runner
from modelc.core.external_runtime import Declaration, OutputForm
from modelc.core.kinds import ReasonCode
from modelc.core.records import Artifact
from modelc.core.signature import Signature
from modelc.core.verdict import Reason, State, Verdict
from modelc.pipeline.order import Order
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_external import validate_external

from ..reasons import reason_codes

Orders = Callable[..., Order]


@dataclass(frozen=True, kw_only=True)
class BusyDouble:
    """Runs an artifact here; what it declares and how it answers together is the test's choice."""

    folder: Path
    declares: Declaration = field(default_factory=Declaration)
    together: str = "right"
    name: str = "busy"

    def decline_reason(self, artifact: Artifact) -> str:  # noqa: ARG002
        return ""

    def prepare(self, path: Path, artifact: Artifact) -> dict[str, str]:  # noqa: ARG002
        return {}

    def open(self, path: Path, artifact: Artifact, signature: Signature) -> Runner:
        return target_named(artifact.target).open_runner(path, "cpu", signature)

    def check_declared(
        self,
        artifact: Artifact,  # noqa: ARG002
        signature: Signature,  # noqa: ARG002
        outputs: Mapping[str, OutputForm],
    ) -> Declaration:
        assert outputs["output"] == OutputForm(dtype="float32", dims=(-1, 4)), outputs
        return self.declares

    def run_together(
        self, artifact: Artifact, signature: Signature, feeds: Sequence[Feed]
    ) -> list[list[Outputs | None]]:
        with self.open(self.folder / artifact.files[0].name, artifact, signature) as runner:
            right: list[Outputs] = [runner.run(feed) for feed in feeds]
        return [[right[number], self._answer(right, number)] for number in range(len(feeds))]

    def _answer(self, right: list[Outputs], number: int) -> Outputs | None:
        own = right[number]
        match self.together:
            case "refuses":
                return None
            case "mixes":
                return next((o for o in right if o is not own and _shapes(o) == _shapes(own)), own)
            case "differs":
                return {name: array + np.float32(0.1) for name, array in own.items()}
            case "rounds":
                return {name: np.nextafter(array, np.float32(9)) for name, array in own.items()}
        return own


def _shapes(outputs: Outputs) -> list[tuple[int, ...]]:
    return [array.shape for array in outputs.values()]


def judge(order: Orders, tmp_path: Path, **options: object) -> Verdict:
    run(order("onnx"))
    runtime = BusyDouble(folder=tmp_path / "out", **options)  # type: ignore[arg-type]
    return validate_external(tmp_path / "out", [runtime]).judged[0].verdict


@pytest.mark.parametrize("together", ["right", "rounds"])
def test_equal_replies_at_the_same_time_pass(order: Orders, tmp_path: Path, together: str) -> None:
    assert judge(order, tmp_path, together=together).passed


@pytest.mark.parametrize("together", ["mixes", "refuses", "differs"])
def test_other_replies_at_the_same_time_are_rejected(
    order: Orders, tmp_path: Path, together: str
) -> None:
    verdict = judge(order, tmp_path, together=together)

    assert verdict.state is State.FAILED
    assert reason_codes(verdict) == [ReasonCode.CONCURRENT_REQUESTS]


def test_a_wrong_description_is_not_run(order: Orders, tmp_path: Path) -> None:
    fault = Reason(code=ReasonCode.DECLARED_FORM, text="no output y", fault=True)
    declares = Declaration(reasons=(fault,), runnable=False)

    verdict = judge(order, tmp_path, declares=declares, together="mixes")

    assert verdict.state is State.FAILED
    assert reason_codes(verdict) == [ReasonCode.DECLARED_FORM]
    assert verdict.feeds == ()


def test_a_narrower_domain_is_run_and_rejected(order: Orders, tmp_path: Path) -> None:
    fault = Reason(code=ReasonCode.DECLARED_DOMAIN, text="batch 1..2", fault=True)

    verdict = judge(order, tmp_path, declares=Declaration(reasons=(fault,), notes=("wide",)))

    assert reason_codes(verdict) == [ReasonCode.DECLARED_DOMAIN]
    assert verdict.feeds
    assert "wide" in verdict.notes
