"""Checks and parsers of option values that are text; they import what they need when called.

All raise a UsageError for a text that is not of their form, or for an unknown name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..core.errors import Hint, Option, UsageError, unknown_name_error
from ..core.kinds import Capture, Precision
from ..core.model_meta import ModelMeta

AUTO = "auto"
CAPTURES = (AUTO, *(one.value for one in Capture))
_SPEC_FORM = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_BRANCH_PLACE = re.compile(r".+:[1-9]\d*")


def parse_capture(text: str) -> Capture | None:
    """The capture of this name; None for `auto`."""
    if text not in CAPTURES:
        raise unknown_name_error("capture", text, CAPTURES)
    return None if text == AUTO else Capture(text)


def parse_precision(text: str) -> Precision:
    """The precision of this name."""
    known = [one.value for one in Precision]
    if text not in known:
        raise unknown_name_error("precision", text, known)
    return Precision(text)


def parse_model_args(texts: Sequence[str]) -> dict[str, str]:
    """`depth=50`, as a mapping."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise UsageError(
                f"--model-arg {text!r} is not KEY=VALUE",
                hint=Hint("for example ", Option("model-arg", "depth=50")),
                option="model-arg",
            )
        pairs[key] = value
    return pairs


def parse_parts(texts: Sequence[str]) -> dict[str, str]:
    """`unet=unet`, `vae=vae.decode`, as a mapping; no part twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, method = text.partition("=")
        incomplete = not sign or not name or not method
        if incomplete or name in found:
            problem = "is not NAME=METHOD" if incomplete else "is given twice"
            raise UsageError(
                f"--part {text!r} {problem}",
                hint=Hint("for example ", Option("part", "decoder=vae.decode")),
                option="part",
            )
        found[name] = method
    return found


def parse_custom_ops(texts: Sequence[str]) -> dict[str, str]:
    """`ns::op=package.module:fn`, as a mapping; no operator twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, function = text.partition("=")
        if not sign or not name.partition("::")[2] or not function:
            raise UsageError(
                f"--custom-op {text!r} is not NS::OP=PKG.MOD:FN",
                hint=Hint("for example ", Option("custom-op", "mylib::swish=mylib.onnx_ops:swish")),
                option="custom-op",
            )
        if name in found:
            raise UsageError(
                f"--custom-op {name} is given twice", hint="give it once", option="custom-op"
            )
        found[name] = function
    return found


def check_spec(text: str) -> None:
    """`package.module:name`."""
    if not _SPEC_FORM.fullmatch(text):
        raise UsageError(
            f"{text!r} is not of the form PKG.MOD:NAME", hint="for example nets.resnet:build"
        )


def check_target(text: str) -> None:
    """`onnx`, `openvino:fp16`."""
    from ..converters.registry import target_named
    from .order import Wanted

    target_named(Wanted.parse(text).target)


def check_input_spec(text: str) -> None:
    """The `--input` language."""
    from ..core.grammar import parse_input

    parse_input(text)


def check_branch(text: str) -> None:
    """`FILE:LINE`."""
    if not _BRANCH_PLACE.fullmatch(text):
        raise UsageError(
            f"--accept-branch {text!r} is not FILE:LINE",
            hint=Hint("as the verdict names it: ", Option("accept-branch", "gate.py:23")),
            option="accept-branch",
        )


def check_drop(text: str) -> None:
    """`0.5%`, `0.005`."""
    from .limit_text import parse_drop

    parse_drop(text)


def check_preprocess(text: str) -> None:
    """As `--preprocess`."""
    from ..core.preprocess import Preprocess

    Preprocess.parse(text)


def parse_meta(texts: Sequence[str]) -> ModelMeta:
    """`license=MIT`, or files of such keys."""
    from .model_metadata import read_meta

    return read_meta(texts)


def parse_postprocess(text: str) -> str:
    """`softmax,topk=5`, in the form that a record keeps."""
    from ..core.postprocess import Postprocess

    return str(Postprocess.parse(text))


def check_quantizer(text: str) -> None:
    """The name of a quantizer, or `auto`."""
    from ..converters.quantizers.quantizer_registry import find_quantizer

    if text != AUTO:
        find_quantizer(text)


def check_report(text: str) -> None:
    """The name of a report."""
    from ..reports.report_formats import parse_formats

    parse_formats([text])
