"""`modelc validate`: judge again, from the manifest or against a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import UsageError
from ..core.verdict import Verdict
from . import options as o
from . import options_trt as t


def validate(
    path: Annotated[Path, typer.Argument(help="An output folder, or a converted model.")],
    against: Annotated[
        Path | None,
        typer.Option(
            "--against", metavar="CHECKPOINT", help="The eager reference of a single model file."
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", help="Where the recorded checkpoint is now, if it moved."),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision", help="What to judge a single file as; default: as recorded, or fp32."
        ),
    ] = None,
    model: o.Model = None,
    model_arg: o.ModelArg = None,
    inputs: o.Input = None,
    samples: o.Samples = None,
    no_strict: o.NoStrict = False,
    allow_pickle: o.AllowPickle = False,
    feeds: o.Feeds = None,
    seed: o.Seed = None,
    atol: o.Atol = None,
    rtol: o.Rtol = None,
    min_sqnr: o.MinSqnr = None,
    device: o.Device = None,
    plugins: t.Plugins = None,
    trust_engine: t.TrustEngine = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Check digests and judge artifacts against eager again."""
    from ..pipeline.api import validate as judge_again
    from ..pipeline.manifest_file import as_json
    from .render import show_verdict
    from .render_manifest import show_manifest
    from .screen import Screen
    from .tables import show_json

    eager = {"--model": model, "--model-arg": model_arg, "--input": inputs}
    if against is None:
        _refuse([*eager, "--no-strict"], [*eager.values(), no_strict], "without --against")
        source = None
    else:
        _refuse(["--checkpoint"], [checkpoint], "beside --against")
        source = o.source_of(
            against,
            model=model,
            model_args=model_arg,
            inputs=inputs,
            samples=samples,
            strict=not no_strict,
            allow_pickle=allow_pickle,
        )
    with Screen(quiet=quiet) as screen:
        result = judge_again(
            path,
            against=source,
            moved=o.moved_of(checkpoint, samples, allow_pickle=allow_pickle),
            precision=precision,
            judging=o.judging_of(
                feeds=feeds, seed=seed, atol=atol, rtol=rtol, min_sqnr=min_sqnr, device=device
            ),
            settings=t.settings_of(
                tf32=True, profiles=None, plugins=plugins, trust_engine=trust_engine
            ),
            tell=screen,
        )
    if json:
        show_json(as_json(result))
    elif isinstance(result, Verdict):
        show_verdict(result)
    else:
        show_manifest(result, str(path))
    raise typer.Exit(result.exit_code)


def _refuse(names: Sequence[str], values: Sequence[object], where: str) -> None:
    """No option that was given stays without effect in silence."""
    for name, value in zip(names, values, strict=True):
        if value:
            raise UsageError(
                f"{name} has no effect {where}",
                hint="leave it out, or name the eager reference with --against CHECKPOINT",
            )
