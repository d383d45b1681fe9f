"""`modelc pack`: a repository for a model server, from output folders; and its check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from ..core.errors import ErrorCode, Hint, Option, UsageError
from ..core.events import Advanced, Finished, Started, Tell
from ..pipeline.call_options import CallOptions, FileOptions, PackChoice
from ..pipeline.option_spec import Given, check_numbers, read_record
from ..pipeline.option_table import SourceOptions
from ..reports.text_format import count_text
from ..runtimes.generation_files import ONNXRUNTIME_GENAI, OPENVINO_GENAI
from .command_options import refuse, with_options
from .console import Screen, new_table, print_line, result_console, show_json
from .run_options import process_bounds

if TYPE_CHECKING:
    from ..serving.ensembles import EnsembleSpec
    from ..serving.pack_models import PackRequest
    from ..serving.pick_artifacts import ModelFolder
    from ..serving.repository_records import CheckedRepository, PackReport

_STEP = "inspect artifacts"
_ONLY_PACKING = (
    "out", "artifact", "allow", "name", "gpu", "instances", "keep", "storage-uri", "checkpoint",
)  # fmt: skip
_OF_SERVERS = ("gpu", "instances", "keep", "storage-uri")


@with_options("pack")
def pack(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            help="Output folders of modelc export, or a modelc.toml that was run; with --check, "
            "the repository.",
        ),
    ],
    *,
    given: Given,
) -> None:
    """Pack artifacts that passed for a model server or a runtime for generation, or check a pack.

    Names, dtypes, dims and batch size are read from the artifacts themselves and seen in runs of
    them. A model that the repository has gets a new version; other models are not touched.
    """
    choice = read_record(PackChoice, given)
    if choice.check:
        refuse(given, _ONLY_PACKING, "with --check", "leave it out")
        _check(paths, choice, given)
        return
    request = _make_request(paths, given)
    where = f"with --to {request.kind.name}"
    if request.kind.name not in ("ovms", "kserve"):
        refuse(given, ("storage-uri",), where, "leave it out")
    generates = request.kind.name in (ONNXRUNTIME_GENAI, OPENVINO_GENAI)
    refuse(given, () if generates else ("checkpoint",), where, "leave it out")
    refuse(given, _OF_SERVERS if generates or request.kind.joins else (), where, "leave it out")
    _pack(request, read_record(CallOptions, given))


def _pack(request: PackRequest, call: CallOptions) -> None:
    from ..pipeline.manifest_file import encode_json
    from ..serving.pack_models import pack_models

    with Screen(quiet=call.quiet) as screen:
        progress = _Progress(screen)
        report = pack_models(request, progress.advance)
        progress.finish()
    show_json(encode_json(report)) if call.json else _show_packed(report, quiet=call.quiet)


class _Progress:
    """Draws the step that opens the artifacts, once it begins."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._began: float | None = None

    def advance(self, done: int, total: int) -> None:
        """Draw how many are done."""
        if self._began is None:
            self._began = perf_counter()
            self._tell(Started(step=_STEP))
        self._tell(Advanced(step=_STEP, done=done, total=total))

    def finish(self) -> None:
        """Draw the end."""
        seconds = round(perf_counter() - (self._began or perf_counter()), 3)
        self._tell(Finished(step=_STEP, passed=True, seconds=seconds, detail=""))


