"""`modelc debug`: name the layer that first leaves eager."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from . import options as o
from .options_tolerance import limits_of

_PANEL = "Looking"


def debug(
    artifact: Annotated[Path, typer.Argument(help="A converted model, also a rejected one.")],
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="CHECKPOINT",
            help="The eager reference; default: as the manifest beside the model records.",
        ),
    ] = None,
    model: o.Model = None,
    model_arg: o.ModelArg = None,
    method: o.Method = None,
    weights_key: o.WeightsKey = None,
    inputs: o.Input = None,
    static: o.Static = None,
    drop_output: o.DropOutput = None,
    samples: o.Samples = None,
    no_strict: o.NoStrict = False,
    allow_pickle: o.AllowPickle = False,
    trust: o.Trust = False,
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision",
            help="What it computes in; default: as recorded, or as the file says.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    feed: Annotated[
        str | None,
        typer.Option(
            "--feed",
            metavar="NAME",
            help="The feed to look at; default: the artifact's worst.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    memory: Annotated[
        str,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="Activations to hold at once, as 512M or 2G.",
            rich_help_panel=_PANEL,
        ),
    ] = "2G",
    feeds: o.Feeds = None,
    seed: o.Seed = None,
    device: o.Device = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="DIR",
            help="Where debug/<node>/ goes; default: the manifest's folder.",
        ),
    ] = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Name the layer of a converted model that first leaves eager, and why."""
    from ..pipeline.api import localise
    from ..pipeline.manifest_file import as_json
    from ..pipeline.options import judging_of, source_of
    from ..pipeline.provenance.resigning import signing
    from .render_debug import show_localisation
    from .screen import Screen
    from .tables import show_json

    source = None
    if against is not None:
        source = source_of(
            against,
            model=model,
            model_args=model_arg,
            inputs=inputs,
            samples=samples,
            strict=not no_strict,
            allow_pickle=allow_pickle,
            method=method,
            static=static,
            drop_outputs=drop_output,
            weights_key=weights_key,
            trust=trust,
        )
    else:
        _refuse({
            "--model": model, "--model-arg": model_arg, "--method": method,
            "--weights-key": weights_key, "--input": inputs, "--static": static,
            "--drop-output": drop_output,
        })  # fmt: skip
    with ExitStack() as held:
        screen = held.enter_context(Screen(quiet=quiet))
        for place in (artifact.parent, artifact.parent.parent):
            held.enter_context(signing(place, None, screen))
        result = localise(
            artifact,
            against=source,
            moved=o.moved_of(None, samples, allow_pickle=allow_pickle, trust=trust),
            precision=precision,
            feed=feed,
            memory=_bytes(memory),
            out=out,
            judging=judging_of(feeds=feeds, seed=seed, limits=limits_of(), device=device),
            tell=screen,
        )
    if json:
        show_json(as_json(result))
    else:
        show_localisation(result, [out or artifact.parent, artifact.parent, artifact.parent.parent])
    raise typer.Exit(1 if result.guilty else 0)


def _refuse(given: dict[str, object]) -> None:
    """No option that was given stays without effect in silence."""
    from ..core.errors import UsageError

    for name, value in given.items():
        if value:
            raise UsageError(
                f"{name} has no effect without --against",
                hint="leave it out, or name the eager reference with --against CHECKPOINT",
            )


def _bytes(text: str) -> int:
    """`2G` as bytes, in powers of 1024."""
    from ..core.errors import UsageError

    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = text.rstrip("kKmMgG"), text[len(text.rstrip("kKmMgG")) :].upper()
    try:
        size = int(float(number) * units[unit])
    except (ValueError, KeyError):
        size = 0
    if size <= 0:
        raise UsageError(f"--memory {text!r} is no size", hint="write it as 512M or 2G")
    return size
