"""Reads a model into OpenVINO; of its refusals, the operator that all the others follow from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import LOGGED
from .capture.causes import RefusedError
from .guarded import guarded
from .openvino_exact import keep_order_of_equals

if TYPE_CHECKING:
    import openvino

_OPERATOR = re.compile(r"^-- (?P<name>\S+)-\d+ with a message:$", flags=re.MULTILINE)
_SUMMARY = "Summary:"
# What OpenVINO says of operators behind one that it did not take, whose output it knows nothing of
_FOLLOWS = ("Unsupported input type dynamic", "Element not supported", "rank has to be known")
_FIXED = "must be static"


def read(path: Path) -> openvino.Model:
    """The model of an ONNX or an IR, with the order that ONNX asks for among equals.

    Raises:
        RefusedError: OpenVINO cannot read it; the whole of what it says is in the log.
    """
    model = guarded("OpenVINO", lambda: _read(path))
    keep_order_of_equals(model)
    return model


def _read(path: Path) -> openvino.Model:
    import openvino

    try:
        return openvino.Core().read_model(str(path))
    except RuntimeError as error:
        reason = root_of(str(error))
        if not reason:
            raise
        fixed = f"if one size will do, --static DIM fixes it; {LOGGED}"
        raise RefusedError(
            f"OpenVINO refused the model: {reason}",
            hint=fixed if _FIXED in reason else LOGGED,
        ) from error


def root_of(text: str) -> str:
    """The operator that OpenVINO did not take, and why; empty where it names none.

    It lists what failed in any order, with all that lies behind it.
    """
    _, *parts = _OPERATOR.split(text.partition(_SUMMARY)[0])
    told = [
        (name, [line.strip() for line in body.splitlines() if line.strip()])
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    ]
    roots = [
        f"{name}: {lines[-1]}"
        for name, lines in told
        if lines and not any(sign in lines[-1] for sign in _FOLLOWS)
    ]
    return roots[0] if roots else ""
