"""The page of a benchmark: its facts, escaped, in every shape that a report can have."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.core.records import Interval
from modelc.pipeline.benchmark.benchmark_page import render_benchmark_page
from modelc.pipeline.benchmark.benchmark_records import (
    BenchmarkMachine,
    BenchmarkReport,
    BenchmarkRow,
    RowTimes,
    SpeedChange,
)
from modelc.pipeline.benchmark.run_benchmark import benchmark_folder
from modelc.tests.reports.chart_reader import Chart, read_charts
from modelc.tests.reports.test_accessible_pages import tree
from modelc.tests.reports.test_html_page import OURS, Page

HOSTILE = '<script>alert("1")</script>\u202e\x1b[2J'
BATCH = ({"batch": 1}, {"batch": 8})
TWO_DIMS = tuple({"batch": batch, "seq": seq} for batch in (1, 8) for seq in (16, 128))
ROWS = {  # milliseconds, SQNR, verdict
    "torch.compile": (19.7, 130.0, "not judged"),
    "torchscript": (18.0, None, "passed"),
    "onnx": (8.0, 125.0, "passed"),
    "onnx-int8": (3.0, 35.0, "passed"),
    "openvino": (8.2, 124.0, "passed"),
    "openvino:default": (4.0, None, "not judged"),
    "openvino-int8": (1.5, 15.0, "rejected"),
    "late": (25.0, 20.0, "passed"),
    HOSTILE: (9.0, 50.0, "passed"),
}


def times(ms: float, sizes: Mapping[str, int], *, base: float | None = 20.0) -> RowTimes:
    """Times whose intervals are of 4 %, at `base` milliseconds of eager."""
    size = math.prod(sizes.values())
    speedup = None if base is None else base / ms
    return RowTimes(
        sizes=sizes,
        median=ms * size,
        interval=Interval(low=ms * size * 0.96, high=ms * size * 1.04),
        p90=ms * size * 1.2,
        throughput=1e3 / ms,
        runs=90,
        rounds=20,
        speedup=speedup,
        speedup_interval=None if speedup is None else Interval(low=speedup * 0.97, high=speedup),
        equals=("eager",) if base is not None and 0.97 < base / ms < 1.03 else (),
    )


def make_report(
    points: Sequence[Mapping[str, int]] = ({},), *, has_eager: bool = True
) -> BenchmarkReport:
    """A benchmark of all rows at these points."""
    base = 20.0 if has_eager else None
    rows = [
        BenchmarkRow(
            name=name, runtime="x", precision="fp32", verdict=verdict, sqnr=sqnr,
            exact=name == "torchscript",
            times=tuple(times(ms, point, base=base) for point in points),
            memory=1 << 28, size=1 << 20, load=1.0, first=0.5,
        )
        for name, (ms, sqnr, verdict) in ROWS.items()
    ]  # fmt: skip
    if has_eager:
        measured = tuple(times(20.0, point, base=None) for point in points)
        rows.insert(0, BenchmarkRow(name="eager", runtime="torch", precision="fp32",
                                    verdict="reference", times=measured))  # fmt: skip
    return BenchmarkReport(
        schema_version=1,
        modelc="0.1",
        date="2026-11-26T10:00:00+00:00",
        folder=f"out/{HOSTILE}",
        checkpoint="ab" * 32,
        device="cpu",
        threads=2,
        seconds=3,
        machine=BenchmarkMachine(
            processor="a processor", cores=2, memory=1 << 33, system="Linux", python="3.11",
            versions={"torch": "2.13"}, other_load=0.25, loaded=True,
        ),
        rows=tuple(rows),
        notes=("noted",),
        elapsed=60.0,
    )  # fmt: skip


def without_times(report: BenchmarkReport) -> BenchmarkReport:
    """The benchmark with failures alone."""
    return replace(report, rows=tuple(replace(r, times=(), failure=HOSTILE) for r in report.rows))


def without_quality(report: BenchmarkReport) -> BenchmarkReport:
    """The benchmark without a verdict's figures."""
    return replace(
        report, rows=tuple(replace(r, sqnr=None, exact=False, accuracy=None) for r in report.rows)
    )


def with_accuracy(report: BenchmarkReport) -> BenchmarkReport:
    """The benchmark with the accuracy of the artifacts."""
    rows = (
        replace(row, accuracy=0.9 - 0.01 * index if index else None)
        for index, row in enumerate(report.rows)
    )
    return replace(report, rows=tuple(rows))


def with_unknown_numbers(report: BenchmarkReport) -> BenchmarkReport:
    """The benchmark with infinite and undefined figures, as a broken clock gives them."""
    rows = []
    for index, row in enumerate(report.rows):
        bad = (math.inf, math.nan, 0.0)[index % 3]
        broken = [
            replace(one, median=bad, throughput=bad, speedup=bad,
                    speedup_interval=Interval(low=bad, high=bad))
            for one in row.times
        ]  # fmt: skip
        rows.append(replace(row, sqnr=bad, times=tuple(broken if index < 5 else row.times)))
    return replace(report, rows=tuple(rows))


REPORTS = {
    "one point": make_report(),
    "batches": make_report(BATCH),
    "two dims": make_report(TWO_DIMS),
    "no eager": make_report(BATCH, has_eager=False),
    "failures": without_times(make_report()),
    "no quality": without_quality(make_report()),
    "accuracy": with_accuracy(make_report()),
    "unknown numbers": with_unknown_numbers(make_report(BATCH)),
    "one row": replace(make_report(), rows=make_report().rows[:1]),
    "none": replace(make_report(), rows=(), skipped={HOSTILE: HOSTILE}),
}


