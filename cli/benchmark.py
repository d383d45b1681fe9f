"""`modelc bench`: which artifact of an output folder to deploy, measured beside eager."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ErrorCode, UsageError
from ..pipeline.call_options import CallOptions
from ..pipeline.option_spec import Given, Panel, read_record
from ..pipeline.option_table import JudgingOptions
from .command_options import with_options
from .run_options import file_move

if TYPE_CHECKING:
    from ..pipeline.benchmark.benchmark_records import BenchmarkReport

_MAX_SECONDS = 3600.0


@with_options("bench")
def benchmark(
    folder: Annotated[Path, typer.Argument(help="An output folder of modelc export.")],
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            metavar="SIZES",
            help="Batch sizes to measure, as 1,8,32; default: the typical (opt) size.",
            rich_help_panel=Panel.INPUT,
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="DIM=SIZES",
            help="Sizes of another dim to measure, as seq=16,128. Repeatable.",
            rich_help_panel=Panel.INPUT,
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            metavar="SECONDS",
            min=0.1,
            max=_MAX_SECONDS,
            help="Seconds to measure each row at each size.",
            rich_help_panel=Panel.VALIDATION,
        ),
    ] = 3.0,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            metavar="N",
            min=1,
            help="Threads of each runtime; default: one for each core.",
            rich_help_panel=Panel.VALIDATION,
        ),
    ] = None,
    row: Annotated[
        list[str] | None,
        typer.Option(
            "--row",
            metavar="ROW",
            help="Measure these rows alone, as eager or 'onnx*'. Repeatable.",
            rich_help_panel=Panel.OUTPUT,
        ),
    ] = None,
    compile_modes: Annotated[
        str,
        typer.Option(
            "--compile",
            metavar="MODES",
            help="Modes of torch.compile: default, reduce-overhead, max-autotune, each with "
            "+fullgraph or +dynamic; or none.",
            rich_help_panel=Panel.OUTPUT,
        ),
    ] = "default",
    rejected: Annotated[
        bool,
        typer.Option(
            "--rejected",
            help="Measure rejected artifacts too.",
            rich_help_panel=Panel.OUTPUT,
        ),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Fail if other processes disturb the measurement.",
            rich_help_panel=Panel.VALIDATION,
        ),
    ] = False,
    compare: Annotated[
        Path | None,
        typer.Option(
            "--compare",
            metavar="JSON",
            help="Compare the speed-ups with an earlier benchmark (--json); exit 1 if one is less.",
            rich_help_panel=Panel.VALIDATION,
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv", metavar="FILE", help="Write the rows to a CSV file.",
            rich_help_panel=Panel.OUTPUT,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write a page with tables and charts.",
            rich_help_panel=Panel.OUTPUT,
        ),
    ] = None,
    *,
    given: Given,
) -> None:  # fmt: skip
    """Measure latency, memory and load time of every artifact beside eager and torch.compile.

    All models are opened first, each in a process of its own, and then run in rounds of changing
    order, one at a time. Speed-ups are of the same rounds, with a 99 % interval; rows that differ
    by less than 3 % or by less than the interval are reported as equal.
    """
    from ..pipeline.benchmark.benchmark_plan import BenchmarkOptions
    from ..pipeline.benchmark.benchmark_statistics import compare_speedups
    from ..pipeline.benchmark.run_benchmark import benchmark_folder, read_report
    from ..pipeline.manifest_file import encode_json
    from ..projects.setting_values import parse_seconds
    from .console import Screen, show_json
    from .render_benchmark import show_benchmark

    call = read_record(CallOptions, given)
    options = BenchmarkOptions(
        sizes=dict(map(_read_sizes, size or ())),
        batch=() if batch is None else _read_numbers("--batch", batch),
        seconds=seconds,
        threads=threads,
        device=read_record(JudgingOptions, given).device or "cpu",
        only=tuple(row or ()),
        compiled=_read_modes(compile_modes),
        rejected=rejected,
        strict=strict,
        timeout=None if call.timeout is None else parse_seconds(call.timeout),
    )
    before = None if compare is None else read_report(compare)
    _check_file("csv", csv, "rows.csv")
    _check_file("html", html, "benchmark.html")
    with Screen(quiet=call.quiet) as screen:
        report = benchmark_folder(folder, options, file_move(given), screen)
    if before is not None:
        report = replace(report, compared=compare_speedups(before.rows, report.rows))
    _write_files(report, csv, html)
    if call.json:
        show_json(encode_json(report))
    else:
        show_benchmark(report)
    raise typer.Exit(report.exit_code)


def _check_file(option: str, file: Path | None, example: str) -> None:
    """Check before measuring that a file can be written."""
    if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
        raise UsageError(
            f"--{option} {file} is no file in a folder that exists",
            hint=f"name a file: {example}",
            option=option,
            code=ErrorCode.INVALID_VALUE,
        )


def _write_files(report: BenchmarkReport, csv: Path | None, html: Path | None) -> None:
    from ..core.atomic_write import atomic_write
    from ..pipeline.benchmark.benchmark_page import render_benchmark_page
    from ..pipeline.output_folder import translate_write_errors
    from .render_benchmark import write_csv

    if csv is not None:
        with translate_write_errors(csv.parent):
            write_csv(report, csv)
    if html is not None:
        with translate_write_errors(html.parent):
            atomic_write(html, render_benchmark_page(report).encode())


def _read_sizes(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, sizes = text.partition("=")
    if not (name and equals):
        raise UsageError(
            f"--size {text!r} is not DIM=SIZES",
            hint="give a dim and its sizes: --size seq=16,128",
            option="size",
            code=ErrorCode.INVALID_VALUE,
        )
    return name, _read_numbers("--size", sizes)


def _read_numbers(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and part.isascii() for part in parts):
        raise UsageError(
            f"{option} {text!r} is no list of whole numbers",
            hint=f"separate them by commas: {option} {'seq=16,128' if 'size' in option else '1,8'}",
            option=option.removeprefix("--"),
            code=ErrorCode.INVALID_VALUE,
        )
    return tuple(dict.fromkeys(map(int, parts)))


def _read_modes(text: str) -> tuple[str, ...]:
    from ..pipeline.benchmark.benchmark_plan import compile_settings

    variants = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if variants == ("none",):
        return ()
    for variant in variants:
        compile_settings(variant)
    return variants
