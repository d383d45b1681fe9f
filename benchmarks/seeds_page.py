"""The page of seeds.py from the kept reports: rows, published ratios, machine, cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from modelc.benchmarks.seed_models import (
    PUBLISHED,
    PUBLISHED_LOSSES,
    RANDOM_SAMPLES,
    TOKENS,
    PublishedRatio,
)
from modelc.core.findings import Accuracy
from modelc.core.records import LEAST_RATIO, Interval, size_text
from modelc.pipeline.benchmark.benchmark_records import (
    EAGER_ROW,
    BenchmarkReport,
    BenchmarkRow,
    RowTimes,
    SpeedChange,
)
from modelc.pipeline.benchmark.benchmark_statistics import compare_speedups
from modelc.reports.text_format import count_text, day_text, one_line, percent_text, seconds_text

NOT_RUN, NOT_PUBLISHED = "not run here", "none"
_DEVICES = {"cpu": "CPU", "cuda": "GPU"}
_HEAD = f"""# Published comparisons, measured again

Written by `benchmarks/seeds.py` from benchmarks of `modelc bench` ([how it measures](bench.md)).
The published figures are those of two comparisons of BERT and ResNet in eager PyTorch, TorchScript
and TensorRT. Their machines are unknown, except one V100: ratios of two rows are compared, and
never times.

BERT-base is `BertModel` of transformers with {TOKENS} tokens, the ResNets are those of He et al.
(2015) in our own code, on one image of 3x224x224. All three have random weights of a fixed seed,
and their INT8 is calibrated on {RANDOM_SAMPLES} random samples: their SQNR says nothing about
trained weights. Digits is the trained net of `sample_models`, on real images. A rejected artifact
is measured, too, and the verdict says so.
"""


@dataclass(frozen=True, kw_only=True)
class ExportRecord:
    """What the page says of an export: its seconds, failed steps, accuracies by artifact."""

    targets: tuple[str, ...]
    seconds: float
    versions: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    accuracies: Mapping[str, Accuracy] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """What became of a model: the export, one or two reports, or the error that ended it."""

    name: str
    title: str
    export: ExportRecord | None = None
    reports: tuple[BenchmarkReport, ...] = ()
    error: str = ""


def changes_of(result: SeedResult) -> tuple[SpeedChange, ...]:
    """Return how the speed-ups of the second benchmark differ from the first one's."""
    if len(result.reports) < 2:  # noqa: PLR2004 - two benchmarks
        return ()
    return compare_speedups(result.reports[0].rows, result.reports[1].rows)


def render_page(results: Sequence[SeedResult]) -> str:
    """Render the page from the results, as far as there are some."""
    parts = [_HEAD]
    if ratios := ratio_table(results):
        parts += ["## Beside the published ratios\n", _RATIO_NOTE, *ratios, ""]
    parts += _accuracy_lines(results)
    for result in results:
        parts += ["", *_model_lines(result)]
    parts += ["", "## The second benchmark\n", *_agreement_lines(results)]
    parts += ["", "## How it was measured\n", *_cost_table(results), "", *_machine_lines(results)]
    return "\n".join(parts) + "\n"


_RATIO_NOTE = f"""Eager's time divided by the row's, with the 99 % interval. A published ratio is
_within_ if it lies in our interval widened by {LEAST_RATIO - 1:.0%}, as `modelc bench` calls no
difference; else it is _more_ or _less_ than ours. No ratio of INT8 on a CPU was published.
"""


def ratio_table(
    results: Sequence[SeedResult], published: Sequence[PublishedRatio] = PUBLISHED
) -> list[str]:
    """Return the table of published ratios, with ours of the same device beside them.

    It is empty if nothing was published for the models.
    """
    by_name = {result.name: result for result in results}
    rows = [_ratio_cells(one, by_name[one.model]) for one in published if one.model in by_name]
    if not rows:
        return []
    head = (
        "model", "row", "device", "source", ">published ms of eager, row", ">published",
        ">here (99 %)", "published is",
    )  # fmt: skip
    return _table(head, rows)


def _ratio_cells(one: PublishedRatio, result: SeedResult) -> tuple[str, ...]:
    there = NOT_PUBLISHED if one.speedup is None else f"{one.speedup:.2f}"
    ms = "" if one.eager is None or one.row_ms is None else f"{one.eager:g}, {one.row_ms:g}"
    here, state = NOT_RUN, ""
    if result.reports and result.reports[0].device == one.device:
        found = _find_times(result.reports[0], one.row)
        if found is not None and found[1].speedup_interval is not None:
            here = _speedup_text(found[1])
            here += " (rejected)" if found[0].verdict == "rejected" else ""
            state = _compare(one.speedup, found[1].speedup_interval)
        else:
            here = "no result"
    device = _DEVICES.get(one.device, one.device)
    return result.title, f"`{one.row}`", device, one.source, ms, there, here, state


def _compare(published: float | None, here: Interval) -> str:
    if published is None:
        return ""
    if published > here.high * LEAST_RATIO:
        return "more"
    return "less" if published < here.low / LEAST_RATIO else "within"


def _find_times(report: BenchmarkReport, name: str) -> tuple[BenchmarkRow, RowTimes] | None:
    return next(((row, one) for row in report.rows for one in row.times if row.name == name), None)


