"""Two runs beside each other: what counts as worse, what is noise, what is only told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from modelc.core.findings import Accuracy
from modelc.core.manifest import Manifest
from modelc.core.records import Artifact, Coverage, Latency
from modelc.core.verdict import OutputVerdict, State, Verdict
from modelc.reports.comparison import CEILING_DB, Change, Comparison, compare_manifests
from modelc.reports.comparison_documents import comparison_markdown, comparison_page, headline

from ..reasons import because

INT8, FP32 = 1, 0  # places in the full manifest
LAYERS, WORK = "layers in int8", "work in int8"  # measures


def with_artifact(manifest: Manifest, place: int, **changes: object) -> Manifest:
    """The manifest with one artifact changed."""
    made = list(manifest.artifacts)
    made[place] = replace(made[place], **changes)  # type: ignore[arg-type]
    return replace(manifest, artifacts=tuple(made))


def with_verdict(manifest: Manifest, place: int, change: Callable[[Verdict], Verdict]) -> Manifest:
    """The manifest with one verdict changed."""
    verdicts = list(manifest.verdicts)
    verdicts[place] = change(verdicts[place])
    return replace(manifest, verdicts=tuple(verdicts))


def with_sqnr(manifest: Manifest, place: int, sqnr: float | None) -> Manifest:
    """The manifest with every counting output of one verdict at this SQNR; None is exact."""

    def at(output: OutputVerdict) -> OutputVerdict:
        exact = sqnr is None
        return output if output.loose else replace(output, sqnr=sqnr, exact=exact, headroom=None)

    return with_verdict(manifest, place, lambda v: replace(v, outputs=tuple(map(at, v.outputs))))


def changed(comparison: Comparison) -> dict[tuple[str, str], Change]:
    """Every measure that is not the same."""
    return {
        (m.artifact, m.measure): m.change
        for m in comparison.measures
        if m.change is not Change.SAME
    }


def test_a_run_beside_itself_has_no_change(any_manifest: Manifest) -> None:
    comparison = compare_manifests(any_manifest, any_manifest)
    assert changed(comparison) == {}
    assert comparison.notes == ()
    assert not comparison.has_regressions


@pytest.mark.parametrize(
    ("state", "change"),
    [(State.FAILED, Change.WORSE), (State.ERROR, Change.WORSE), (State.PASSED, Change.SAME)],
)
def test_an_artifact_that_is_no_longer_proven_is_worse(
    full: Manifest, state: State, change: Change
) -> None:
    after = with_verdict(
        full, FP32, lambda verdict: replace(verdict, state=state, reasons=because("why"))
    )
    comparison = compare_manifests(full, after)
    found = {(m.artifact, m.measure): m for m in comparison.measures}["onnx", "verdict"]
    assert found.change is change
    assert found.why == ("why" if change is Change.WORSE else "")
    assert compare_manifests(after, full).has_regressions is False


def test_the_refused_file_of_the_last_run_counts_and_not_the_older_proven_one(
    full: Manifest,
) -> None:
    bad = replace(full.artifacts[FP32], name="rejected/onnx", rejected=True)
    verdict = replace(
        full.verdicts[FP32], artifact="rejected/onnx", state=State.FAILED, reasons=because("no")
    )
    after = replace(full, artifacts=(*full.artifacts, bad), verdicts=(*full.verdicts, verdict))
    assert changed(compare_manifests(full, after))["onnx", "verdict"] is Change.WORSE


def test_failed_and_not_judged_are_as_bad_as_each_other(full: Manifest) -> None:
    after = with_verdict(full, 3, lambda verdict: replace(verdict, state=State.FAILED))
    assert changed(compare_manifests(full, after)) == {("torchscript", "verdict"): Change.INFO}


def test_a_proven_artifact_that_is_gone_is_worse_and_a_new_one_is_new(full: Manifest) -> None:
    fewer = replace(full, artifacts=full.artifacts[1:], verdicts=full.verdicts[1:])
    assert changed(compare_manifests(full, fewer)) == {("onnx", "verdict"): Change.WORSE}
    assert changed(compare_manifests(fewer, full)) == {("onnx", "verdict"): Change.NEW}


def test_what_is_gone_and_what_is_new_is_named(full: Manifest) -> None:
    fewer = replace(full, artifacts=full.artifacts[1:], verdicts=full.verdicts[1:])
    assert headline(compare_manifests(full, fewer)) == "1 measure worse, 0 better; gone: onnx"
    assert headline(compare_manifests(fewer, full)) == "no change; new: onnx"
    for text in (
        comparison_markdown(compare_manifests(fewer, full)),
        comparison_page(compare_manifests(fewer, full)),
    ):
        assert "new: onnx" in text
        assert "better" not in text.partition("<style>")[0] + text.partition("</style>")[2]


def test_a_pending_artifact_that_is_gone_is_worse(full: Manifest) -> None:
    fewer = replace(full, pending=())
    assert changed(compare_manifests(full, fewer)) == {("tensorrt", "verdict"): Change.WORSE}


@pytest.mark.parametrize(
    ("place", "before", "after", "change"),
    [
        (FP32, 110.0, 105.0, Change.NOISE),
        (FP32, 110.0, 103.0, Change.WORSE),
        (FP32, 103.0, 110.0, Change.BETTER),
        (FP32, None, 116.0, Change.NOISE),  # exact, and roundoff
        (FP32, None, 100.0, Change.WORSE),
        (INT8, 31.0, 30.2, Change.NOISE),
        (INT8, 31.0, 29.5, Change.WORSE),
        (INT8, None, 30.0, Change.WORSE),
    ],
)
def test_sqnr_is_judged_by_the_noise_of_its_precision(
    full: Manifest, place: int, before: float | None, after: float | None, change: Change
) -> None:
    name = full.verdicts[place].artifact
    found = changed(
        compare_manifests(with_sqnr(full, place, before), with_sqnr(full, place, after))
    )
    assert found[name, "SQNR"] is change
    assert 110 < CEILING_DB < 116


def test_headroom_within_other_tolerances_is_only_told(full: Manifest) -> None:
    def tighter(verdict: Verdict) -> Verdict:
        outputs = tuple(
            replace(o, headroom=o.headroom and o.headroom - 20) for o in verdict.outputs
        )
        return replace(verdict, outputs=outputs)

    after = with_verdict(full, FP32, tighter)
    assert changed(compare_manifests(full, after))["onnx", "margin"] is Change.WORSE
    tolerance = replace(full.verdicts[FP32].tolerance, min_sqnr=110.0)
    other = with_verdict(after, FP32, lambda verdict: replace(verdict, tolerance=tolerance))
    assert changed(compare_manifests(full, other))["onnx", "margin"] is Change.INFO


@pytest.mark.parametrize(
    ("size", "change"),
    [
        (94_920, Change.NOISE),
        (98_900, Change.NOISE),
        (100_000, Change.WORSE),
        (80_000, Change.BETTER),
    ],
)
def test_a_few_kilobytes_are_noise(full: Manifest, size: int, change: Change) -> None:
    file = replace(full.artifacts[FP32].files[0], size=size)
    assert changed(compare_manifests(full, with_artifact(full, FP32, files=(file,)))) == {
        ("onnx", "size"): change
    }


@pytest.mark.parametrize(
    ("milliseconds", "parent", "device", "change"),
    [
        (0.45, 0.93, "cpu", Change.NOISE),
        (0.60, 0.93, "cpu", Change.WORSE),
        (0.30, 0.93, "cpu", Change.BETTER),
        (0.60, 1.40, "cpu", Change.NOISE),  # the machine is slower
        (0.60, 0.93, "cuda", Change.INFO),
    ],
)
def test_latency_is_judged_beyond_noise_and_the_machines_own_pace(
    full: Manifest, milliseconds: float, parent: float, device: str, change: Change
) -> None:
    timed = Latency(milliseconds=milliseconds, parent=parent, device=device, runs=50)
    after = with_artifact(full, INT8, latency=timed)
    assert changed(compare_manifests(full, after, latency=True)) == {
        ("onnx-int8", "latency"): change
    }
    unjudged = Change.INFO if device == "cuda" else Change.NOISE
    assert changed(compare_manifests(full, after)) == {("onnx-int8", "latency"): unjudged}


@pytest.mark.parametrize(("noise", "change"), [(0.02, Change.WORSE), (0.3, Change.NOISE)])
def test_a_ratio_within_the_noise_of_both_runs_is_no_change(
    full: Manifest, noise: float, change: Change
) -> None:
    timed = Latency(milliseconds=0.55, parent=0.93, device="cpu", runs=50, noise=noise)
    after = with_artifact(full, INT8, latency=timed)
    assert changed(compare_manifests(full, after, latency=True)) == {
        ("onnx-int8", "latency"): change
    }


def test_a_share_of_time_is_compared_by_layers(full: Manifest) -> None:
    def timed(int8: int, share: float) -> Coverage:
        layers = {"int8": int8, "fp32": 4 - int8}
        return Coverage(layers=layers, share={"int8": share}, work="time", source="OpenVINO")

    before = with_artifact(full, INT8, coverage=timed(3, 0.9))
    assert (
        changed(compare_manifests(before, with_artifact(full, INT8, coverage=timed(3, 0.2)))) == {}
    )
    fewer = timed(1, 0.9)
    found = changed(compare_manifests(before, with_artifact(full, INT8, coverage=fewer)))
    assert found == {("onnx-int8", LAYERS): Change.WORSE}


@pytest.mark.parametrize(
    ("share", "change"), [(0.925, Change.NOISE), (0.5, Change.WORSE), (1.0, Change.BETTER)]
)
def test_less_work_in_the_precision_is_worse(full: Manifest, share: float, change: Change) -> None:
    cover = Coverage(layers={"int8": 4}, share={"int8": share}, work="FLOPs", source="ONNX types")
    found = changed(compare_manifests(full, with_artifact(full, INT8, coverage=cover)))
    assert found == {("onnx-int8", WORK): change}


def accuracy(full: Manifest, **changes: object) -> Artifact:
    one = full.artifacts[INT8]
    assert isinstance(one.accuracy, Accuracy)
    return replace(one, accuracy=replace(one.accuracy, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"artifact": 0.967, "drop": 0.007}, {"top1": Change.NOISE, "drop of top1": Change.NOISE}),
        ({"artifact": 0.950, "drop": 0.024}, {"top1": Change.WORSE, "drop of top1": Change.WORSE}),
        ({"artifact": 0.963, "drop": 0.0105, "low": 0.0, "high": 0.02},
         {"top1": Change.NOISE, "drop of top1": Change.WORSE}),  # over the gate
        ({"samples": 500, "artifact": 0.5}, {"accuracy": Change.INFO}),
        ({"metric": "top5", "artifact": 0.99}, {"accuracy": Change.INFO}),
    ],
)  # fmt: skip
def test_accuracy_is_judged_by_its_interval_and_its_gate(
    full: Manifest, changes: dict[str, object], wanted: dict[str, Change]
) -> None:
    worse = accuracy(full, **changes)
    found = changed(compare_manifests(full, with_artifact(full, INT8, accuracy=worse.accuracy)))
    assert found == {("onnx-int8", measure): change for measure, change in wanted.items()}


def test_a_lower_metric_that_is_an_error_is_better(full: Manifest) -> None:
    before = accuracy(full, metric="mse", higher_is_better=False, artifact=0.9)
    after = accuracy(full, metric="mse", higher_is_better=False, artifact=0.5)
    runs = [with_artifact(full, INT8, accuracy=one.accuracy) for one in (before, after)]
    assert changed(compare_manifests(runs[0], runs[1])) == {("onnx-int8", "mse"): Change.BETTER}


def test_that_a_wrong_artifact_is_smaller_is_no_gain(full: Manifest) -> None:
    file = replace(full.artifacts[FP32].files[0], size=10)
    after = with_artifact(full, FP32, files=(file,))
    after = with_verdict(after, FP32, lambda verdict: replace(verdict, state=State.FAILED))
    assert changed(compare_manifests(full, after)) == {("onnx", "verdict"): Change.WORSE}


def test_another_checkpoint_and_other_versions_are_said(full: Manifest) -> None:
    other = replace(
        full,
        checkpoint=replace(full.checkpoint, digest="d" * 64),
        environment={**full.environment, "torch": "2.14.0"},
    )
    notes = compare_manifests(full, other).notes
    assert notes == (
        "checkpoint: 8f4a1010d25d before, dddddddddddd now",
        "torch: 2.13.0+cpu before, 2.14.0 now",
    )


def test_documents_say_what_got_worse_first(full: Manifest) -> None:
    after = with_verdict(
        full, FP32, lambda verdict: replace(verdict, state=State.FAILED, reasons=because("why"))
    )
    timed = Latency(milliseconds=0.2, parent=0.93, device="cpu", runs=50)
    after = with_artifact(after, INT8, latency=timed)
    comparison = compare_manifests(full, after, ("main", "branch"), latency=True)
    assert headline(comparison) == "1 measure worse, 1 better"
    markdown = comparison_markdown(comparison)
    assert markdown.index("**Worse**") < markdown.index("| why |") < markdown.index("**Better**")
    html = comparison_page(comparison)
    assert re.search(r">main\b[^<]*\bbranch<", html)
    assert html.index('id="worse"') < html.index('id="better"') < html.index('id="same"')


def test_a_comparison_of_hostile_runs_is_text(full: Manifest, hostile: Manifest) -> None:
    comparison = compare_manifests(full, hostile)
    assert comparison.has_regressions
    read = MarkdownIt("gfm-like", {"linkify": False}).render(comparison_markdown(comparison))
    for document in (comparison_page(comparison), read):
        assert "&lt;img" in document
        assert "<img" not in document


def test_a_comparison_can_be_written_as_json(full: Manifest) -> None:
    import msgspec

    found = json.loads(msgspec.json.encode(compare_manifests(full, full)))
    assert {one["change"] for one in found["measures"]} == {"same"}


def test_what_a_search_found_is_no_regression(full: Manifest) -> None:
    worst = replace(full.verdicts[0].outputs[0], feed="search-7", sqnr=60.0, headroom=0.5)
    searched = with_verdict(full, 0, lambda v: replace(v, outputs=(*v.outputs, worst)))
    assert changed(compare_manifests(full, searched)) == {}
    plain = with_verdict(full, 0, lambda v: replace(v, outputs=(*v.outputs, replace(
        worst, feed="opt-2"))))  # fmt: skip
    assert changed(compare_manifests(full, plain)) == {}, "a feed that only one of them has"


def test_runs_without_a_feed_in_common_are_not_ranked(full: Manifest) -> None:
    def elsewhere(verdict: Verdict) -> Verdict:
        outputs = (replace(o, feed=f"other-{o.feed}", sqnr=20.0) for o in verdict.outputs)
        return replace(verdict, outputs=tuple(outputs))

    comparison = compare_manifests(full, with_verdict(full, 0, elsewhere))
    name = full.verdicts[0].artifact
    told = [m for m in comparison.measures if m.artifact == name and m.measure == "SQNR"]
    assert [(m.change, bool(m.why)) for m in told] == [(Change.INFO, True)]
