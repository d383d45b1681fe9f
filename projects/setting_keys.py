"""The table of keys in modelc.toml, and the checks of their values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from ..core.contract import CAPTURE_TIMEOUT
from ..core.errors import UsageError
from ..core.kinds import Capture, Precision

_SPEC_FORM = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def check_spec(text: str) -> None:
    """`package.module:name`.

    Raises:
        UsageError: it is not of that form.
    """
    if not _SPEC_FORM.fullmatch(text):
        raise UsageError(
            f"{text!r} is not of the form PKG.MOD:NAME", hint="for example nets.resnet:build"
        )


def check_target(text: str) -> None:
    """`onnx`, `openvino:fp16`.

    Raises:
        UsageError: there is no such format or precision.
    """
    from ..converters.registry import target_named
    from ..pipeline.order import Wanted

    target_named(Wanted.parse(text).target)


def check_custom_op(text: str) -> None:
    """`ns::op=package.module:fn`.

    Raises:
        UsageError: it is not of that form.
    """
    from ..pipeline.make_order import parse_custom_ops

    parse_custom_ops([text])


def check_model_arg(text: str) -> None:
    """`key=value`.

    Raises:
        UsageError: it is not of that form.
    """
    from ..pipeline.make_order import parse_model_args

    parse_model_args([text])


def check_input_spec(text: str) -> None:
    """The `--input` language.

    Raises:
        UsageError: it is not of it.
    """
    from ..core.grammar import parse_input

    parse_input(text)


def check_branch(text: str) -> None:
    """`FILE:LINE`.

    Raises:
        UsageError: it is not of that form.
    """
    from ..pipeline.make_order import make_judging

    make_judging(accept=[text])


def check_drop(text: str) -> None:
    """`0.5%`, `0.005`.

    Raises:
        UsageError: it is no such part, or hardly meant.
    """
    from ..pipeline.limit_text import parse_drop

    parse_drop(text)


def check_preprocess(text: str) -> None:
    """As `--preprocess`.

    Raises:
        UsageError: an unknown preset or key, or a value that does not fit.
    """
    from ..calibration.preprocess import Preprocess

    Preprocess.parse(text)


def check_quantizer(text: str) -> None:
    """A quantizer's name, or auto.

    Raises:
        UsageError: there is none of that name.
    """
    from ..converters.quantizers.quantizer_registry import find_quantizer

    if text != "auto":
        find_quantizer(text)


def check_report(text: str) -> None:
    """A report's name.

    Raises:
        UsageError: there is none of that name.
    """
    from ..reports.report_formats import parse_formats

    parse_formats([text])


class KeyKind(StrEnum):
    """What a value is in the file."""

    TEXT = "text"
    WHOLE = "a whole number"
    NUMBER = "a number"
    TRUTH = "true or false"
    PATH = "a path"
    SOURCE = "a path or PKG.MOD:LOADER"
    FOLDER = "a folder or a URL"
    SIZE = "a size"
    TIME = "a time"
    DROP = "a part"


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key.

    `many` takes a list (or one), `least` to `most` are its limits, `above` one that it must exceed.
    `words` stand for no path. As one text, values of `commas` are parted by them. `check` refuses
    a text that its option would refuse. `usual` is what holds where nobody says anything. `told` is
    what it is for, where no option says so.
    """

    name: str
    kind: KeyKind = KeyKind.TEXT
    many: bool = False
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    above: float | None = None
    words: tuple[str, ...] = ()
    commas: bool = False
    check: Callable[[str], object] | None = None
    usual: str | int | float | bool | tuple[str, ...] | None = None
    told: str = ""


T, W, N, B, P, S = (
    KeyKind.TEXT,
    KeyKind.WHOLE,
    KeyKind.NUMBER,
    KeyKind.TRUTH,
    KeyKind.PATH,
    KeyKind.SOURCE,
)
PRECISIONS = tuple(one.value for one in Precision)
CAPTURES = ("auto", *(one.value for one in Capture))
_DAYS = 7 * 86_400.0  # as --search

