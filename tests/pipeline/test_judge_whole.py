"""The whole beside eager: the wrong part by replacement, and outputs that rounding decides."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from modelc.checkpoints.loaded_module import LoadedModule
from modelc.core.call import parameters_of
from modelc.core.contract import Feed, Outputs
from modelc.core.errors import CheckpointError, ErrorCode, RunnerError
from modelc.core.grammar import parse_input
from modelc.core.kinds import Precision, ReasonCode
from modelc.core.records import Checkpoint
from modelc.core.signature import merge_inputs
from modelc.core.verdict import Reason, Verdict
from modelc.pipeline.order import Judging
from modelc.pipeline.parts.compose_function import ComposeFunction
from modelc.pipeline.parts.eager_parts import EagerParts, EagerWhole, _replace_values, run_plain
from modelc.pipeline.parts.judge_whole import WholeCase, WholeReference, judge_whole
from modelc.validators.feeds import draw_feeds

from ..nets.composed_nets import Affine
from ..reasons import has_code

CODE = """
import numpy as np
def chain(parts, x):
    return parts["second"](np.tanh(parts["first"](x)))
def some_rows(parts, x):
    y = chain(parts, x)
    return {"y": y[y[:, 0] > LIMIT]}
def every_row(parts, x):
    y = chain(parts, x)
    return {"y": y, "order": np.argsort(y[:, 0])}
def without_second(parts, x):
    y = parts["first"](x)
    return 2 * y[:, :2] + 0 * parts["second"](y)[:, :1]
def shape_alone(parts, x):
    y = parts["second"](parts["first"](x))
    return x * len(y)
def best_alone(parts, x):
    return chain(parts, x).argmax(-1)
def last_digits(parts, x):
    return np.round(chain(parts, x) * 1e6).astype(np.int64) % 8
def from_eager(parts, x):
    y = chain(parts, x)
    return KNOWN.setdefault(x.tobytes(), y)
