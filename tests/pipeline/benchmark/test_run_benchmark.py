"""A benchmark of the exported digits: rows in children of their own, measured in turns."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from modelc.converters.runner_base import make_torch_call
from modelc.core.errors import ErrorCode, RunnerError, UsageError
from modelc.core.events import Event, ignore_events
from modelc.core.grammar import parse_input
from modelc.core.signature import merge_inputs
from modelc.pipeline.benchmark import benchmark_rounds
from modelc.pipeline.benchmark.benchmark_machine import LoadWatch
from modelc.pipeline.benchmark.benchmark_plan import BenchmarkOptions, BenchmarkPoint, RowSpec
from modelc.pipeline.benchmark.benchmark_rounds import measure_rows
from modelc.pipeline.benchmark.row_models import Call, RowRequest, open_row
from modelc.pipeline.benchmark.run_benchmark import benchmark_folder
from modelc.pipeline.benchmark.timed_turns import MIN_ROUNDS
from modelc.pipeline.order import Source
from modelc.pipeline.recorded_run import load_manifest
from modelc.pipeline.run_progress import Progress
from modelc.tests.pipeline.benchmark.row_crash import crash

from ...reasons import has_code

QUICK = BenchmarkOptions(seconds=0.1, threads=1, compiled=())


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory, exported_digits: Path) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "out"
    shutil.copytree(exported_digits, folder)
    return folder


def test_every_row_is_measured_beside_eager(exported_digits: Path) -> None:
    events: list[Event] = []
    options = replace(QUICK, batch=(1, 4), only=("eager", "onnx"))
    report = benchmark_folder(exported_digits, options, on_event=events.append)
    assert [row.name for row in report.rows] == ["eager", "onnx"]
    assert (report.threads, report.exit_code) == (1, 0)
    eager, onnx = report.rows
    assert eager.verdict == "reference"
    assert onnx.verdict == "passed"
    assert onnx.sqnr is not None
    assert [one.sizes["batch"] for one in onnx.times] == [1, 4]
    for row in report.rows:
        assert row.memory > 1 << 20
        assert row.load > 0
        for one in row.times:
            assert one.rounds >= MIN_ROUNDS
            assert one.interval.low <= one.median <= one.interval.high
            assert one.throughput == pytest.approx(1e3 * one.sizes["batch"] / one.median)
    speedups = [one.speedup_interval for one in onnx.times]
    assert all(one is not None and one.low > 1 for one in speedups)  # by far, on any machine
    assert events


def test_the_memory_of_a_row_is_its_own(exported_digits: Path) -> None:
    ballast = bytearray(b"x") * (600 << 20)  # of this process: rows use a fraction of it
    report = benchmark_folder(exported_digits, replace(QUICK, only=("onnx",)))
    assert 1 << 20 < report.rows[0].memory < len(ballast)


def test_a_torchscript_module_has_no_compiled_row(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "net.pt")
    request = RowRequest(
        row=RowSpec(name="torch.compile", runtime="torch", variant="default"),
        folder=tmp_path,
        source=Source(checkpoint=tmp_path / "net.pt", trust=True),
        signature=merge_inputs([parse_input("x:float32[1,2]")], {}),
        points=(),
        seed=0,
        orders=tmp_path / "orders",
        device="cpu",
        logs=tmp_path / "logs",
    )
    with pytest.raises(RunnerError, check=has_code(ErrorCode.NO_EFFECT)), open_row(request):
        pass


def test_a_row_that_dies_ends_alone(exported_digits: Path, tmp_path: Path) -> None:
    manifest = load_manifest(exported_digits)
    (rows,) = measure_rows(
        [
            RowRequest(
                row=RowSpec(
                    name=name, runtime="ONNX Runtime", file="model.onnx", target="onnx",
                ),
                folder=exported_digits,
                source=Source(checkpoint=tmp_path),
                signature=manifest.signature,
                points=(BenchmarkPoint(sizes=manifest.signature.opt_sizes, samples=1),),
                seed=0,
                orders=tmp_path / name,
                device="cpu",
                logs=tmp_path / "logs",
            )
            for name in ("lives", "dies", "raises")
        ],
        [BenchmarkPoint(sizes=manifest.signature.opt_sizes, samples=1)],
        seconds=0.1,
        threads=1,
        watch=LoadWatch(),
        progress=Progress(tell=ignore_events, logs=tmp_path / "logs"),
        serve=crash,
    )  # fmt: skip
    assert "SIGKILL" in rows["dies"].failure
    assert rows["raises"].failure == "KeyError: 'missing'"
    assert rows["lives"].failure == ""
    assert len(rows["lives"].turns[0]) >= MIN_ROUNDS


def test_rows_are_measured_in_groups_where_memory_is_short(
    exported_digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark_rounds, "_has_room", lambda _: False)
    options = replace(QUICK, only=("eager", "onnx", "openvino"), batch=(1, 8))
    report = benchmark_folder(exported_digits, options)
    assert [row.name for row in report.rows] == ["eager", "onnx", "openvino"]
    assert [len(row.times) for row in report.rows] == [2, 2, 2]
    assert all(one.speedup is not None for row in report.rows[1:] for one in row.times)
    assert all("onnx" not in (*one.equals, *one.unclear) for one in report.rows[2].times)
    assert len(report.notes) >= 1


def test_an_artifact_that_changed_is_not_measured(copied: Path) -> None:
    with (copied / "model.onnx").open("ab") as stream:
        stream.write(b" ")
    report = benchmark_folder(copied, replace(QUICK, only=("eager",)))
    assert [row.name for row in report.rows] == ["eager"]
    assert "onnx" in report.skipped


def test_a_loaded_machine_is_noted_or_an_error(
    exported_digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadWatch, "is_loaded", property(lambda _: True))
    options = replace(QUICK, only=("eager",))
    assert benchmark_folder(exported_digits, options).notes
    with pytest.raises(RunnerError):
        benchmark_folder(exported_digits, replace(options, strict=True))


def test_inputs_that_a_model_writes_to_do_not_drift() -> None:
    given, seen = torch.ones(3), []

    def bind(tensors: Sequence[torch.Tensor]) -> Call:
        return lambda: seen.append(float(tensors[0].mul_(2).sum()))

    call = make_torch_call(bind, [given], "cpu")
    for _ in range(3):
        call()
    assert seen == [6.0, 6.0, 6.0]


def test_arguments_are_bound_once_though_a_model_writes_to_them() -> None:
    bound: list[int] = []

    def bind(tensors: Sequence[torch.Tensor]) -> Call:
        bound.append(len(tensors))
        return lambda: tensors[0].mul_(2)

    call = make_torch_call(bind, [torch.ones(3)], "cpu")
    for _ in range(3):
        call()
    assert bound == [1]


def test_more_threads_than_cores_are_refused(exported_digits: Path) -> None:
    options = replace(QUICK, threads=4096)
    refused = has_code(ErrorCode.INVALID_VALUE, option="threads")
    with pytest.raises(UsageError, check=refused):
        benchmark_folder(exported_digits, options)
