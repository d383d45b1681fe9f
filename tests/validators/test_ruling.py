"""Rulings become a verdict in one place."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.core.kinds import Precision, ReasonCode
from modelc.core.verdict import OutputVerdict, Reason, State, Verdict
from modelc.validators.ruling import Judgment, Ruling, decide
from modelc.validators.tolerance import TOLERANCES

ROOT = Path(__file__).parents[2]
FAULT = Ruling.fault(ReasonCode.BRANCH_FROZEN, "frozen")
# Where a verdict is built: of measures, of rulings, and on another name.
BUILDERS = {"validators/judge.py", "validators/apply_tolerance.py", "validators/output_pairs.py",
            "validators/ruling.py", "core/verdict.py",
            "reports/comparison.py"}  # a comparison shows the feeds that both have  # fmt: skip


def measured(state: State = State.PASSED, *reasons: Reason) -> Verdict:
    return Verdict(
        artifact="onnx",
        state=state,
        device="cpu",
        tolerance=TOLERANCES[Precision.FP32],
        feeds=("opt", "zeros"),
        outputs=tuple(
            OutputVerdict(
                feed=feed,
                output="y",
                passed=True,
                reason="",
                shape=(1,),
                dtype="float32",
                exact=True,
            )
            for feed in ("opt", "zeros")
        ),
        reasons=reasons,
        notes=("first",),
    )


def test_a_verdict_without_rulings_is_what_was_measured() -> None:
    assert decide(measured(), [Ruling(), Ruling.fault(ReasonCode.ACCURACY)]) == measured()


@pytest.mark.parametrize(
    ("state", "ruling", "expected"),
    [
        (State.PASSED, FAULT, State.FAILED),
        (State.FAILED, FAULT, State.FAILED),
        (State.ERROR, FAULT, State.ERROR),
        (State.PASSED, replace(FAULT, state=State.ERROR), State.ERROR),
        (State.FAILED, replace(FAULT, state=State.ERROR), State.FAILED),
        (State.PASSED, Ruling(notes=("fine",)), State.PASSED),
    ],
)
def test_any_reason_rejects_and_nothing_clears(
    state: State, ruling: Ruling, expected: State
) -> None:
    assert decide(measured(state), [ruling, Ruling()]).state is expected


def test_reasons_and_notes_stand_where_a_ruling_puts_them() -> None:
    old = Reason(code=ReasonCode.OUTPUT_DIFFERS, text="off")
    late = Reason(code=ReasonCode.BUDGET, text="missed")
    found = decide(
        measured(State.FAILED, old),
        [FAULT, Ruling(last=(late,), notes=("last",), heading=("head",))],
    )
    assert [one.code for one in found.reasons] == [
        ReasonCode.BRANCH_FROZEN,
        ReasonCode.OUTPUT_DIFFERS,
        ReasonCode.BUDGET,
    ]
    assert found.notes == ("head", "first", "last")
    assert found.faults == FAULT.first


def test_figures_of_one_feed_leave_the_decision_alone() -> None:
    found = decide(measured(), [FAULT, Ruling(shown="zeros")])
    assert (found.feeds, {one.feed for one in found.outputs}) == (("zeros",), {"zeros"})
    assert found.state is State.FAILED


def test_a_judgment_grows_and_stays_as_it_was() -> None:
    before = Judgment(measured=measured())
    after = before.plus(FAULT)
    assert (before.passed, after.passed) == (True, False)


def test_nothing_edits_a_verdict_after_it_is_built() -> None:
    edits = []
    for file in sorted(ROOT.glob("*/**/*.py")):
        name = file.relative_to(ROOT).as_posix()
        if name in BUILDERS or name.startswith(("tests/", ".", "benchmarks/", "build/")):
            continue
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        found = [one for one in nodes if isinstance(one, ast.Call) and one.args]
        calls = [one for one in found if ast.unparse(one.func) == "replace"]
        edits += [
            f"{name}:{call.lineno}"
            for call in calls
            if re.search(r"(^|[._])verdict$", ast.unparse(call.args[0]))
        ]
    assert not edits