OWN_KEYS = (  # of one model alone, never in [defaults]
    Key(name="checkpoint", kind=P, told="Weights of the model: a file or a folder."),
)
_ARTIFACT_KEYS = (
    Key(name="to", many=True, commas=True, check=check_target),
    Key(
        name="precision", many=True, commas=True, choices=PRECISIONS, usual=("fp32",),
        told="Precisions to make of every format in `to` that has them; those that say their own, "
        "as openvino:fp16, are left as they are.",
    ),
    Key(name="capture", choices=CAPTURES, usual="auto"),
    Key(name="opset", kind=W, least=1, most=99),
    Key(name="external-data", kind=B, usual=False),
    Key(name="narrow", kind=B, usual=False),
    Key(name="guard", kind=B, usual=False),
    Key(name="capture-timeout", kind=N, above=0, usual=CAPTURE_TIMEOUT),
    Key(name="patch", many=True, check=check_spec),
    Key(
        name="depends", many=True,
        told="What the model needs beside its modules and the files that its code opens in the "
        "project: files, globs, folders, env:NAME. A change makes its artifacts again.",
    ),
    Key(name="custom-op", many=True, check=check_custom_op),
    Key(name="for", many=True),
)  # fmt: skip
_SOURCE_KEYS = (
    Key(name="model", check=check_spec),
    Key(name="model-arg", many=True, check=check_model_arg),
    Key(name="weights-key"),
    Key(name="method"),
    Key(name="input", many=True, check=check_input_spec),
    Key(name="samples", kind=S),
    Key(name="static", many=True, commas=True),
    Key(name="drop-output", many=True, commas=True),
    Key(name="no-strict", kind=B, usual=False),
    Key(name="allow-pickle", kind=B, usual=False),
    Key(name="trust", kind=B, usual=False),
)
_JUDGING_KEYS = (
    Key(name="feeds", kind=W, least=5, most=100_000, usual=5),
    Key(name="seed", kind=W, least=0, most=2**63 - 1, usual=0),
    Key(name="atol", kind=N, least=0),
    Key(name="rtol", kind=N, least=0),
    Key(name="min-sqnr", kind=N),
    Key(name="search", kind=N, above=0, most=_DAYS),
    Key(name="sensitivity", kind=W, least=0, most=1000),
    Key(name="accept-branch", many=True, check=check_branch),
    Key(name="device", choices=("cpu", "cuda")),
)
_DATA_KEYS = (
    Key(name="data", kind=S),
    Key(name="metric"),
    Key(name="max-drop", kind=KeyKind.DROP, check=check_drop),
    Key(name="label"),
    Key(name="metric-output"),
)
_LOWERING_KEYS = (
    Key(name="calib", kind=S, words=("random",)),
    Key(name="calib-samples", kind=W, least=1, most=2**31),
    Key(name="calib-select", choices=("random", "first")),
    Key(name="calib-seed", kind=W, least=0, most=2**63 - 1),
    Key(name="calib-method"),
    Key(name="preprocess", check=check_preprocess),
    Key(name="quantizer", check=check_quantizer),
    Key(name="keep-fp", many=True),
    Key(name="half-io", kind=B, usual=False),
    Key(name="max-trials", kind=W, least=1, most=100_000),
    Key(name="no-cache", kind=B, usual=False),
)
ENGINE_KEYS = (  # settings of one format, checked by it
    Key(name="workspace"),
    Key(name="optimization-level", kind=W, least=0, most=5),
    Key(name="profile", many=True),
    Key(name="timing-cache", kind=P, words=("off",)),
    Key(name="version-compatible", kind=B),
    Key(name="hardware-compatible", choices=("none", "ampere-plus", "same-compute-capability")),
    Key(name="refittable", kind=B),
    Key(name="strip-weights", kind=B),
    Key(name="weight-streaming", kind=B),
    Key(name="no-tf32", kind=B),
    Key(name="plugins", kind=P, many=True),
    Key(name="trust-engine", kind=B),
    Key(name="builder", choices=("auto", "python", "trtexec")),
)
REPLACED_KEYS = {  # options of earlier versions, and what to write instead
    "budget": "max-trials, a count of artifacts in place of minutes; the default is 32",
}
SHARED_KEYS = (
    *_ARTIFACT_KEYS,
    *_SOURCE_KEYS,
    *_JUDGING_KEYS,
    *_DATA_KEYS,
    *_LOWERING_KEYS,
    *ENGINE_KEYS,
)
MODEL_KEYS = {key.name: key for key in (*OWN_KEYS, *SHARED_KEYS)}
DEFAULT_KEYS = {key.name: key for key in SHARED_KEYS}

LIMIT_KEYS = {
    key.name: key
    for key in (
        Key(name="atol", kind=N, least=0, told="Absolute tolerance."),
        Key(name="rtol", kind=N, least=0, told="Tolerance relative to the output's peak."),
        Key(name="min-sqnr", kind=N, told="Least signal-to-noise ratio, in dB."),
        Key(name="floor-factor", kind=N, least=1,
            told="Times eager's own distance from float64, for fp32."),
        Key(name="min-cosine", kind=N, least=-1, most=1, told="Least cosine similarity."),
        Key(name="min-agreement", kind=N, least=0, most=1, told="Least share of equal answers."),
    )
}  # fmt: skip
GATE_KEYS = {
    key.name: key
    for key in (
        Key(
            name="max-drop", kind=KeyKind.DROP, check=check_drop,
            told="The most that the metric on `data` may lose: 0.5% or 0.005.",
        ),
        Key(
            name="max-size", kind=KeyKind.SIZE,
            told="The most bytes of all that ships of an artifact: 50 MB, 1 GiB.",
        ),
        Key(
            name="max-latency-ratio", kind=N, above=0,
            told="The most that its latency may be of its FP32 parent's: 1.0 is as fast.",
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

RUN_KEYS = {
    key.name: key
    for key in (
        Key(name="out", kind=P, usual="out", told="Folder of results; a model's are in out/NAME."),
        Key(name="jobs", kind=W, least=1, most=1024, usual=1,
            told="How many models run side by side."),
        Key(name="memory", kind=KeyKind.SIZE, told="The most memory of all steps together: 8 GB."),
        Key(name="timeout", kind=KeyKind.TIME, told="The most time of one step: 10 min, 90 s."),
        Key(name="keep-going", kind=B, usual=False,
            told="Begin further models when one has failed."),
        Key(name="cache-dir", kind=P, told="Folder of results that later runs may use again."),
        Key(name="cache-limit", kind=KeyKind.SIZE,
            told="The most that the cache may hold; the least recently used goes first."),
        Key(name="remote-cache", kind=KeyKind.FOLDER,
            told="A second cache that hosts share: a folder or an fsspec URL, as s3://bucket/dir."),
        Key(name="report", many=True, commas=True, check=check_report,
            told="Reports to write for each model: html, md, junit, sarif, json."),
    )
}  # fmt: skip
FORMER_KEYS = {"inputs": "samples"}  # keys by names that they had before; read, and not offered
TOP_LEVEL = (*RUN_KEYS, "defaults", "models", TOLERANCE)
RESERVED_NAMES = {
    *MODEL_KEYS,
    *FORMER_KEYS,
    *RUN_KEYS,
    *TABLES,
    "defaults",
    "models",
}  # no names of models: --set tells by them
