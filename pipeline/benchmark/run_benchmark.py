"""`modelc bench` on an output folder: plan, measure, and summarize."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from ... import __version__
from ...checkpoints.user_code import extra_folders
from ...converters.trt.trt_installation import query_driver
from ...core.errors import (
    ErrorCode,
    Hint,
    MissingError,
    Option,
    RunnerError,
    UsageError,
    first_line,
)
from ...core.events import Tell, ignore_events
from ...core.process import count_cores
from ...core.records import load_text
from ..eager_reference import read_checkpoint
from ..hub_source import locate_source
from ..recorded_run import (
    Moved,
    check_same,
    describe_changed_file,
    load_manifest,
    source_from_record,
)
from ..run_progress import Progress
from .benchmark_machine import LoadWatch, choose_cores, core_frequency, describe_machine
from .benchmark_plan import BenchmarkOptions, BenchmarkPoint, RowSpec, plan_points, plan_rows
from .benchmark_records import EAGER_ROW, SCHEMA_VERSION, BenchmarkReport, BenchmarkRow, RowTimes
from .benchmark_rounds import MeasuredRow, measure_rows
from .benchmark_statistics import summarize_point
from .row_models import RowRequest


def benchmark_folder(
    folder: Path,
    options: BenchmarkOptions,
    moved: Moved | None = None,
    on_event: Tell = ignore_events,
) -> BenchmarkReport:
    """Measure eager, torch.compile and the artifacts of an output folder beside each other.

    Args:
        folder: an output folder of `modelc export`.
        options: what to measure.
        moved: the current places of checkpoint and samples.
        on_event: receives progress events.

    Raises:
        UsageError: the folder or an option cannot be used.
        MissingError: the device is not there.
        CheckpointError: the checkpoint is missing or has changed.
        RunnerError: the machine is loaded, and `strict`.
    """
    _check_machine(options.device, options.threads)
    began, before = time.perf_counter(), core_frequency()
    manifest = load_manifest(folder)
    source = locate_source(source_from_record(manifest, folder, moved or Moved()), on_event)
    points = plan_points(manifest.signature, options)
    changed = {one.name: describe_changed_file(one, folder) for one in manifest.artifacts}
    specs, skipped = plan_rows(manifest, source, options, unusable=changed)
    threads, watch = options.threads or count_cores(), LoadWatch()
    with tempfile.TemporaryDirectory(prefix="modelc-benchmark-") as name:
        progress = Progress(tell=on_event, logs=Path(name, "logs"))
        checkpoint = read_checkpoint(source, progress)
        check_same(checkpoint, manifest, source)
        requests = [
            RowRequest(
                row=row,
                folder=folder.absolute(),
                source=source,
                signature=manifest.signature,
                points=points,
                seed=manifest.feeds.seed,
                orders=Path(name, f"orders{number}"),
                device=options.device,
                logs=Path(name, f"logs{number}"),
                code_folders=extra_folders(),
                cores=choose_cores(threads),
            )
            for number, row in enumerate(specs)
        ]
        groups = measure_rows(
            requests, points, seconds=options.seconds, threads=threads, watch=watch,
            progress=progress, timeout=options.timeout,
        )  # fmt: skip
    rows = _summarize(specs, groups, points)
    absent = {name: row.absent for one in groups for name, row in one.items() if row.absent}
    report = BenchmarkReport(
        schema_version=SCHEMA_VERSION,
        modelc=__version__,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        folder=str(folder),
        checkpoint=checkpoint.digest,
        device=options.device,
        threads=threads,
        cores=choose_cores(threads),
        seconds=options.seconds,
        machine=describe_machine(watch, before),
        rows=tuple(row for row in rows if row.name not in absent),
        elapsed=round(time.perf_counter() - began, 1),
        skipped={**skipped, **absent},
    )
    return _add_notes(report, groups=len(groups), strict=options.strict)


def _check_machine(device: str, threads: int | None) -> None:
    driver = query_driver()
    if device == "cuda" and not driver.devices:
        raise MissingError(
            f"there is no GPU to run on: {driver.reason}",
            hint="leave out --device cuda",
            option="device",
            code=ErrorCode.NO_DEVICE,
        )
    cores = count_cores()
    if threads is not None and threads > cores:
        raise UsageError(
            f"--threads {threads} is more than the {cores} cores of this machine",
            hint=Hint("give ", Option("threads", str(cores)), " or fewer"),
            option="threads",
            code=ErrorCode.INVALID_VALUE,
        )


def _summarize(
    specs: Sequence[RowSpec],
    groups: Sequence[Mapping[str, MeasuredRow]],
    points: Sequence[BenchmarkPoint],
) -> tuple[BenchmarkRow, ...]:
    """Return the rows with their times; of the eager row, which all groups have, the first ones."""
    times: dict[str, list[RowTimes]] = {row.name: [] for row in specs}
    for number, measured in enumerate(groups):
        several = {
            name: row.opened.in_flight for name, row in measured.items() if row.opened is not None
        }
        for index, point in enumerate(points):
            complete = {
                name: row.turns[index]
                for name, row in measured.items()
                if not row.failure and index in row.turns
            }
            for name, one in summarize_point(complete, point, several, EAGER_ROW).items():
                if number == 0 or name != EAGER_ROW:
                    times[name].append(one)
    found = {name: row for one in reversed(groups) for name, row in one.items()}
    return tuple(_make_row(row, found[row.name], times[row.name]) for row in specs)


def _make_row(spec: RowSpec, found: MeasuredRow, times: Sequence[RowTimes]) -> BenchmarkRow:
    warm = found.warm.values()
    sqnr = [one.sqnr for one in warm if one.sqnr is not None]
    return BenchmarkRow(
        name=spec.name,
        runtime=spec.runtime,
        precision=spec.precision,
        verdict=spec.verdict,
        times=tuple(times),
        sqnr=min(sqnr, default=spec.sqnr),
        exact=spec.exact or (bool(warm) and all(one.exact for one in warm)),
        accuracy=spec.accuracy,
        load=0.0 if found.opened is None else found.opened.load,
        first=0.0 if found.opened is None else found.opened.first,
        opening=round(found.opening, 3),
        memory=found.memory,
        size=spec.size,
        threads=None if found.opened is None else found.opened.threads or None,
        in_flight=1 if found.opened is None else found.opened.in_flight,
        failure=found.failure,
    )


def _add_notes(report: BenchmarkReport, *, groups: int, strict: bool) -> BenchmarkReport:
    """Note that rows were measured in groups, and that other processes disturbed the benchmark.

    Raises:
        RunnerError: they did, and `strict`.
    """
    if groups > 1:
        text = (
            f"memory is short: the rows were measured in {groups} groups, each beside eager; "
            "times of different groups are less comparable than speed-ups"
        )
        report = replace(report, notes=(*report.notes, text))
    if not report.machine.loaded:
        return report
    text = (
        f"{load_text(report.machine.other_load)} while rows ran: "
        "small differences cannot be believed"
    )
    if strict:
        raise RunnerError(text, hint="run it on an idle machine, or leave out --strict")
    return replace(report, notes=(*report.notes, text))


def read_reports(path: Path) -> tuple[BenchmarkReport, ...]:
    """Read the document that `modelc bench --json` printed, of one folder or of several.

    Raises:
        UsageError: it cannot be read, or is none.
    """
    import msgspec

    hint = "give a file that modelc bench --json printed"
    try:
        text = path.read_bytes()
        several = msgspec.json.decode(text, type=dict[str, msgspec.Raw]).get("benchmarks")
        reports = (
            (msgspec.json.decode(text, type=BenchmarkReport),)
            if several is None
            else msgspec.json.decode(several, type=tuple[BenchmarkReport, ...])
        )
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=hint) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{path} is not a benchmark of modelc: {first_line(error)}", hint=hint
        ) from error
    if not reports:
        raise UsageError(f"{path} has no benchmark", hint=hint)
    for one in reports:
        if one.schema_version != SCHEMA_VERSION:
            raise UsageError(
                f"{path} has schema version {one.schema_version}, this modelc reads "
                f"{SCHEMA_VERSION}",
                hint=hint,
            )
    return reports
