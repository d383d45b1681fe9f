"""Which capture is kept: what the verdict says, not what raised no error."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from modelc.capture.refusals import REDUNDANT, RefusedError, find_cause
from modelc.capture.size_constraints import NarrowError
from modelc.core.contract import Branch, Job, Target
from modelc.core.errors import ConversionError
from modelc.core.events import Event, Noted
from modelc.core.grammar import parse_input
from modelc.core.kinds import Capture, ReasonCode
from modelc.core.records import Attempt
from modelc.core.signature import merge_inputs
from modelc.pipeline import build_step
from modelc.pipeline.attempt import Recipe
from modelc.pipeline.build_step import _StepAttempts
from modelc.pipeline.order import Order, Source
from modelc.pipeline.run_context import Parent, RunMemory, StepWork
from modelc.pipeline.run_order import run
from modelc.sample_models import gate
from modelc.validators.edge_case_feeds import draw_edge_case_feeds
from modelc.validators.feeds import draw_feeds

from ..reasons import reason_codes

Fakes = Callable[..., Target]
Orders = Callable[..., Order]


def line_of_the_branch() -> int:
    lines = Path(str(inspect.getsourcefile(gate))).read_text().splitlines()
    return 1 + next(at for at, text in enumerate(lines) if "if x.mean() > 0" in text)


def test_auto_rejects_the_trace_and_keeps_the_script(order: Orders, tmp_path: Path) -> None:
    events: list[Event] = []
    found = run(order("torchscript"), events.append)
    (artifact,) = found.artifacts
    assert (artifact.capture, found.exit_code) == ("script", 0)
    trace, script = artifact.attempts
    assert (trace.capture, trace.outcome) == ("trace", "failed")
    assert f"gate.py:{line_of_the_branch()}" in trace.reason
    assert (script.capture, script.outcome) == ("script", "passed")
    notes = [event.text for event in events if isinstance(event, Noted)]
    assert any("trace" in note and "gate.py" in note for note in notes)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"logs", "manifest.json", "model.torchscript.pt", "worst"}
    signature = merge_inputs([parse_input(text) for text in gate.SIGNATURE], {})
    feeds = (*draw_feeds(signature), *draw_edge_case_feeds(signature))
    assert {bool(feed.arrays["x"].mean() > 0) for feed in feeds} == {True, False}
    assert found.verdicts[0].feeds == tuple(feed.name for feed in feeds)
    assert all(output.passed for output in found.verdicts[0].outputs)


def test_a_requested_trace_of_a_branch_is_rejected_with_its_line(
    order: Orders, tmp_path: Path
) -> None:
    forced = run(order("torchscript", capture=Capture.TRACE))
    assert (forced.passed, forced.exit_code) == (False, 1)
    (artifact,), (verdict,) = forced.artifacts, forced.verdicts
    assert artifact.rejected
    assert artifact.files[0].name == "rejected/model.torchscript.pt"
    found = [p.relative_to(tmp_path / "out") for p in tmp_path.rglob("*.pt")]
    assert found == [Path("rejected/model.torchscript.pt")]
    wrong = {output.feed for output in verdict.outputs if not output.passed}
    shown, _, more = verdict.reason.partition("other branch: ")[2].strip(" );").partition(" and ")
    named = {feed.strip() for feed in shown.split(",")}
    assert named <= wrong
    assert len(named) + int(more.split()[0]) == len(wrong)
    assert f"gate.py:{line_of_the_branch()}" in verdict.reason


def test_a_redundant_capture_is_reported_and_not_recorded(order: Orders, fake: Fakes) -> None:
    def refuse_mixed(job: Job) -> None:
        if job.capture is Capture.MIXED:
            raise RefusedError("redundant", hint="trace it", cause=REDUNDANT)

    told: list[Event] = []
    target = fake(CAPTURES=(Capture.MIXED, Capture.SCRIPT), on_convert=refuse_mixed)
    (artifact,) = run(order("fake"), told.append, targets=(target,)).artifacts
    notes = [event.text for event in told if isinstance(event, Noted)]
    assert any("mixed" in note and note.endswith(": redundant") for note in notes)
    assert [one.capture for one in artifact.attempts] == ["script"]


def line_one(*, other: bool) -> Branch:
    """A branch of this file that eager never reaches, or the gate's own."""
    return Branch(file=str(gate.__file__), line=line_of_the_branch() if other else 1)


