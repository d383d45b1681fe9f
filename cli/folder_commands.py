"""Commands that read results and run no model: `report`, `verify`, `inspect` and `sbom`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import UsageError
from . import common_options as o
from . import judging_options as a
from . import run_options as b
from .run_options import load_public_key


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="An output folder, of a model or of a project; two to compare, the older first."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE_OR_DIR",
            help="Where to; default: the folder.",
            rich_help_panel=o.Panel.OUTPUT,
        ),
    ] = None,
    report: a.Report = None,
    json: o.Json = False,
    quiet: o.Quiet = False,  # noqa: ARG001 - there is only the result
    fail_on_regression: Annotated[
        bool,
        typer.Option(
            "--fail-on-regression",
            help="With two folders: exit 1 if anything is worse.",
            rich_help_panel=o.Panel.VALIDATION,
        ),
    ] = False,
    latency: a.Latency = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Write the reports of a run, or compare two runs, from their manifests alone."""
    from .render_report import compare_and_show, write_report

    formats = a.parse_formats(report)
    if len(paths) == 1:
        if fail_on_regression:
            raise UsageError(
                "--fail-on-regression needs two folders",
                hint="modelc report BEFORE AFTER",
                option="fail-on-regression",
            )
        write_report(paths[0], out, formats, json=json)
        return
    if len(paths) != 2:  # noqa: PLR2004 - one run, or two beside each other
        raise UsageError(
            f"{len(paths)} runs were given", hint="give one, or two to compare: BEFORE AFTER"
        )
    worse = compare_and_show((paths[0], paths[1]), out, formats, json=json, latency=latency)
    raise typer.Exit(1 if worse and fail_on_regression else 0)


def verify(
    out: Annotated[Path, typer.Argument(help="What modelc export or modelc run wrote.")],
    json: o.Json = False,
    quiet: o.Quiet = False,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key",
            metavar="PEM",
            help="Public key that the manifest must be signed with.",
            rich_help_panel=o.Panel.SIGNING,
        ),
    ] = None,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Check a folder's files, records and lineage again; no model is run and nothing is written."""
    from ..pipeline.manifest_file import encode_json
    from ..projects.verify_project import verify_results as look
    from .console import show_json
    from .render import show_verification

    found = look(out, key=load_public_key(key))
    if json:
        show_json(encode_json(found))
    else:
        show_verification(found, str(out), quiet=quiet)
    raise typer.Exit(found.exit_code)


def inspect(
    path: Annotated[Path, typer.Argument(help="A converted model, or a checkpoint of weights.")],
    trust: o.Trust = False,
    json: o.Json = False,
    quiet: o.Quiet = False,  # noqa: ARG001 - there is only the result
    isolate: b.Isolate = None,
    timeout: b.Timeout = None,
    memory: b.Memory = None,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Show what a converted model takes, gives and computes, or the weights of a checkpoint."""
    from ..checkpoints.weight_sets import weights_kind
    from ..pipeline.inspection import CheckpointContents, InspectedFile
    from ..pipeline.isolation.worker import ApiCall
    from ..pipeline.manifest_file import encode_json
    from .console import show_json
    from .render import show_checkpoint, show_inspection

    bounds = b.process_bounds(isolate, timeout=timeout, memory=memory)
    if weights_kind(path):
        call = ApiCall(function="inspect_checkpoint", arguments={"path": path})
        contents = b.run_call(call, CheckpointContents, bounds)
        show_json(encode_json(contents)) if json else show_checkpoint(contents, path)
        return
    call = ApiCall(function="inspect", arguments={"path": path, "trust": trust})
    looked = b.run_call(call, InspectedFile, bounds)
    if json:
        show_json(encode_json(looked))
        return
    show_inspection(looked.inspection, looked.size, looked.lineage)


def sbom(
    out: Annotated[Path, typer.Argument(help="What modelc export wrote.")],
    file: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="Where to; default: stdout.",
            rich_help_panel=o.Panel.OUTPUT,
        ),
    ] = None,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Write the artifacts, their checkpoint and packages as CycloneDX 1.6 JSON."""
    from ..pipeline.provenance.bill_of_materials import make_bill, write_bill
    from .console import print_line, result_console, show_document

    bill = make_bill(out)
    if file is None:
        show_document(bill)
        return
    written = write_bill(bill, file)
    if not quiet:
        print_line(result_console(), f"wrote {written}")
