"""The rows of the option table that are of one call: which files it starts from, what it shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .option_spec import Commands, Panel, ValueKind, option, switch

# fmt: off
On = Commands
_T, _P = ValueKind.TRUTH, ValueKind.PATH


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Which files of an earlier run a command starts from, and what it does with them."""

    checkpoint: Path | None = option(
        None, "checkpoint", "With an output folder: where its checkpoint is now, if it moved.",
        Panel.INPUT, commands=On.TRT | On.VALIDATE, key=False, kind=_P, metavar="CHECKPOINT")
    against: Path | None = option(
        None, "against",
        "The eager reference of a model file; default: as the manifest beside it records.",
        Panel.INPUT, commands=On.EAGER - On.EXPORT, key=False, kind=_P, metavar="CHECKPOINT")
    precision: str | None = option(
        None, "precision",
        "What a model file computes in; default: as recorded, or as the file says.",
        Panel.PRECISION, commands=On.VALIDATE | On.DEBUG, key=False, metavar="PRECISION")
    feed: str | None = option(
        None, "feed", "The feed to look at; default: the artifact's worst.", Panel.VALIDATION,
        commands=On.DEBUG, key=False, metavar="NAME")
    rejudge: bool = switch(
        "rejudge", "Apply tolerances to what the manifest of a folder measured; nothing is run.",
        Panel.VALIDATION, commands=On.VALIDATE, key=False)
    replay: Path | None = option(
        None, "replay",
        "Judge a model file on this feed too and show it alone: DIR/worst/ARTIFACT.npz.",
        Panel.VALIDATION, commands=On.VALIDATE, key=False, kind=_P, metavar="NPZ")
    activations: str = option(
        "2GiB", "activations", "Activations to hold at once, as 512MB or 2GiB.", commands=On.DEBUG,
        key=False, metavar="SIZE")
    debug_folder: Path | None = option(
        None, "out", "Where debug/<node>/ goes; default: the manifest's folder.", Panel.OUTPUT,
        commands=On.DEBUG, key=False, kind=_P, flags=("-o", "--out"), metavar="DIR")


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """How one call works and what it shows; of these, only the cache is a setting of a model."""

    out: Path = option(
        Path("out"), "out", "Output folder.", Panel.OUTPUT, commands=On.MAKING, key=False, kind=_P,
        flags=("-o", "--out"), metavar="DIR")
    dry_run: bool = switch(
        "dry-run", "Print the plan and stop.", Panel.OUTPUT, commands=On.MAKING | On.RUN, key=False)
    prepare_only: bool = switch(
        "prepare-only", "Exit 0 where all is prepared and only steps for another host are pending.",
        Panel.OUTPUT, commands=On.TRT | On.RUN, key=False)
    report: tuple[str, ...] = option(
        (), "report", "Reports to write: html, md, junit, sarif, json; several with commas.",
        Panel.OUTPUT, commands=On.JUDGING | On.RUN | On.REPORT, key=False, many=True,
        metavar="NAMES")
    json: bool = switch(
        "json", "One JSON document on stdout.", Panel.OUTPUT, commands=On.WITH_JSON, key=False)
    quiet: bool = switch(
        "quiet", "Only the result and errors.", Panel.OUTPUT, commands=On.ALL, key=False,
        flags=("-q", "--quiet"))
    tolerance: tuple[str, ...] = option(
        (), "tolerance",
        "Limits by name: atol, rtol, min-sqnr, floor-factor, min-cosine, min-agreement; "
        "of one output, as logits:min-sqnr=60. Repeatable.", Panel.VALIDATION, commands=On.JUDGING,
        key=False, many=True, metavar="[OUTPUT:]KEY=VALUE,…")
    no_cache: bool = switch(
        "no-cache", "Reuse no result of an earlier run, and keep none.", Panel.CACHE,
        commands=On.MAKING | On.RUN)
    isolate: bool | None = option(
        None, "isolate",
        "Work in a process of its own, so that a crash or a bound ends one step; the default.",
        Panel.ISOLATION, commands=On.EAGER | On.INSPECT, key=False, kind=_T,
        flags=("--isolate/--no-isolate",))
    timeout: str | None = option(
        None, "timeout",
        "The most that one step may take, as 600 or 10min; beyond it, that step fails.",
        Panel.ISOLATION, commands=On.EAGER | On.INSPECT | On.RUN, key=False, metavar="TIME")
    memory: str | None = option(
        None, "memory", "The most memory that a step may take, as 8GB; beyond it, that step fails.",
        Panel.ISOLATION, commands=On.EAGER | On.INSPECT, key=False, metavar="SIZE")
    sign_key: Path | None = option(
        None, "sign-key", "Sign the manifest with this ed25519 key, into manifest.json.sig.",
        Panel.SIGNING, commands=On.JUDGING | On.RUN, key=False, kind=_P, env="MODELC_SIGN_KEY",
        metavar="PEM")
    latency: bool = switch(
        "latency", "Beside another run, judge timings too: as ratios to fp32, beyond their noise.",
        commands=On.REPORT | On.RUN, key=False)
    debug: bool = switch(
        "debug", "Tracebacks of errors.", commands=On.ALL, key=False)
