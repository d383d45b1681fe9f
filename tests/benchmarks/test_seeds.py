"""benchmarks/seeds.py: the ratios beside published ones, the page, and what a resumed run keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from modelc.benchmarks.seed_models import MODELS, PUBLISHED, PublishedRatio
from modelc.benchmarks.seeds import is_bad, read_arguments, read_export, read_kept
from modelc.benchmarks.seeds_page import (
    NOT_PUBLISHED,
    NOT_RUN,
    ExportRecord,
    SeedResult,
    changes_of,
    ratio_table,
    render_page,
)
from modelc.core.records import Interval
from modelc.pipeline.benchmark.benchmark_records import (
    SCHEMA_VERSION,
    BenchmarkMachine,
    BenchmarkReport,
    BenchmarkRow,
    RowTimes,
)
from modelc.pipeline.manifest_file import encode_json


def row(name: str, milliseconds: float, speedup: float | None = None) -> BenchmarkRow:
    """Its speed-up is known to 1 %."""
    times = RowTimes(
        sizes={}, median=milliseconds, interval=Interval(low=milliseconds, high=milliseconds),
        p90=milliseconds, throughput=1e3 / milliseconds, runs=100, rounds=20, speedup=speedup,
        speedup_interval=None if speedup is None
        else Interval(low=0.99 * speedup, high=1.01 * speedup),
    )  # fmt: skip
    return BenchmarkRow(name=name, runtime="", precision="fp32", verdict="passed", times=(times,),
                        opening=15.0, memory=123_000_000)  # fmt: skip


def report(*rows: BenchmarkRow, device: str = "cpu") -> BenchmarkReport:
    machine = BenchmarkMachine(
        processor="a processor", cores=2, memory=1 << 33, system="Linux", python="3.11",
        versions={"torch": "2.13"}, other_load=0.02,
    )  # fmt: skip
    return BenchmarkReport(
        schema_version=SCHEMA_VERSION, modelc="1", date="2026-01-01T00:00:00+00:00", folder="out",
        checkpoint="c", device=device, threads=2, seconds=3.0, machine=machine,
        rows=(row("eager", 10.0), *rows), elapsed=75.0,
    )  # fmt: skip


def result(*reports: BenchmarkReport) -> SeedResult:
    export = ExportRecord(targets=("torchscript",), seconds=12.0)
    return SeedResult(name="bert-base", title="BERT-base", export=export, reports=reports)


def published(eager: float, *, device: str = "cpu") -> PublishedRatio:
    return PublishedRatio(model="bert-base", row="torchscript", device=device, source="there",
                          eager=eager, row_ms=10.0)  # fmt: skip


def cells(one: PublishedRatio, found: SeedResult) -> list[str]:
    return [cell.strip() for cell in ratio_table([found], [one])[2].strip("|").split("|")]


@pytest.mark.parametrize(
    ("eager", "state"), [(11.0, "within"), (11.3, "within"), (12.0, "more"), (9.0, "less")]
)
def test_a_ratio_stands_beside_the_published_one(eager: float, state: str) -> None:
    found = cells(published(eager), result(report(row("torchscript", 9.1, 1.10))))
    assert found[-3:] == [f"{eager / 10:.2f}", "1.10 (1.09 to 1.11)", state]


def test_a_ratio_of_another_device_is_not_invented() -> None:
    found = result(report(row("torchscript", 9.1, 1.10)))
    assert cells(published(15.0, device="cuda"), found)[-2:] == [NOT_RUN, ""]
    assert cells(published(15.0), result())[-2:] == [NOT_RUN, ""]


def test_a_ratio_without_a_published_one_is_only_ours() -> None:
    one = PublishedRatio(model="bert-base", row="torchscript", device="cpu")
    found = cells(one, result(report(row("torchscript", 9.1, 1.10))))
    assert found[-3:] == [NOT_PUBLISHED, "1.10 (1.09 to 1.11)", ""]


def test_models_that_are_not_asked_for_have_no_ratios() -> None:
    assert ratio_table([replace(result(), name="digits")]) == []
    assert {one.model for one in PUBLISHED} < set(MODELS)


def test_the_page_has_what_the_reports_say() -> None:
    first, second = report(row("torchscript", 9.1, 1.1)), report(row("torchscript", 7.7, 1.3))
    missing = BenchmarkRow(name="onnx", runtime="", precision="", verdict="", failure="broken")
    first = replace(first, rows=(*first.rows, missing))
    changed = result(first, second)
    page = render_page([changed, SeedResult(name="digits", title="Digits", error="absent")])
    assert all(text in page for text in ("123.0 MB", "`onnx`", "broken", "absent"))
    assert "(1.10, then 1.30)" in page
    cells = {cell.strip() for cell in page.split("|")}
    assert {"30.0 s", "1 min 15 s", "7.50"} <= cells  # opened 2 rows of 15 s, measured them for 6 s
    assert is_bad(changed)


def test_two_equal_benchmarks_are_good() -> None:
    one = report(row("torchscript", 9.1, 1.1))
    assert changes_of(result(one)) == ()
    assert len(changes_of(result(one, one))) == 1
    assert not is_bad(result(one, one))
    assert is_bad(replace(result(one, one), error="it ended"))


def test_a_kept_report_is_used_if_it_is_what_is_asked_for(tmp_path: Path) -> None:
    kept = tmp_path / "one.json"
    assert read_kept(kept, 3.0, None) is None
    one = report(row("torchscript", 9.1, 1.1))
    kept.write_bytes(encode_json(one))
    assert read_kept(kept, 3.0, None) == read_kept(kept, 3.0, 2) == one
    assert read_kept(kept, 1.0, None) is None
    assert read_kept(kept, 3.0, 1) is None
    kept.write_bytes(kept.read_bytes()[:-9])  # as a run that was cut off might
    assert read_kept(kept, 3.0, None) is None


def test_a_kept_report_with_a_failed_row_is_measured_again(tmp_path: Path) -> None:
    failed = BenchmarkRow(name="onnx", runtime="", precision="", verdict="", failure="broken")
    kept = tmp_path / "one.json"
    kept.write_bytes(encode_json(report(failed)))
    assert read_kept(kept, 3.0, None) is None


def test_the_record_of_an_export_is_kept(tmp_path: Path) -> None:
    record = ExportRecord(targets=("onnx",), seconds=1.5, failures={"onnx": "broken"})
    kept = tmp_path / "one.json"
    kept.write_bytes(encode_json(record))
    assert read_export(kept) == record
    kept.write_text("{")
    assert read_export(kept) is None


def test_models_are_named_by_commas() -> None:
    assert read_arguments(["--models", "digits,resnet18"]).models == ["digits", "resnet18"]
    assert read_arguments([]).models == list(MODELS)
    with pytest.raises(SystemExit):
        read_arguments(["--models", "digits,vgg"])