def test_a_script_is_tried_after_a_trace_of_an_uncovered_branch(order: Orders, fake: Fakes) -> None:
    asked: list[Capture | None] = []
    target = fake(
        CAPTURES=(Capture.TRACE, Capture.SCRIPT),
        frozen=(line_one(other=False),),
        on_convert=lambda job: asked.append(job.capture),
    )
    found = run(order("fake"), targets=(target,))
    assert asked == [Capture.TRACE, Capture.SCRIPT]
    assert [a.outcome for a in found.artifacts[0].attempts] == ["failed", "passed"]


def test_a_trace_of_an_uncovered_branch_is_rejected(order: Orders, fake: Fakes) -> None:
    found = run(order("fake"), targets=(fake(frozen=(line_one(other=False),)),))
    assert found.exit_code == 1
    assert "gate.py:1" in found.verdicts[0].reason
    assert reason_codes(found.verdicts[0]) == [ReasonCode.BRANCH_UNCOVERED]


def test_a_frozen_branch_is_harmless_if_feeds_of_both_outcomes_agree(
    order: Orders, fake: Fakes
) -> None:
    found = run(order("fake"), targets=(fake(frozen=(line_one(other=True),)),))
    assert found.passed
    assert len(found.verdicts[0].notes) == 1, found.verdicts[0].notes


def test_a_failed_capture_is_recorded_and_the_next_is_tried(order: Orders, fake: Fakes) -> None:
    def refuse_trace(job: Job) -> None:
        if job.capture is Capture.TRACE:
            raise ConversionError("no", hint="script it")

    target = fake(CAPTURES=(Capture.TRACE, Capture.SCRIPT), on_convert=refuse_trace)
    (artifact,) = run(order("fake"), targets=(target,)).artifacts
    assert [(a.outcome, a.reason) for a in artifact.attempts] == [("error", "no"), ("passed", "")]


@pytest.mark.needs("onnx")
def test_auto_of_onnx_goes_from_export_to_script(order: Orders) -> None:
    (artifact,) = run(order("onnx")).artifacts
    assert [(a.capture, a.outcome) for a in artifact.attempts] == [
        ("export", "error"),
        ("script", "passed"),
    ]
    assert f"gate.py:{line_of_the_branch()}" in artifact.attempts[0].reason


def refusing(**reasons: str) -> Callable[[Job], None]:
    """Refuses captures for what torch says of the cause."""

    def refuse(job: Job) -> None:
        text = reasons.get(str(job.capture).replace("-", "_"))
        if text is not None:
            found = find_cause(text)
            assert found is not None
            raise RefusedError(f"no: {text}", hint=found[0].full_hint(), cause=found[0])

    return refuse


ORDERED = (Capture.EXPORT, Capture.EXPORT_STRICT, Capture.SCRIPT)
BRANCH, NUMPY = (
    "Could not guard on data-dependent",
    ".numpy() is not supported for tensor subclasses",
)


@pytest.mark.parametrize(
    ("why", "tried"), [(BRANCH, ["export", "script"]), (NUMPY, ["export", "export-strict"])]
)
def test_strict_is_tried_where_it_may_help(
    order: Orders, fake: Fakes, why: str, tried: list[str]
) -> None:
    target = fake(CAPTURES=ORDERED, on_convert=refusing(export=why))
    (artifact,) = run(order("fake"), targets=(target,)).artifacts
    assert [a.capture for a in artifact.attempts] == tried


def test_strict_is_not_tried_where_export_is_valid_for_some_sizes(
    order: Orders, fake: Fakes
) -> None:
    def convert(job: Job) -> None:
        if job.capture is not Capture.SCRIPT:
            raise NarrowError("the program holds in n=2..3", hint="accept it with --narrow")

    target = fake(CAPTURES=ORDERED, on_convert=convert)
    (artifact,) = run(order("fake"), targets=(target,)).artifacts
    assert [a.capture for a in artifact.attempts] == ["export", "script"]


