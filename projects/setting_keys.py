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
        name="checkpoint", kind=ValueKind.PATH, help="Weights of the model: a file or a folder."
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
        _limit(name="min-sqnr", help="Least signal-to-noise ratio, in dB."),
        _limit(name="floor-factor", least=1,
            help="Times eager's own distance from float64, for fp32."),
        _limit(name="min-cosine", least=-1, most=1, help="Least cosine similarity."),
        _limit(name="min-agreement", least=0, most=1, help="Least share of equal answers."),
    )
}  # fmt: skip
GATE_KEYS = {
    key.name: key
    for key in (
        OptionSpec(
            name="max-drop", kind=ValueKind.DROP, check=check_drop,
            help="The most that the metric on `data` may lose: 0.5% or 0.005.",
        ),
        OptionSpec(
            name="max-size", kind=ValueKind.SIZE,
            help="The most bytes of all that ships of an artifact: 50 MB, 1 GiB.",
        ),
        OptionSpec(
            name="max-latency-ratio", kind=ValueKind.NUMBER, above=0,
            help="The most that its latency may be of its FP32 parent's: 1.0 is as fast.",
        ),
    )
}  # fmt: skip
GATES, TOLERANCE = "gates", "tolerance"
TABLES = {
    GATES: "What artifacts must keep to, or the run fails; sub-tables are for the artifacts of "
    "their name or pattern, as onnx-int8 or *-int8.",
    TOLERANCE: "Limits for all outputs, sub-tables for the output of their name; or a list of "
    "texts as --tolerance takes them.",
}


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of a whole `modelc run`.

    `memory` and `cache_limit` are in bytes, `timeout` is in seconds; None is no limit. Without
    `cache_dir` the cache is in the user's own folder.
    """

    # fmt: off
    out: Path = option(
        Path("out"), "out", "Folder of results; a model's are in out/NAME.", kind=ValueKind.PATH)
    jobs: int = option(
        1, "jobs", "How many models run side by side.", kind=ValueKind.WHOLE, least=1, most=1024)
    memory: int | None = option(
        None, "memory", "The most memory of all steps together: 8 GB.", kind=ValueKind.SIZE)
    timeout: float | None = option(
        None, "timeout", "The most time of one step: 10 min, 90 s.", kind=ValueKind.TIME)
    keep_going: bool = switch("keep-going", "Begin further models when one has failed.")
    cache_dir: Path | None = option(
        None, "cache-dir", "Folder of results that later runs may use again.", kind=ValueKind.PATH)
    cache_limit: int | None = option(
        None, "cache-limit",
        "The most that the cache may hold; the least recently used goes first.",
        kind=ValueKind.SIZE)
    remote_cache: str | None = option(
        None, "remote-cache",
        "A second cache that hosts share: a folder or an fsspec URL, as s3://bucket/dir.",
        kind=ValueKind.FOLDER)
    report: tuple[str, ...] = option(
        (), "report", "Reports to write for each model: html, md, junit, sarif, json.",
        many=True, commas=True, check=check_report)
    # fmt: on


RUN_KEYS = {key.name: key for key in specs_of(RunSettings)}
TOP_LEVEL = (*RUN_KEYS, "defaults", "models", TOLERANCE)
RESERVED_NAMES = {
    *MODEL_KEYS,
    *RUN_KEYS,
    *TABLES,
    "defaults",
    "models",
}  # not valid as model names, as --set would be ambiguous
