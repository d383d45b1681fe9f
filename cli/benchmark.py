"""`modelc bench`: which artifact to deploy, measured beside the eager model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ErrorCode, ModelcError, UsageError
from ..core.events import Tell
from ..core.hub_ids import find_hub_id, name_checkpoint
from ..pipeline.call_options import BenchmarkChoice, CallOptions
from ..pipeline.manifest_file import MANIFEST_FILE
from ..pipeline.option_spec import Given, read_record
from ..pipeline.option_table import ArtifactOptions, JudgingOptions, SourceOptions
from .benchmark_files import check_files, check_folders, write_files
from .command_options import refuse, with_options
from .run_options import file_move

if TYPE_CHECKING:
    from ..pipeline.benchmark.benchmark_plan import BenchmarkOptions
    from ..pipeline.benchmark.benchmark_records import BenchmarkReport
    from ..pipeline.recorded_run import Moved

_EXPORT_OPTIONS = (  # of a checkpoint alone: a folder records them
    "model", "model-arg", "method", "weights-key", "input", "static", "drop-output", "to", "calib",
    "out", "overwrite",
)  # fmt: skip


@with_options("bench")
def benchmark(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="An output folder, a checkpoint, or a modelc.toml that was run."
        ),
    ],
    *,
    given: Given,
) -> None:
    """Measure latency, memory and load time of every artifact beside eager and torch.compile.

    A checkpoint is exported to --out first, by default to every format that is ready here. All
    models are opened, each in a process of its own, and then run in rounds of changing order, one
    at a time. Speed-ups are of the same rounds, with a 99 % interval; rows that differ by less than
    3 % or by less than the interval are reported as equal.
    """
    from ..pipeline.benchmark.benchmark_statistics import compare_reports
    from ..pipeline.benchmark.run_benchmark import read_reports
    from ..pipeline.manifest_file import encode_json
    from .console import Screen, print_line, result_console, show_json
    from .render_benchmark import show_benchmark

    call, choice = read_record(CallOptions, given), read_record(BenchmarkChoice, given)
    options = _read_options(choice, call, given)
    moved, several = file_move(given), _is_project(path)
    before = () if choice.compare is None else read_reports(choice.compare)
    check_files(choice, (path, moved.checkpoint, moved.samples))
    with Screen(quiet=call.quiet) as screen, _open_folders(path, given, options, screen) as folders:
        check_folders(choice, folders)
        reports, errors = _measure(folders, options, moved, screen)
    if before:
        reports = [compare_reports(before, one, several=several) for one in reports]
    written = write_files(reports, choice, several=several)
    if call.json:
        show_json(encode_json({"benchmarks": reports} if several else reports[0]))
    else:
        for one in reports:
            show_benchmark(one, titled=several)
        for file in () if call.quiet else written:
            print_line(result_console(), f"wrote {file}")
    raise typer.Exit(max([one.exit_code for one in errors] + [one.exit_code for one in reports]))


def _measure(
    folders: Sequence[Path], options: BenchmarkOptions, moved: Moved, screen: Tell
) -> tuple[list[BenchmarkReport], list[ModelcError]]:
    """Measure each folder; of several, one that cannot be measured is a warning.

    Raises:
        ModelcError: the only folder cannot be measured.
    """
    from ..pipeline.benchmark.run_benchmark import benchmark_folder
    from .render_setup import print_warnings

    reports: list[BenchmarkReport] = []
    errors: list[ModelcError] = []
    for folder in folders:
        try:
            asked = replace(options, any_row=len(folders) > 1)
            reports.append(benchmark_folder(folder, asked, moved, screen))
        except ModelcError as error:
            if len(folders) == 1:
                raise
            errors.append(error)
            print_warnings([f"{folder}: {error.text}"])
    return reports, errors


def _read_options(choice: BenchmarkChoice, call: CallOptions, given: Given) -> BenchmarkOptions:
    from ..pipeline.benchmark.benchmark_plan import BenchmarkOptions, read_variants
    from ..projects.setting_values import parse_seconds

    return BenchmarkOptions(
        sizes=_merge_sizes(map(_read_sizes, choice.size)),
        batch=() if choice.batch is None else _read_numbers("--batch", choice.batch),
        seconds=choice.seconds,
        threads=choice.threads,
        device=read_record(JudgingOptions, given).device or "cpu",
        only=choice.row,
        compiled=read_variants(choice.compiled),
        rejected=choice.rejected,
        strict=choice.strict,
        timeout=None if call.timeout is None else parse_seconds(call.timeout),
    )


@contextmanager
def _open_folders(
    path: Path, given: Given, options: BenchmarkOptions, screen: Tell
) -> Iterator[tuple[Path, ...]]:
    """Yield the output folders to measure: of a project, of a new export, or the path itself.

    Raises:
        UsageError: an option of the export has no effect, or no model of the project was run.
        ModelcError: the checkpoint cannot be exported.
    """
    if _is_project(path):
        yield from _project_folders(path, given)
        return
    model = read_record(SourceOptions, given).model
    if not (path / MANIFEST_FILE).is_file() and (
        path.is_file() or model is not None or (path / "config.json").is_file() or find_hub_id(path)
    ):
        refuse(
            given, ("checkpoint",), f"with the checkpoint {name_checkpoint(path)}", "leave it out"
        )
        yield (_export(path, given, options, screen),)
        return
    refuse(given, _EXPORT_OPTIONS, f"with the output folder {path}", "pass the checkpoint")
    yield (path,)


def _is_project(path: Path) -> bool:
    return path.suffix == ".toml" and path.is_file()


def _project_folders(file: Path, given: Given) -> Iterator[tuple[Path, ...]]:
    from ..checkpoints.user_code import use_code_folder
    from ..projects.model_orders import plan_project
    from .render_setup import print_warnings
    from .run_options import collect_overrides

    where, out = f"with the project {file}", given.get("out")
    exported = [one for one in _EXPORT_OPTIONS if one != "out"]
    refuse(given, exported, where, "set it in the project")
    refuse(given, ("checkpoint", "samples"), where, "give the output folder of one model")
    flags = {"out": None if out is None else str(out)}
    planned = plan_project(file, given=collect_overrides(None, flags))
    folders = tuple(one.order.out for one in planned.models)
    made = tuple(one for one in folders if (one / MANIFEST_FILE).is_file())
    if not made:
        raise UsageError(
            f"no model of {file} has an output folder",
            hint=f"run modelc run -f {file}", code=ErrorCode.NO_MANIFEST,
        )  # fmt: skip
    for one in folders:
        if one not in made:
            print_warnings([f"{one}: not measured: its model was not run yet"])
    with use_code_folder(planned.settings.project.folder):
        yield made


def _export(checkpoint: Path, given: Given, options: BenchmarkOptions, screen: Tell) -> Path:
    """Export the checkpoint to the wanted formats, or to all that are ready; return the folder.

    Sizes are checked before, as far as the inputs are given.
    """
    from ..core.grammar import parse_input
    from ..core.signature import merge_inputs
    from ..pipeline.benchmark.benchmark_plan import default_targets, plan_points
    from ..pipeline.isolation.worker import run_request
    from ..pipeline.make_order import make_order
    from ..pipeline.order import Wanted
    from .run_options import cache_folder, process_bounds
    from .streams import set_output_folder

    names = read_record(ArtifactOptions, given).to or default_targets()
    wanted = tuple(map(Wanted.parse, names))
    call = read_record(CallOptions, given)
    order = make_order(given, checkpoint, wanted, cache=cache_folder())
    if order.source.inputs and order.source.samples is None:
        signature = merge_inputs(map(parse_input, order.source.inputs), {})
        plan_points(signature.fix_at_opt(order.source.static), options)
    set_output_folder(order.out)
    run_request(order, process_bounds(call), screen)
    return order.out


def _merge_sizes(given: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """Return the sizes by dim; those of a dim that is given twice are put together."""
    found: dict[str, tuple[int, ...]] = {}
    for name, sizes in given:
        found[name] = tuple(dict.fromkeys((*found.get(name, ()), *sizes)))
    return found


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