def _accuracy_lines(results: Sequence[SeedResult]) -> Iterator[str]:
    """Yield the table of accuracies, those published below ours."""
    rows = [
        (result.title, f"`{name}`", str(one.samples), percent_text(one.eager, 2),
         percent_text(one.artifact, 2), f"{100 * one.drop:.2f}",
         f"{100 * one.low:.2f} to {100 * one.high:.2f}")
        for result in results if result.export is not None
        for name, one in result.export.accuracies.items()
    ]  # fmt: skip
    if not rows:
        return
    rows += [
        (one.title, f"`{one.row}`, published ({one.source})", "", "", "", f"{one.points:.2f}", "")
        for one in PUBLISHED_LOSSES
    ]
    yield "## Accuracy\n"
    yield "Top-1 on held-out samples, eager beside each row.\n"
    head = ("model", "row", ">samples", ">eager", ">row", ">points lost", ">95 % interval")
    yield from _table(head, rows)


def _model_lines(result: SeedResult) -> Iterator[str]:
    """Yield the rows of the first benchmark, and what is missing from them."""
    yield f"## {result.title}\n"
    if result.error:
        yield f"Failed: {one_line(result.error)}\n"
    if not result.reports:
        yield "Not measured."
        return
    report = result.reports[0]
    head = ("row", ">ms (99 %)", ">speed-up over eager (99 %)", ">memory", ">file", ">SQNR dB",
            ">accuracy", "verdict")  # fmt: skip
    eager = {one.eager for one in result.export.accuracies.values()} if result.export else set()
    rows = [
        _row_cells(row, one, next(iter(eager), None)) for row in report.rows for one in row.times
    ]
    yield from _table(head, rows)
    yield from ("", *_missing_lines(result, report))


def _row_cells(row: BenchmarkRow, one: RowTimes, eager: float | None) -> tuple[str, ...]:
    accuracy = eager if row.name == EAGER_ROW else row.accuracy
    is_tuned = row.name.endswith(":default")  # its accuracy is the judged file's
    return (
        f"`{row.name}`",
        _with_interval(one.median, one.interval, _number),
        _speedup_text(one),
        size_text(row.memory) if row.memory else "",
        size_text(row.size) if row.size else "",
        "exact" if row.exact else "" if row.sqnr is None else f"{row.sqnr:.1f}",
        "" if accuracy is None or is_tuned else percent_text(accuracy, 2),
        row.verdict,
    )


def _missing_lines(result: SeedResult, report: BenchmarkReport) -> Iterator[str]:
    missing = dict(report.skipped)
    missing |= {row.name: row.failure for row in report.failures}
    missing |= {} if result.export is None else dict(result.export.failures)
    for name, reason in missing.items():
        yield f"- `{name}` has no times: {one_line(reason, 200)}"
    for note in report.notes:
        yield f"- {one_line(note)}"


def _agreement_lines(results: Sequence[SeedResult]) -> Iterator[str]:
    """Yield whether the speed-ups of the second benchmark are those of the first."""
    for result in results:
        changes = changes_of(result)
        changed = [one for one in changes if one.slower or one.faster]
        is_loaded = any(one.machine.loaded for one in result.reports)
        weak = " The machine was loaded: wide intervals hide changes." if is_loaded else ""
        if not changes:
            yield f"- {result.title}: not measured twice."
        elif not changed:
            yield f"- {result.title}: none of {len(changes)} speed-ups changed.{weak}"
        else:
            names = ", ".join(f"`{c.row}` ({c.before:.2f}, then {c.now:.2f})" for c in changed)
            share = f"{len(changed)} of {len(changes)}"
            yield f"- {result.title}: {share} speed-ups changed: {names}.{weak}"


def _cost_table(results: Sequence[SeedResult]) -> list[str]:
    """Return when each benchmark ran, beside what load, and its seconds measured and elapsed."""
    rows = []
    for result in results:
        for number, report in enumerate(result.reports, 1):
            times = [one for row in report.rows for one in row.times]
            measured = report.seconds * len(times)
            export = "" if result.export is None else seconds_text(result.export.seconds)
            rows.append((
                result.title, str(number), day_text(report.date),
                percent_text(report.machine.other_load), "yes" if report.machine.loaded else "no",
                count_text(report.threads, "thread"),
                f"{report.seconds:g} s x {len(times)}",
                seconds_text(report.seconds_to_open), seconds_text(report.elapsed),
                f"{(report.elapsed - report.seconds_to_open) / measured:.2f}" if measured else "",
                export if number == 1 else "",
            ))  # fmt: skip
    head = ("model", ">benchmark", "date", ">load of others", "too loaded", "threads", ">measured",
            ">to open and warm up", ">elapsed", ">the rest / measured", ">export")  # fmt: skip
    return _table(head, rows)


def _machine_lines(results: Sequence[SeedResult]) -> Iterator[str]:
    """Yield each machine once, with the versions of the runtimes."""
    seen: dict[str, None] = {}
    for result in results:
        more = {} if result.export is None else result.export.versions
        for report in result.reports:
            machine = report.machine
            versions = {**machine.versions, **{n: v for n, v in more.items() if v}}
            text = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
            seen[
                f"- {machine.processor}, {count_text(machine.cores, 'core')}, "
                f"{size_text(machine.memory)} of memory, {machine.system}; modelc {report.modelc}, "
                f"Python {machine.python}, {text}"
            ] = None
    yield from seen


def _speedup_text(one: RowTimes) -> str:
    if one.speedup is None or one.speedup_interval is None:
        return ""
    return _with_interval(one.speedup, one.speedup_interval, "{:.2f}".format)


def _with_interval(value: float, interval: Interval, write: Callable[[float], str]) -> str:
    return f"{write(value)} ({write(interval.low)} to {write(interval.high)})"


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table; a column whose title starts with `>` is aligned to the right."""
    marks = ["---:" if title.startswith(">") else "---" for title in head]
    lines = [[title.removeprefix(">") for title in head], marks, *rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]