@pytest.fixture(name="report", params=REPORTS)
def report_fixture(request: pytest.FixtureRequest) -> BenchmarkReport:
    """A benchmark of each shape."""
    return REPORTS[request.param]


def charts_of(report: BenchmarkReport, name: str) -> list[Chart]:
    """Charts for wide pages whose name starts so."""
    charts = read_charts(render_benchmark_page(report))
    found = [one for one in charts if (one.root.get("aria-label") or "").startswith(name)]
    return [one for one in found if one.width == max(chart.width for chart in found)]


def test_a_page_is_balanced_and_asks_nothing_of_a_network(report: BenchmarkReport) -> None:
    page = Page(render_benchmark_page(report))
    assert page.open == []
    assert {name for name, _ in page.elements} <= OURS | {"desc", "br"}
    assert [name for name, _ in page.elements].count("script") == 1
    assert not [name for _, given in page.elements for name in given if name.startswith("on")]
    assert not [link for link in page.values("href") if not link.startswith("#")]
    assert not {"src", "action", "data"} & {name for _, given in page.elements for name in given}
    (policy,) = [text for text in page.values("content") if "default-src" in text]
    assert policy.startswith("default-src 'none';")


def test_a_hostile_name_is_shown_as_text(report: BenchmarkReport) -> None:
    html = render_benchmark_page(report)
    assert "<script>alert" not in html
    assert not re.search("[\u202e\x1b]", html)
    assert '<script>alert("1")</script>' in "".join(Page(html).text)


def test_no_unknown_number_is_drawn(report: BenchmarkReport) -> None:
    for chart in read_charts(render_benchmark_page(report)):
        for one in chart.root.iter():
            places = [value for name, value in one.items() if name not in ("class", "aria-label")]
            assert not [value for value in places if re.search("nan|inf", value)]


def test_tables_and_images_are_named_and_ids_are_unique(report: BenchmarkReport) -> None:
    page = tree(render_benchmark_page(report))
    ids = [one.get("id") for one in page.iter() if one.get("id")]
    assert len(ids) == len(set(ids))
    for table in page.iter("table"):
        assert "".join(table[0].itertext()).strip()
    for chart in page.iter("svg"):
        assert chart.get("aria-hidden") == "true" or chart.get("role") == "img"
        assert chart.get("aria-hidden") == "true" or chart.findtext("desc")


def test_the_front_is_of_rows_that_passed() -> None:
    (chart,) = charts_of(make_report(), "Latency against")
    assert {*chart.named("named")} == {"onnx-int8", "onnx", "torchscript"}
    assert len(chart.paths("spot")) == len(ROWS) + 1 - 1  # and eager, less openvino:default
    assert len(chart.paths("rejected")) == 2  # its mark and its whisker
    titles = [title.text or "" for title in chart.root.iter("title")]
    assert any(text.startswith("onnx:") and "8.00" in text for text in titles)


def test_accuracy_is_the_quality_where_it_was_measured() -> None:
    (chart,) = charts_of(REPORTS["accuracy"], "Latency against")
    assert chart.texts[0].text == "accuracy %"
    assert len(chart.paths("spot")) == len(ROWS)


def test_speedups_have_a_bar_each_and_equal_rows_an_outline() -> None:
    (chart,) = charts_of(make_report(), "Speed-up")
    assert len(chart.rects("bar")) == len(ROWS)
    assert len(chart.rects("equal")) == 1
    assert charts_of(REPORTS["no eager"], "Speed-up") == []


def test_curves_are_of_each_dim_that_varies() -> None:
    assert charts_of(make_report(), "median ms") == []
    (one,) = charts_of(make_report(BATCH), "median ms")
    assert len(one.paths("curve")) == len(ROWS) + 1
    assert len(one.paths("spot")) == 2 * (len(ROWS) + 1)
    names = [
        chart.root.get("aria-label") or "" for chart in charts_of(make_report(TWO_DIMS), "med")
    ]
    assert [re.findall(r"by (\w+)", name) for name in names] == [["batch"], ["seq"]]


def test_reports_without_what_a_chart_needs_have_no_chart() -> None:
    for name in ("failures", "none", "one row"):
        assert read_charts(render_benchmark_page(REPORTS[name])) == []
    assert charts_of(REPORTS["no quality"], "Latency against") == []
    assert charts_of(REPORTS["no quality"], "Speed-up") != []


def test_failures_skipped_rows_notes_and_changes_are_there() -> None:
    changes = [
        SpeedChange(row=name, sizes={}, before=3, now=2, slower=name == "onnx", faster=False)
        for name in ("openvino", "onnx")
    ]
    failed = replace(REPORTS["one point"].rows[3], name="broken", times=(), failure="exit -9")
    report = make_report()
    report = replace(report, rows=(*report.rows, failed), skipped={"left": "no consent"},
                     compared=tuple(changes))  # fmt: skip
    page = tree(render_benchmark_page(report))
    (failures,) = [one for one in page.iter("section") if one.get("id") == "failures"]
    assert {"broken", "exit -9", "left", "no consent"} <= {*failures.itertext()}
    (changed,) = [one for one in page.iter("section") if one.get("id") == "changes"]
    assert [row[0].text for row in changed.iterfind(".//tbody/tr")] == ["onnx", "openvino"]
    assert "noted" in "".join(page.itertext())


def test_a_measured_folder_has_a_page(exported_digits: Path) -> None:
    from .test_run_benchmark import QUICK

    options = replace(QUICK, batch=(1, 4), only=("eager", "onnx"))
    html = render_benchmark_page(benchmark_folder(exported_digits, options))
    assert len(read_charts(html)) == 2 * (2 + 2 + 2)  # qualities, speed-ups and curves, twice