def test_the_most_specific_error_of_all_captures_is_reported(order: Orders, fake: Fakes) -> None:
    compiles = "a line ~~~ <--- HERE"
    target = fake(
        CAPTURES=(Capture.SCRIPT, Capture.EXPORT),
        on_convert=refusing(export=BRANCH, script=compiles),
    )
    (failure,) = run(order("fake"), targets=(target,)).failures
    assert failure.message == f"no: {BRANCH}"
    assert [a.reason for a in failure.attempts] == [f"no: {compiles}", f"no: {BRANCH}"]


@pytest.mark.parametrize(
    ("able", "capture", "hinted"),
    [
        (ORDERED, Capture.EXPORT, True),
        (ORDERED, None, False),
        ((Capture.EXPORT,), None, False),
    ],
)
def test_a_hint_names_only_untried_captures_of_the_format(
    order: Orders, fake: Fakes, able: tuple[Capture, ...], capture: Capture | None, *, hinted: bool
) -> None:
    reasons = {one.value.replace("-", "_"): BRANCH for one in Capture}
    target = fake(CAPTURES=able, on_convert=refusing(**reasons))
    (failure,) = run(order("fake", capture=capture), targets=(target,)).failures
    assert ("--capture script" in failure.hint) == hinted
    assert ("--patch" in failure.hint) != hinted


def test_a_looser_tolerance_is_used(order: Orders, gate_source: Source) -> None:
    loose = order("torchscript", capture=Capture.TRACE, source=gate_source)
    judging = replace(loose.judging, atol=9.0, min_sqnr=-99.0)
    found = run(replace(loose, judging=judging))
    assert found.verdicts[0].tolerance.atol == 9.0
    assert found.exit_code == 0


def test_the_same_reason_is_reported_once_and_recorded_each_time() -> None:
    told: list[str] = []
    progress: Any = SimpleNamespace(note=told.append)
    step: Any = SimpleNamespace(name="onnx")
    tried = _StepAttempts(step=step)
    ways = [
        (Recipe(capture=Capture.EXPORT, rewrites=("patch:fixes:mine",)), "it branches"),
        (Recipe(capture=Capture.EXPORT, rewrites=("patch:fixes:mine", "attention")), "it branches"),
        (Recipe(capture=Capture.EXPORT, rewrites=("attention", "loops")), "another size"),
    ]
    for way, reason in ways:
        tried.attempts.append(Attempt(capture="export", outcome="error", reason=reason, seconds=0))
        tried._note_skipped(way, reason, progress)
    first, again, third = told
    assert first.endswith(": it branches")
    assert "attention" in again
    assert "it branches" not in again
    assert "attention, loops" in third
    assert third.endswith(": another size")
    assert [one.reason for one in tried.attempts].count("it branches") == 2


def test_rewrites_that_passed_for_another_format_are_tried_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, ...]] = []

    def rewrite(names: tuple[str, ...], *_: object) -> tuple[str, ...]:
        asked.append(names)
        return ("scan", "tensor-lengths") if names[0] == "scan" else ()

    sets = (("eager-attention",), ("scan",), ("transformers-patches",))
    monkeypatch.setattr(build_step, "suggest_rewrites", lambda *_: sets)
    monkeypatch.setattr(build_step, "_try_rewrites", rewrite)
    monkeypatch.setattr(build_step, "recipes_for", lambda *_: ())
    step: Any = SimpleNamespace(name="onnx", captures=(Capture.EXPORT,))
    stage, subject = SimpleNamespace(note=lambda _: None), SimpleNamespace(model=None)
    order = SimpleNamespace(patches=())
    memory = RunMemory()
    run: Any = SimpleNamespace(
        workspace=SimpleNamespace(progress=stage), eager=subject, order=order, memory=memory
    )
    work = StepWork(step=step, parent=Parent(name="eager", digest=""), run=run)

    build_step._try_all(work)
    assert asked == [("eager-attention",), ("scan",)]
    asked.clear()
    build_step._try_all(work)
    assert asked == [("scan", "tensor-lengths")]
    assert memory.held == [("scan", "tensor-lengths")]
