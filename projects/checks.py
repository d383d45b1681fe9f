"""What refuses a text of modelc.toml at once, as its option would refuse it later."""

from __future__ import annotations

import re

from ..core.errors import UsageError

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
    from ..reports.formats import parse_formats

    parse_formats([text])
