"""`modelc debug`: name the layer that first leaves eager."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import ErrorCode
from . import common_options as o
from . import run_options as b
from .judging_options import read_limits


def debug(
    artifact: Annotated[Path, typer.Argument(help="A converted model, also a rejected one.")],
    against: o.Against = None,
    model: o.Model = None,
    model_arg: o.ModelArg = None,
    method: o.Method = None,
    weights_key: o.WeightsKey = None,
    inputs: o.Input = None,
    static: o.Static = None,
    drop_output: o.DropOutput = None,
    samples: o.Samples = None,
    allow_pickle: o.AllowPickle = False,
    trust: o.Trust = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="DIR",
            help="Where debug/<node>/ goes; default: the manifest's folder.",
            rich_help_panel=o.Panel.OUTPUT,
        ),
    ] = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    precision: o.ArtifactPrecision = None,
    feeds: o.Feeds = None,
    feed: Annotated[
        str | None,
        typer.Option(
            "--feed",
            metavar="NAME",
            help="The feed to look at; default: the artifact's worst.",
            rich_help_panel=o.Panel.VALIDATION,
        ),
    ] = None,
    device: o.Device = None,
    isolate: b.Isolate = None,
    timeout: b.Timeout = None,
    memory: b.Memory = None,
    no_strict: o.NoStrict = False,
    activations: Annotated[
        str,
        typer.Option(
            "--activations",
            metavar="SIZE",
            help="Activations to hold at once, as 512MB or 2GiB.",
            rich_help_panel=o.Panel.ADVANCED,
        ),
    ] = "2GiB",
    seed: o.Seed = None,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Name the layer of a converted model that first leaves eager, and why."""
    from ..core.findings import Localisation
    from ..pipeline.isolation.worker import ApiCall
    from ..pipeline.make_order import make_judging, make_source
    from ..pipeline.manifest_file import encode_json
    from ..pipeline.provenance.signing import keep_signature
    from ..projects.setting_values import parse_bytes
    from .console import Screen, show_json
    from .render_debug import show_localisation, warn_no_reproducer

    source = None
    if against is not None:
        source = make_source(
            against, model=model, model_args=model_arg, inputs=inputs, samples=samples,
            strict=not no_strict, allow_pickle=allow_pickle, method=method, static=static,
            drop_outputs=drop_output, weights_key=weights_key, trust=trust,
        )  # fmt: skip
    else:
        _refuse({
            "--model": model, "--model-arg": model_arg, "--method": method,
            "--weights-key": weights_key, "--input": inputs, "--static": static,
            "--drop-output": drop_output,
        })  # fmt: skip
    with ExitStack() as held:
        bounds = b.process_bounds(isolate, timeout=timeout, memory=memory)
        screen = held.enter_context(Screen(quiet=quiet))
        held.enter_context(keep_signature(artifact.parent, None, screen))
        held.enter_context(keep_signature(artifact.parent.parent, None, screen))
        moved = o.file_move(None, samples, allow_pickle=allow_pickle, trust=trust)
        judging = make_judging(feeds=feeds, seed=seed, limits=read_limits(), device=device)
        arguments = {
            "path": artifact, "against": source, "moved": moved, "precision": precision,
            "feed": feed, "memory": parse_bytes(activations), "out": out, "judging": judging,
        }  # fmt: skip
        result = b.run_call(
            ApiCall(function="localise", arguments=arguments), Localisation, bounds, screen
        )
    if json:
        show_json(encode_json(result))
        warn_no_reproducer(result, out)
    else:
        show_localisation(result, artifact, out)
    raise typer.Exit(1 if result.guilty or result.whole else 0)


def _refuse(given: dict[str, object]) -> None:
    """No option that was given stays without effect in silence."""
    from ..core.errors import UsageError

    for name, value in given.items():
        if value:
            raise UsageError(
                f"{name} has no effect without --against",
                hint="leave it out, or name the eager reference with --against CHECKPOINT",
                option="against",
                code=ErrorCode.NO_EFFECT,
            )