def _make_request(paths: list[Path], given: Given) -> PackRequest:
    """Return what to pack.

    Raises:
        UsageError: an option is missing, or is of another kind of repository.
    """
    from ..serving.pack_models import PackRequest
    from ..serving.pick_artifacts import ArtifactChoice
    from ..serving.repository_kinds import KINDS, kind_named
    from ..serving.repository_records import ServingOptions

    choice, call = read_record(PackChoice, given), read_record(CallOptions, given)
    names = ", ".join(kind.name for kind in KINDS)
    if choice.to is None:
        raise UsageError(
            "--to is missing",
            hint=Hint("give a kind of repository: ", Option("to", KINDS[0].name), f" ({names})"),
            option="to",
        )  # fmt: skip
    if choice.repository is None:
        raise UsageError(
            "-o is missing", hint="give the folder of the repository: -o REPO", option="out"
        )
    _check_choice(choice, choice.repository)
    kind = kind_named(choice.to)
    folders: list[ModelFolder] = []
    ensembles: list[EnsembleSpec] = []
    together = kind.joins and len(paths) > 1
    for path in paths:
        name = None if together else choice.name
        found, joined = _open_path(path, name, read_record(FileOptions, given).checkpoint)
        folders += found
        ensembles += joined
    if together:
        folders = _join_folders(folders, choice.name)
    return PackRequest(
        folders=tuple(folders),
        repository=choice.repository,
        kind=kind,
        choice=ArtifactChoice(only=call.artifact, allow=choice.allow),
        options=ServingOptions(
            gpu=choice.gpu or None, instances=choice.instances, keep=choice.keep,
            storage_uri=choice.storage_uri or "",
        ),
        ensembles=tuple(ensembles),
        bounds=process_bounds(call),
        trust=read_record(SourceOptions, given).trust,
    )  # fmt: skip


def _check_choice(choice: PackChoice, repository: Path) -> None:
    """Check that numbers are in their range, and that no output folder becomes a repository."""
    check_numbers(choice)
    if (repository / "manifest.json").is_file():
        raise UsageError(
            f"{repository} is an output folder of modelc export, not a repository",
            hint="give another folder: -o REPO", option="out", code=ErrorCode.INVALID_VALUE,
        )  # fmt: skip


def _open_path(
    path: Path, name: str | None, checkpoint: Path | None
) -> tuple[tuple[ModelFolder, ...], tuple[EnsembleSpec, ...]]:
    """Return the output folders of a path, and the ensembles if it is a project."""
    from ..pipeline.parts.parts_file import has_parts
    from ..serving.pick_artifacts import ModelFolder, check_served_name, list_part_folders

    if path.suffix != ".toml" and path.is_file():
        beside = (path.parent / "manifest.json").is_file()
        hint = f"{path.parent}, and choose with --artifact" if beside else "of modelc export"
        raise UsageError(
            f"{path} is a file", hint=f"give the output folder {hint}", code=ErrorCode.NO_MANIFEST
        )
    if path.suffix == ".toml" and not path.exists():
        raise UsageError(
            f"no such file: {path}", hint="create modelc.toml with modelc init CHECKPOINT",
            code=ErrorCode.NOT_FOUND,
        )  # fmt: skip
    if (path / "modelc.toml").is_file() and not (path / "manifest.json").is_file():
        raise UsageError(
            f"{path} is a project, not an output folder", code=ErrorCode.NO_MANIFEST,
            hint=f"pack its models with modelc pack {path / 'modelc.toml'}",
        )  # fmt: skip
    if path.suffix != ".toml" or not path.is_file():
        served = check_served_name(name or path.resolve().name)
        if has_parts(path):
            return tuple(list_part_folders(path, served)), ()
        return (ModelFolder(name=served, folder=path, checkpoint=checkpoint),), ()
    return _open_project(path, name, checkpoint)


