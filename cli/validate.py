"""`modelc validate`: judge again, from the manifest or against a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ErrorCode, UsageError
from ..core.events import Tell
from ..core.manifest import Manifest
from ..core.verdict import Verdict
from . import common_options as o
from . import conversion_options as c
from . import judging_options as a
from . import run_options as b
from .judging_options import Tolerances, read_limits
from .run_options import SignKey, is_on_command_line, load_private_key

if TYPE_CHECKING:
    from ..core.children.limits import ProcessLimits
    from ..reports.report_formats import ReportFormat

_REJUDGE_OPTIONS = {
    "path", "rejudge", "atol", "rtol", "min_sqnr", "tolerance", "report", "sign_key", "json",
    "quiet", "debug",
}  # fmt: skip


def validate(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="An output folder, or a converted model.")],
    checkpoint: o.Checkpoint = None,
    against: o.Against = None,
    model: o.Model = None,
    model_arg: o.ModelArg = None,
    method: o.Method = None,
    weights_key: o.WeightsKey = None,
    inputs: o.Input = None,
    static: o.Static = None,
    drop_output: o.DropOutput = None,
    samples: o.Samples = None,
    preprocess: c.PreprocessText = None,
    allow_pickle: o.AllowPickle = False,
    trust: o.Trust = False,
    report: a.Report = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    precision: o.ArtifactPrecision = None,
    feeds: o.Feeds = None,
    atol: o.Atol = None,
    rtol: o.Rtol = None,
    min_sqnr: o.MinSqnr = None,
    tolerance: Tolerances = None,
    search: o.Search = None,
    device: o.Device = None,
    rejudge: Annotated[
        bool,
        typer.Option(
            "--rejudge",
            help="Apply tolerances to what the manifest of a folder measured; nothing is run.",
            rich_help_panel=o.Panel.VALIDATION,
        ),
    ] = False,
    replay: Annotated[
        Path | None,
        typer.Option(
            "--replay",
            metavar="NPZ",
            help="Judge a model file on this feed too and show it alone: DIR/worst/ARTIFACT.npz.",
            rich_help_panel=o.Panel.VALIDATION,
        ),
    ] = None,
    data: a.Data = None,
    metric: a.Metric = None,
    max_drop: a.MaxDrop = None,
    plugins: c.Plugins = None,
    trust_engine: c.TrustEngine = False,
    isolate: b.Isolate = None,
    timeout: b.Timeout = None,
    memory: b.Memory = None,
    sign_key: SignKey = None,
    no_strict: o.NoStrict = False,
    seed: o.Seed = None,
    label: a.Label = None,
    metric_output: a.MetricOutput = None,
    sensitivity: o.Sensitivity = None,
    accept_branch: o.AcceptBranch = None,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Check digests and judge artifacts against eager again."""
    from ..pipeline.api import rejudge as rejudge_it
    from ..pipeline.make_order import make_judging, make_measuring, make_settings, make_source
    from ..pipeline.report_files import remove_stale_reports
    from .console import Screen
    from .streams import set_output_folder

    trusted = trust or trust_engine
    eager = {"--model": model, "--model-arg": model_arg, "--method": method, "--input": inputs,
             "--static": static, "--drop-output": drop_output,
             "--weights-key": weights_key}  # fmt: skip
    if against is None:
        _refuse_options([*eager, "--no-strict"], [*eager.values(), no_strict], "without --against")
        source = None
    else:
        _refuse_options(["--checkpoint"], [checkpoint], "beside --against")
        source = make_source(
            against, model=model, model_args=model_arg, inputs=inputs, samples=samples,
            strict=not no_strict, allow_pickle=allow_pickle, method=method, static=static,
            drop_outputs=drop_output, weights_key=weights_key, trust=trusted,
        )  # fmt: skip
    measuring = make_measuring(
        data, metric, max_drop, label=label, output=metric_output, preprocess=preprocess,
        calibrates=False,
    )  # fmt: skip
    if rejudge:
        o.refuse_other_options(
            context, _REJUDGE_OPTIONS, "with --rejudge: nothing is run", "leave it out"
        )
    judging = make_judging(
        feeds=feeds, seed=seed, atol=atol, rtol=rtol, min_sqnr=min_sqnr, device=device,
        limits=read_limits(tolerance), search=search, accept=accept_branch, sensitivity=sensitivity,
    )  # fmt: skip
    reports = a.parse_folder_formats(path, report)
    settings = make_settings(tf32=True, profiles=None, plugins=plugins, trust_engine=trusted)
    set_output_folder(path)
    sign = _keep_signature(path, sign_key, context, rejudge=rejudge)
    with remove_stale_reports(path, reports), Screen(quiet=quiet) as screen, sign(screen) as trusts:
        if rejudge:
            result: Manifest | Verdict = rejudge_it(path, judging=judging, tell=screen)
        else:
            arguments = {
                "path": path, "against": source, "precision": precision, "settings": settings,
                "judging": replace(judging, trusts_record=trusts), "measuring": measuring,
                "moved": o.file_move(checkpoint, samples, allow_pickle=allow_pickle, trust=trusted),
                "replay": replay,
            }  # fmt: skip
            bounds = b.process_bounds(isolate, timeout=timeout, memory=memory)
            result = _judge_again(path, arguments, bounds, screen)
    raise typer.Exit(_show_result(result, path, reports, json=json))


def _judge_again(
    path: Path, arguments: Mapping[str, object], bounds: ProcessLimits | None, tell: Tell
) -> Manifest | Verdict:
    """The manifest of a folder, or the verdict on a file."""
    from ..pipeline.isolation.worker import ApiCall

    call = ApiCall(function="validate", arguments=arguments)
    if path.is_dir():
        return b.run_call(call, Manifest, bounds, tell)
    return b.run_call(call, Verdict, bounds, tell)


def _keep_signature(
    path: Path, key: Path | None, context: typer.Context, *, rejudge: bool
) -> Callable[[Tell], AbstractContextManager[bool]]:
    """What keeps the signature of a folder true, given who listens; a single file has none.

    Raises:
        UsageError: a key was given for a single file, or it is none.
    """
    from ..pipeline.provenance.signing import keep_signature

    if path.is_dir():
        private = load_private_key(key)
        return lambda tell: keep_signature(path, private, tell, judges_all=not rejudge)
    if is_on_command_line(context, "sign_key"):
        raise UsageError(
            "--sign-key has no effect on a single file",
            hint="give the folder that it lies in",
            option="sign-key",
            code=ErrorCode.NO_EFFECT,
        )
    return lambda _: nullcontext(enter_result=True)


def _show_result(
    result: Manifest | Verdict, path: Path, reports: Sequence[ReportFormat], *, json: bool
) -> int:
    """Show a folder's manifest with its reports, or the verdict on a file; the exit code."""
    from ..pipeline.manifest_file import encode_json
    from .console import show_json
    from .render import show_verdict
    from .render_manifest import show_manifest
    from .render_report import report_run

    if json:
        show_json(encode_json(result))
    elif isinstance(result, Verdict):
        show_verdict(result)
    else:
        show_manifest(result, str(path))
    if not isinstance(result, Verdict):
        report_run(result, path, reports, json=json)
    return result.exit_code


def _refuse_options(names: Sequence[str], values: Sequence[object], where: str) -> None:
    """No option that was given stays without effect in silence."""
    for name, value in zip(names, values, strict=True):
        if value:
            raise UsageError(
                f"{name} has no effect {where}",
                hint="leave it out, or name the eager reference with --against CHECKPOINT",
                code=ErrorCode.NO_EFFECT,
                option=name.removeprefix("--"),
            )