KNOWN = {}
LIMIT = 0.0
"""
Wrong = Callable[[str, Outputs], Outputs]


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "composed_by_user.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("composed_by_user", None)


class Opened:
    """Artifacts that return what eager returns, changed."""

    def __init__(self, parts: EagerParts, precision: Precision, wrong: Wrong) -> None:
        one = SimpleNamespace(limit_precision=precision, target="onnx")
        self.artifacts = dict.fromkeys(parts.modules, one)
        self.called: set[str] = set()
        self._parts, self._wrong = parts, wrong

    def run(self, part: str, feed: Feed) -> Outputs:
        self.called.add(part)
        return self._wrong(part, self._parts.run(run_plain, part, feed))


def open_whole(function: str) -> EagerWhole:
    torch.manual_seed(0)
    net = Affine().eval()
    loaded = LoadedModule(kind="state_dict", module=net, takes=parameters_of(net.forward))
    parts = EagerParts.of(loaded, {"first": "first", "second": "second"})
    signature = merge_inputs([parse_input("x:float32[rows=1..16,4]")], {})
    return EagerWhole(
        checkpoint=Checkpoint(path="a.pt", kind="state_dict", digest="", files=()),
        compose=ComposeFunction(f"composed_by_user:{function}"),
        parts=parts,
        signature=signature,
        feeds=draw_feeds(signature, count=8),
    )


def judged(
    function: str, wrong: Wrong, precision: Precision = Precision.FP32
) -> tuple[Verdict, tuple[str, ...]]:
    whole = open_whole(function)
    case = WholeCase(
        name="onnx",
        reference=WholeReference.of(whole, lambda: None),
        opened=Opened(whole.parts, precision, wrong),  # type: ignore[arg-type]  # a stand-in
        judging=Judging(),
        advance=lambda: None,
    )
    return judge_whole(case, ())


def scale(factors: Mapping[str, float]) -> Wrong:
    """Multiply the outputs of these parts."""
    return lambda part, outputs: {
        name: (array * factors.get(part, 1.0)).astype(array.dtype)
        for name, array in outputs.items()
    }


def add_noise(share: float) -> Wrong:
    """Add noise of this size, as lower precision does."""
    draw = np.random.default_rng(5)

    def change(_: str, outputs: Outputs) -> Outputs:
        return {
            name: (array + share * draw.standard_normal(array.shape)).astype(array.dtype)
            for name, array in outputs.items()
        }

    return change


pytestmark = pytest.mark.usefixtures("code")


@pytest.mark.parametrize(
    ("factors", "parts"),
    [
        ({}, ()),
        ({"first": 1.01}, ("first",)),
        ({"second": 0.99}, ("second",)),
        ({"first": 1.2, "second": 0.8}, ("first", "second")),
    ],
)
def test_wrong_parts_are_found_by_replacement(
    factors: Mapping[str, float], parts: tuple[str, ...]
) -> None:
    verdict, wrong = judged("chain", scale(factors))
    assert (verdict.passed, wrong) == (not factors, parts)
    if factors:
        assert verdict.reasons[0].code is ReasonCode.PART_DIFFERS


def test_roundoff_passes_and_a_small_fault_does_not() -> None:
    assert judged("chain", add_noise(1e-8))[0].passed
    assert not judged("chain", add_noise(1e-5))[0].passed
    assert judged("chain", add_noise(1e-4), Precision.FP16)[0].passed


def test_an_artifact_that_raises_is_named() -> None:
    def refuse(part: str, outputs: Outputs) -> Outputs:
        if part == "second":
            raise RunnerError("no kernel", hint="")
        return outputs

    verdict, wrong = judged("chain", refuse)
    assert not verdict.passed
    assert wrong == ("second",)
    assert "no kernel" in verdict.reason


def test_a_size_that_rounding_decides_is_not_compared_but_the_rest_is() -> None:
    """Rows at a threshold: the limit is the value of a row of the first feed."""
    import composed_by_user as user  # type: ignore[import-not-found]  # of the fixture

    whole = open_whole("chain")
    first = whole.run(whole.feeds[0])["output"]
    user.LIMIT = float(first[0, 0])
    verdict, _ = judged("some_rows", add_noise(1e-4), Precision.FP16)
    assert verdict.passed
    assert any(re.search(rf"'y'.* 1 of {len(whole.feeds)} ", one) for one in verdict.notes)
    verdict, wrong = judged("some_rows", scale({"first": 1.5}), Precision.FP16)
    assert (verdict.passed, wrong) == (False, ("first",))


def test_an_order_that_rounding_decides_on_most_feeds_is_a_reason() -> None:
    def tie(part: str, outputs: Outputs) -> Outputs:
        return outputs if part == "first" else {k: np.zeros_like(v) for k, v in outputs.items()}

    verdict, _ = judged("every_row", tie)
    assert not verdict.passed
    assert {one.code for one in verdict.reasons} & {
        ReasonCode.PART_DIFFERS, ReasonCode.OUTPUT_CONSTANT, ReasonCode.NOT_MEASURED
    }  # fmt: skip


@pytest.mark.parametrize("factor", [1.0, 1e3])
def test_integers_that_rounding_decides_on_most_feeds_are_a_reason(factor: float) -> None:
    """Any integer would pass in their place."""
    verdict, _ = judged("last_digits", scale({"first": factor}), Precision.FP16)
    assert verdict.passed == (factor == 1.0)
    if not verdict.passed:
        assert ReasonCode.NOT_MEASURED in {one.code for one in verdict.reasons}


@pytest.mark.parametrize(
    ("function", "part"),
    [
        ("without_second", "second"), ("shape_alone", "first"), ("from_eager", "first"),
        ("chain", ""), ("best_alone", ""), ("some_rows", ""),
    ],
)  # fmt: skip
def test_a_part_whose_outputs_are_not_used_is_named(function: str, part: str) -> None:
    """The artifacts return what eager returns, or garbage: nothing of it is in the result."""
    for wrong in (scale({}), scale({part: 1e3})):
        verdict, blamed = judged(function, wrong)
        assert (verdict.passed, blamed) == (not part, ())
        if part:
            (reason,) = verdict.reasons
            assert (reason.code, reason.fault) == (ReasonCode.NOT_MEASURED, True)
            assert f" {part} " in reason.text


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.0, np.float32), np.zeros((2, 3), np.float16), np.array([np.nan, 1.0]),
        np.array([5]), np.array([0, 255], np.uint8), np.array(True), np.array([np.inf]),
    ],
)  # fmt: skip
def test_values_in_place_of_others_differ(array: Any) -> None:
    found = [_replace_values(array, sign) for sign in (1.0, -1.0)]
    assert all((one.shape, one.dtype) == (array.shape, array.dtype) for one in found)
    assert any(not np.array_equal(one, array, equal_nan=True) for one in found)


def test_faults_of_files_reject_a_whole_that_is_right() -> None:
    whole = open_whole("chain")
    case = WholeCase(
        name="onnx",
        reference=WholeReference.of(whole, lambda: None),
        opened=Opened(whole.parts, Precision.FP32, scale({})),  # type: ignore[arg-type]
        judging=Judging(),
        advance=lambda: None,
    )
    fault = Reason(code=ReasonCode.PART_STALE, text="first is of another checkpoint", fault=True)
    verdict, wrong = judge_whole(case, [fault])
    assert (verdict.passed, wrong, verdict.reasons) == (False, (), (fault,))


def test_float64_is_the_reference_of_the_whole() -> None:
    reference = WholeReference.of(open_whole("chain"), lambda: None)
    (one, *_) = reference.references
    assert one.exact is not None
    exact, eager = one.exact["output"], one.outputs["output"]
    assert exact.dtype == np.float64
    assert 0 < np.abs(exact - eager).max() < 1e-6


def test_a_function_of_torch_modules_of_its_own_is_still_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the function returns must depend on its arrays alone."""
    import composed_by_user as user

    calls: list[int] = []

    def counting(parts: Mapping[str, Any], x: Any) -> Any:
        calls.append(1)
        return user.chain(parts, x) + len(calls)

    monkeypatch.setattr(user, "chain_counting", counting, raising=False)
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.COMPOSE_FAILED, naming="output")):
        WholeReference.of(open_whole("chain_counting"), lambda: None)