def _open_project(
    path: Path, name: str | None, checkpoint: Path | None
) -> tuple[tuple[ModelFolder, ...], tuple[EnsembleSpec, ...]]:
    """Return the output folders of a project, and its ensembles."""
    from ..pipeline.manifest_file import MANIFEST_FILE
    from ..pipeline.parts.parts_file import has_parts
    from ..projects.project_reader import read_project
    from ..projects.setting_layers import resolve_settings
    from ..serving.pick_artifacts import ModelFolder, list_part_folders
    from .run_options import collect_overrides

    for option, value in (("name", name), ("checkpoint", checkpoint)):
        if value is not None:
            raise UsageError(
                f"--{option} has no effect with the project {path}", hint="leave it out",
                option=option, code=ErrorCode.NO_EFFECT,
            )  # fmt: skip
    settings = resolve_settings(read_project(path), collect_overrides(None))
    out = settings.run.out
    made = [
        one.name
        for one in settings.models
        if (out / one.name / MANIFEST_FILE).is_file() or has_parts(out / one.name)
    ]
    if not made:
        raise UsageError(
            f"no model of {path} has an output folder",
            hint=f"run modelc run -f {path}", code=ErrorCode.NO_MANIFEST,
        )  # fmt: skip
    folders: list[ModelFolder] = []
    for one in made:
        parts = list_part_folders(out / one, one) if has_parts(out / one) else ()
        folders += [*parts] or [ModelFolder(name=one, folder=out / one)]
    return tuple(folders), settings.project.ensembles


def _join_folders(folders: list[ModelFolder], name: str | None) -> list[ModelFolder]:
    """Return the folders as models that run together.

    Raises:
        UsageError: they have no name together.
    """
    if name is None:
        raise UsageError(
            f"{len(folders)} models become one folder, which has no name",
            hint=Hint("name it: ", Option("name", "NAME")),
            option="name",
            code=ErrorCode.INVALID_VALUE,
        )
    return [replace(one, group=name) for one in folders]


def _check(paths: list[Path], choice: PackChoice, given: Given) -> None:
    """Check one repository, and exit with 1 where anything is wrong."""
    from ..pipeline.manifest_file import encode_json
    from ..serving.pack_models import check_repository
    from ..serving.repository_kinds import kind_named

    call = read_record(CallOptions, given)
    if len(paths) != 1:
        raise UsageError(
            f"--check takes one repository, not {len(paths)}", hint="check them one by one"
        )
    found = check_repository(
        paths[0],
        kind=None if choice.to is None else kind_named(choice.to),
        bounds=process_bounds(call),
        trust=read_record(SourceOptions, given).trust,
    )
    show_json(encode_json(found)) if call.json else _show_checked(found, quiet=call.quiet)
    raise typer.Exit(found.exit_code)


def _show_packed(report: PackReport, *, quiet: bool = False) -> None:
    """Show a row for each model, then what was left out and what to know."""
    console = result_console()
    table = new_table(
        "model", "version", "artifact", "max batch", "", right=("version", "max batch")
    )
    for model in report.models:
        table.add_row(
            escape(model.name),
            str(model.version),
            escape(model.artifact),
            str(model.batch) if model.batch else "",
            "new" if model.is_new else "there",
        )
    console.print(table)
    for model in report.models:
        for note in model.notes:  # of the result: what is missing in a pack is no progress
            print_line(console, f"  [yellow]{escape(f'{model.name}: {note}')}[/]")
    for one in () if quiet else report.left_out:
        text = "; ".join(filter(None, (one.text, one.hint)))
        print_line(console, f"  [dim]left out: {escape(text)}[/]")
    new = sum(model.is_new for model in report.models)
    print_line(
        console,
        f"{new} packed, {len(report.models) - new} there already · {escape(report.repository)}",
    )


def _show_checked(found: CheckedRepository, *, quiet: bool = False) -> None:
    """Show a line and a hint for each fault, then the counts."""
    console = result_console()
    for fault in found.faults:
        where = "/".join(filter(None, (fault.model, fault.version)))
        text = escape(f"{where}: {fault.message}" if where else fault.message)
        print_line(console, f"[red]{fault.code}[/] {text}")
        if not quiet:
            print_line(console, f"  [dim]hint: {escape(fault.hint)}[/]")
    for text in () if quiet else found.unchecked:
        print_line(console, f"[yellow]unchecked[/] {escape(text)}")
    counts = ", ".join(
        (
            count_text(len(found.models), "model"),
            f"{count_text(len(found.versions), 'version')} compared with the files",
            count_text(len(found.faults), "fault"),
        )
    )
    print_line(console, f"{counts} · {escape(found.repository)}")
