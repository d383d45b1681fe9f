"""Commands that read results and run no model: `report`, `verify`, `inspect` and `sbom`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import CheckpointError, ErrorCode, Hint, Option, UsageError
from ..core.hub_ids import find_hub_id, name_checkpoint
from ..core.segments import SegmentOptions
from ..pipeline.call_options import CallOptions, InspectChoice
from ..pipeline.manifest_file import MANIFEST_FILE
from ..pipeline.option_spec import Given, Panel, read_record, specs_of
from ..pipeline.option_table import JudgingOptions, SourceOptions
from .command_options import refuse, with_options
from .judging_options import parse_formats
from .run_options import file_move, load_public_key, process_bounds

if TYPE_CHECKING:
    from ..pipeline.order import Source
    from ..pipeline.recorded_run import Moved

_RECORDED = ("model", "model-arg", "method", "weights-key", "input", "static", "drop-output")


@with_options("report")
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="The output folder of a model or a project; two to compare, the older one first."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE_OR_DIR",
            help="Where to write; default: the output folder.",
            rich_help_panel=Panel.OUTPUT,
        ),
    ] = None,
    fail_on_regression: Annotated[
        bool,
        typer.Option(
            "--fail-on-regression",
            help="With two folders: exit 1 if a measure is worse.",
            rich_help_panel=Panel.VALIDATION,
        ),
    ] = False,
    *,
    given: Given,
) -> None:
    """Write reports of a run, or compare two runs, from their manifests."""
    from .render_report import compare_and_show, write_report

    call = read_record(CallOptions, given)
    formats = parse_formats(call.report)
    if len(paths) == 1:
        if fail_on_regression:
            raise UsageError(
                "--fail-on-regression needs two folders",
                hint="modelc report BEFORE AFTER",
                option="fail-on-regression",
            )
        write_report(paths[0], out, formats, json=call.json)
        return
    if len(paths) != 2:  # noqa: PLR2004 - one run, or a comparison of two
        raise UsageError(
            f"{len(paths)} folders were passed",
            hint="pass one, or two to compare: BEFORE AFTER",
        )
    worse = compare_and_show(
        (paths[0], paths[1]), out, formats, json=call.json, latency=call.latency
    )
    raise typer.Exit(1 if worse and fail_on_regression else 0)


@with_options("verify")
def verify(
    out: Annotated[Path, typer.Argument(help="The output folder of modelc export or modelc run.")],
    key: Annotated[
        Path | None,
        typer.Option(
            "--key",
            metavar="PEM",
            help="Public key that the manifest must be signed with.",
            rich_help_panel=Panel.SIGNING,
        ),
    ] = None,
    *,
    given: Given,
) -> None:
    """Check the files, records and lineage of an output folder; no model is run."""
    from ..pipeline.manifest_file import encode_json
    from ..projects.verify_project import verify_results as look
    from .console import show_json
    from .render import show_verification

    call = read_record(CallOptions, given)
    found = look(out, key=load_public_key(key))
    if call.json:
        show_json(encode_json(found))
    else:
        show_verification(found, str(out), quiet=call.quiet)
    raise typer.Exit(found.exit_code)


@with_options("inspect")
def inspect(
    path: Annotated[Path, typer.Argument(help="A converted model or a checkpoint.")],
    *,
    given: Given,
) -> None:
    """Show what a model file or a checkpoint holds, or what torch.compile makes of a model.

    Of a model file: inputs, outputs and operators; of a checkpoint: its sets of weights.
    """
    from ..checkpoints.weight_sets import weights_kind
    from ..pipeline.inspection import InspectedFile
    from ..pipeline.isolation.worker import ApiCall, run_call
    from ..pipeline.manifest_file import encode_json
    from .console import show_json
    from .render import show_inspection, show_segments

    call, trust = read_record(CallOptions, given), read_record(SourceOptions, given).trust
    bounds = process_bounds(call)
    plan = _read_segments(given)
    if read_record(InspectChoice, given).breaks:
        _inspect_breaks(path, given)
        return
    options = [one.name for kind in (SourceOptions, JudgingOptions) for one in specs_of(kind)]
    refuse(given, set(options) - {"trust"}, "without --breaks", "add --breaks, or remove it")
    if find_hub_id(path) or weights_kind(path):
        if plan is not None:
            text = name_checkpoint(path)
            raise UsageError(
                f"--segments needs a program or an ONNX, and {text} is a checkpoint",
                hint=f"export it first: modelc export {text} --to pt2 --to onnx",
                option="segments", code=ErrorCode.UNSUPPORTED,
            )  # fmt: skip
        _inspect_checkpoint(path, call)
        return
    look = ApiCall(function="inspect", arguments={"path": path, "trust": trust, "segments": plan})
    looked = run_call(look, InspectedFile, bounds)
    if call.json:
        show_json(encode_json(looked))
        return
    declared = () if looked.meta is None else looked.meta.rows
    show_inspection(looked.inspection, looked.size, (*declared, *looked.lineage))
    if looked.segments is not None:
        show_segments(looked.segments)


def _inspect_checkpoint(path: Path, call: CallOptions) -> None:
    """Show the sets of weights of a file, or of a model on the hub."""
    from ..pipeline.hub_source import locate_weights
    from ..pipeline.inspection import CheckpointContents
    from ..pipeline.isolation.worker import ApiCall, run_call
    from ..pipeline.manifest_file import encode_json
    from .console import Screen, show_json
    from .render import show_checkpoint

    with Screen(quiet=call.quiet) as screen:
        place = locate_weights(path, screen)
    look = ApiCall(function="inspect_checkpoint", arguments={"path": place})
    contents = run_call(look, CheckpointContents, process_bounds(call))
    show_json(encode_json(contents)) if call.json else show_checkpoint(
        contents, name_checkpoint(path)
    )


def _read_segments(given: Given) -> SegmentOptions | None:
    """Return how to plan segments; None without `--segments`."""
    from ..converters.trt.engine_options import parse_options
    from ..pipeline.make_order import make_settings

    choice, settings = read_record(InspectChoice, given), make_settings(given)
    if choice.segments and choice.breaks:
        raise UsageError(
            "--segments has no effect with --breaks", hint="run modelc inspect once for each",
            option="segments", code=ErrorCode.NO_EFFECT,
        )  # fmt: skip
    if choice.segments:
        options = parse_options(settings)
        return SegmentOptions(min_block_size=options.min_block_size, torch_ops=options.torch_ops)
    if settings:
        name = next(iter(settings)).replace("_", "-")
        raise UsageError(
            f"--{name} has no effect without --segments", hint=Hint("add ", Option("segments")),
            option=name, code=ErrorCode.NO_EFFECT,
        )  # fmt: skip
    return None


def _read_recorded(folder: Path, moved: Moved) -> Source:
    """Return the model of an output folder with its recorded inputs.

    Raises:
        CheckpointError: the checkpoint is not where it was; the hint is one that inspect takes.
    """
    from ..pipeline.recorded_run import load_manifest, source_from_record

    manifest = load_manifest(folder)
    try:
        source = source_from_record(manifest, folder, moved)
    except CheckpointError as error:
        if error.option != "checkpoint":
            raise
        hint = Hint("give the checkpoint in place of the folder, with ", Option("model"), " and ",
                    Option("input"))  # fmt: skip
        raise error.at(error.place, hint=hint) from error
    return replace(source, inputs=tuple(map(str, manifest.signature.inputs)))


def _inspect_breaks(path: Path, given: Given) -> None:
    """Compile the model of a checkpoint with dynamo, and show what came of it."""
    from ..checkpoints.sniff import names_artifact
    from ..core.compile_records import CompileReport
    from ..pipeline.isolation.worker import ApiCall, run_call
    from ..pipeline.make_order import make_judging, make_source
    from ..pipeline.manifest_file import encode_json
    from .console import Screen, show_json
    from .judging_options import read_limits
    from .render_breaks import show_breaks

    call = read_record(CallOptions, given)
    if (path / MANIFEST_FILE).is_file():
        refuse(given, _RECORDED, f"with the output folder {path}", "pass the checkpoint")
        source = _read_recorded(path, file_move(given))
    elif path.is_file() and names_artifact(path):
        folder = path.parent
        recorded = (folder / MANIFEST_FILE).is_file()
        hint = f"give its output folder: modelc inspect {folder} --breaks"
        raise UsageError(
            f"--breaks needs the checkpoint, and {path} is a converted model",
            hint=hint if recorded else "give the checkpoint that it was made from",
            option="breaks", code=ErrorCode.UNSUPPORTED,
        )  # fmt: skip
    else:
        source = make_source(path, given)
    arguments = {
        "source": source, "judging": make_judging(given, read_limits()),
    }  # fmt: skip
    look = ApiCall(function="inspect_breaks", arguments=arguments)
    with Screen(quiet=call.quiet) as screen:
        report = run_call(look, CompileReport, process_bounds(call), screen)
    show_json(encode_json(report)) if call.json else show_breaks(report)


@with_options("sbom")
def sbom(
    out: Annotated[Path, typer.Argument(help="The output folder of modelc export.")],
    file: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="File to write; default: stdout.",
            rich_help_panel=Panel.OUTPUT,
        ),
    ] = None,
    *,
    given: Given,
) -> None:
    """Write a bill of materials (CycloneDX 1.6): artifacts, checkpoint and packages."""
    from ..pipeline.provenance.bill_of_materials import make_bill, write_bill
    from .console import print_line, result_console, show_document

    bill = make_bill(out)
    if file is None:
        show_document(bill)
        return
    written = write_bill(bill, file)
    if not read_record(CallOptions, given).quiet:
        print_line(result_console(), f"wrote {written}")
