"""The options of capture: what is done to a copy of the model, and for which runtimes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from ..core.errors import UsageError

_CAPTURE = "Capture"

Patch = Annotated[
    list[str] | None,
    typer.Option(
        "--patch",
        metavar="PKG.MOD:FN",
        help="Function that changes the copy of the module to capture; eager stays as it is, and "
        "judges. Repeatable.",
        rich_help_panel=_CAPTURE,
    ),
]
CustomOp = Annotated[
    list[str] | None,
    typer.Option(
        "--custom-op",
        metavar="NS::OP=PKG.MOD:FN",
        help="Function that writes this operator in ONNX. Repeatable.",
        rich_help_panel=_CAPTURE,
    ),
]
For = Annotated[
    list[str] | None,
    typer.Option(
        "--for",
        metavar="RUNTIME==VERSION",
        help="What the artifact must load in, as onnxruntime==1.20. Repeatable.",
        rich_help_panel=_CAPTURE,
    ),
]


def custom_ops_of(texts: Sequence[str] | None) -> dict[str, str]:
    """`ns::op=package.module:fn`, as a mapping.

    Raises:
        UsageError: a text is not of this form, or an operator is given twice.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        name, sign, function = text.partition("=")
        if not sign or not name.partition("::")[2] or not function:
            raise UsageError(
                f"--custom-op {text!r} is not NS::OP=PKG.MOD:FN",
                hint="for example --custom-op mylib::swish=mylib.onnx_ops:swish",
            )
        if name in found:
            raise UsageError(f"--custom-op {name} is given twice", hint="give it once")
        found[name] = function
    return found
