"""The keys of modelc.toml: options of the table, and keys of projects only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..pipeline.option_spec import OptionSpec, ValueKind, option, specs_of, switch
from ..pipeline.option_table import ENGINE_OPTIONS, OPTIONS
from ..pipeline.option_values import check_drop, check_report

SHARED_KEYS = tuple(one for one in OPTIONS if one.key)
MODEL_KEYS = {  # `checkpoint` belongs to one model and is not valid in [defaults]
    "checkpoint": OptionSpec(
        name="checkpoint",
        kind=ValueKind.PATH,
        help="Checkpoint of the model: a file, a folder, or hf://ORG/NAME@REVISION.",
    ),
    **{key.name: key for key in SHARED_KEYS},
}
DEFAULT_KEYS = {key.name: key for key in SHARED_KEYS}
ENGINE_KEYS = ENGINE_OPTIONS
PARTIAL_KEYS = frozenset(key.name for key in SHARED_KEYS if key.partial)
"""What may be set for all models where some have no use for it. No limit is among them: one that
does not hold is a fault."""
_limit = partial(OptionSpec, kind=ValueKind.NUMBER)
LIMIT_KEYS = {
    key.name: key
    for key in (
        _limit(name="atol", least=0, help="Absolute tolerance."),
        _limit(name="rtol", least=0, help="Tolerance relative to the output's peak."),
        _limit(name="min-sqnr", help="Minimum signal-to-noise ratio, in dB."),
        _limit(name="floor-factor", least=1,
            help="Maximum multiple of the noise floor, for fp32."),
        _limit(name="min-cosine", least=-1, most=1, help="Minimum cosine similarity."),
        _limit(name="min-agreement", least=0, most=1, help="Minimum share of equal predictions."),
        _limit(name="max-kl", least=0, help="Maximum mean KL divergence of tokens, in nats."),
        _limit(name="max-ppl-increase", least=0,
            help="Maximum increase of perplexity, as a share of eager's."),
    )
}  # fmt: skip
GATE_KEYS = {
    key.name: key
    for key in (
        OptionSpec(
            name="max-drop", kind=ValueKind.DROP, check=check_drop,
            help="Maximum drop of the metric on `data`: 0.5% or 0.005.",
        ),
        OptionSpec(
            name="max-size", kind=ValueKind.SIZE,
            help="Maximum size of all files of an artifact that ship: 50 MB, 1 GiB.",
        ),
        OptionSpec(
            name="max-latency-ratio", kind=ValueKind.NUMBER, above=0,
            help="Maximum latency relative to the FP32 parent: 1.0 is as fast.",
        ),
    )
}  # fmt: skip
GATES, TOLERANCE, META, PARTS = "gates", "tolerance", "meta", "parts"
TABLES = {
    GATES: "Limits that fail the run; sub-tables hold for artifacts of that name or pattern, as "
    "onnx-int8 or *-int8.",
    TOLERANCE: "Limits for all outputs, sub-tables for the output of that name; or a list of "
    "strings, as for --tolerance.",
    META: "Metadata to put into artifacts: classes, preprocess, tokenizer, license, and a table "
    "extra; or a list of strings, as for --meta.",
    PARTS: "The parts of a model of several parts: the submodule or method of each by its name, as "
    'decoder = "vae.decode"; requires `compose`.',
}


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of a whole `modelc run`.

    `memory` and `cache_limit` are in bytes, `timeout` is in seconds; None is no limit. Without
    `cache_dir` the cache is in the user's own folder.
    """

    # fmt: off
    out: Path = option(
        Path("out"), "out", "Folder of results, with a folder per model.", kind=ValueKind.PATH)
    jobs: int = option(
        1, "jobs", "Number of models to build in "
        "parallel.", kind=ValueKind.WHOLE, least=1, most=1024)
    memory: int | None = option(
        None, "memory", "Memory limit of all models together: 8 GB.", kind=ValueKind.SIZE)
    timeout: float | None = option(
        None, "timeout", "Time limit of a step: 10 min, 90 s.", kind=ValueKind.TIME)
    keep_going: bool = switch("keep-going", "Continue with the other models after a failure.")
    cache_dir: Path | None = option(
        None, "cache-dir", "Folder of the cache of results.", kind=ValueKind.PATH)
    cache_limit: int | None = option(
        None, "cache-limit",
        "Size limit of the cache; the least recently used results are removed first.",
        kind=ValueKind.SIZE)
    remote_cache: str | None = option(
        None, "remote-cache",
        "Cache that several hosts share: a folder or an fsspec URL, as s3://bucket/dir.",
        kind=ValueKind.FOLDER)
    report: tuple[str, ...] = option(
        (), "report", "Reports to write for each model: html, md, junit, sarif, json.",
        many=True, commas=True, check=check_report)
    # fmt: on


RUN_KEYS = {key.name: key for key in specs_of(RunSettings)}
ENSEMBLES = "ensembles"
TOP_LEVEL = (*RUN_KEYS, "defaults", "models", TOLERANCE, ENSEMBLES)
RESERVED_NAMES = {
    *MODEL_KEYS,
    *RUN_KEYS,
    *TABLES,
    "defaults",
    "models",
    ENSEMBLES,
}  # not valid as model names, as --set would be ambiguous
