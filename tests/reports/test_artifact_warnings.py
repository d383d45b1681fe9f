"""What a reader should know of an artifact: whose limits it is held to, and what it computes in."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from modelc.core.findings import SIZED, FeedRecord
from modelc.core.kinds import Precision
from modelc.core.manifest import FeedPlan, Manifest
from modelc.core.records import Artifact, Coverage
from modelc.core.verdict import Limits
from modelc.reports.summary import list_notes, list_shared_warnings
from modelc.validators.tolerance import TOLERANCES, override_limits

USUAL = TOLERANCES[Precision.FP32]


def held(
    records: ModuleType,
    limits: Limits,
    *,
    precision: Precision = Precision.FP32,
    order: dict[str, str] | None = None,
    by_output: dict[str, Limits] | None = None,
    dtype: str = "float32",
) -> tuple[str, ...]:
    """The notes of an artifact with two outputs that is held to these limits."""
    artifact: Artifact = records.artifact("onnx", precision)
    outputs = [records.measured("a", 9.0, name, dtype=dtype) for name in ("logits", "boxes")]
    verdict = records.judged(
        "onnx", *outputs, tolerance=override_limits(TOLERANCES[precision], limits, by_output)
    )
    manifest: Manifest = records.manifest(artifacts=(artifact,), verdicts=(verdict,))
    return list_notes(artifact, replace(manifest, order=order or {}))


def test_a_limit_in_place_of_the_noise_floor_is_told(records: ModuleType) -> None:
    (note,) = held(records, Limits(min_sqnr=95))
    assert note.startswith("min-sqnr 95 ")
    assert "floor-factor=5" in note
    (note,) = held(records, Limits(atol=1e-5, rtol=1e-3))
    assert note.startswith("atol 1e-05, rtol 0.001 ")


def test_a_limit_that_is_the_tables_own_is_named_by_the_order(records: ModuleType) -> None:
    (note,) = held(records, Limits(min_sqnr=90), order={"min_sqnr": "90", "atol": ""})
    assert note.startswith("min-sqnr 90 ")
    (note,) = held(records, Limits(min_sqnr=90))
    assert note.startswith("atol 1e-06, rtol 0.0001, min-sqnr 90 ")


@pytest.mark.parametrize(
    "limits",
    [Limits(), Limits(min_sqnr=95, floor_factor=5), Limits(min_agreement=0.99, min_cosine=0.9)],
)
def test_where_the_floor_is_held_nothing_is_told(records: ModuleType, limits: Limits) -> None:
    assert held(records, limits) == ()


def test_other_precisions_and_integers_have_no_floor(records: ModuleType) -> None:
    assert held(records, Limits(min_sqnr=50), precision=Precision.FP16) == ()
    assert held(records, Limits(min_sqnr=95), dtype="int64") == ()


def test_a_limit_of_one_output_is_told_of_that(records: ModuleType) -> None:
    (note,) = held(records, Limits(), by_output={"boxes": Limits(min_sqnr=30)})
    assert note.startswith("output 'boxes': min-sqnr 30 ")


@pytest.mark.parametrize(("share", "told"), [(0.04, True), (0.96, False)])
def test_an_int8_that_computes_in_fp32_is_told(
    records: ModuleType, share: float, told: bool
) -> None:
    coverage = Coverage(
        layers={"int8": 1, "fp32": 4},
        share={"int8": share, "fp32": 1 - share},
        work="FLOPs",
        source="ONNX types",
    )
    artifact = records.artifact("onnx-int8", Precision.INT8, coverage=coverage)
    verdict = records.judged("onnx-int8", records.measured("a", 9.0))
    manifest = records.manifest(artifacts=(artifact,), verdicts=(verdict,))
    wanted = ("only 4.0% of its work (FLOPs) is in int8, 96.0% in fp32",) if told else ()
    assert list_notes(artifact, manifest) == wanted


def test_sizes_on_which_nothing_is_judged_are_of_all_artifacts(records: ModuleType) -> None:
    why = {1: "", 7: "n must be even"}
    feeds = tuple(FeedRecord(name=f"n={n}", kind=SIZED[0], skipped=why[n]) for n in why)
    manifest = records.manifest(feeds=FeedPlan(count=2, seed=0, drawn=feeds))
    (told,) = list_shared_warnings(manifest)
    assert "1 of 2" in told
    assert told.endswith("n=7")
