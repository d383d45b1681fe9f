"""Documents of `modelc bench --json`: read again, of one folder and of a project."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from modelc.core.errors import UsageError
from modelc.core.records import Interval
from modelc.pipeline.benchmark.benchmark_records import (
    BenchmarkMachine,
    BenchmarkReport,
    BenchmarkRow,
    RowTimes,
)
from modelc.pipeline.benchmark.benchmark_statistics import compare_reports
from modelc.pipeline.benchmark.run_benchmark import read_reports
from modelc.pipeline.manifest_file import encode_json


def report(folder: str, speedup: float) -> BenchmarkReport:
    times = RowTimes(
        sizes={"batch": 1}, median=1.0, interval=Interval(low=1.0, high=1.0), p90=1.0,
        throughput=1.0, runs=9, rounds=9, speedup=speedup,
        speedup_interval=Interval(low=0.99 * speedup, high=1.01 * speedup),
    )  # fmt: skip
    return BenchmarkReport(
        schema_version=1, modelc="0.1", date="2026-01-01", folder=folder, checkpoint="0" * 64,
        device="cpu", threads=1, seconds=1.0,
        machine=BenchmarkMachine(
            processor="one", cores=1, memory=1, system="Linux", python="3.11", versions={}
        ),
        rows=(
            BenchmarkRow(
                name="onnx", runtime="ONNX Runtime", precision="fp32", verdict="passed",
                times=(times,),
            ),
        ),
    )  # fmt: skip


@pytest.mark.parametrize("several", [False, True])
def test_a_document_is_read_as_it_was_written(several: bool, tmp_path: Path) -> None:
    reports = [report("out/one", 2.0), report("out/two", 3.0)][: 1 + several]
    file = tmp_path / "before.json"
    file.write_bytes(encode_json({"benchmarks": reports} if several else reports[0]))
    assert list(read_reports(file)) == reports


_DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"benchmarks": [{}]}', '{"schema_version": 1}', '{"benchmarks": []}',
        f'{{"benchmarks": {_DEEP}}}',
    ],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_another_document_is_an_error(text: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError):
        read_reports(file)


def test_a_later_schema_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "later.json"
    file.write_bytes(encode_json(replace(report("out", 2.0), schema_version=99)))
    with pytest.raises(UsageError):
        read_reports(file)


def test_each_model_of_a_project_is_compared_with_itself() -> None:
    before = (report("out/one", 2.0), report("out/two", 3.0))
    (change,) = compare_reports(before, report("elsewhere/two", 2.0)).compared
    assert (change.before, change.slower, change.faster) == (3.0, True, False)


def test_one_earlier_report_is_compared_whatever_its_folder() -> None:
    (change,) = compare_reports((report("out", 2.0),), report("new", 2.0)).compared
    assert (change.slower, change.faster) == (False, False)
