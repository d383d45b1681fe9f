"""The table of formats. A new one is its name in the import line and in the tuple."""

from __future__ import annotations

from pathlib import Path

from ..core.contract import Target
from ..core.errors import UsageError
from ..core.names import unknown
from . import exported_program, onnx_graph, openvino_ir, torchscript_module

TARGETS: tuple[Target, ...] = (torchscript_module, exported_program, onnx_graph, openvino_ir)


def target_named(name: str, targets: tuple[Target, ...] = TARGETS) -> Target:
    """The target called `name`.

    Raises:
        UsageError: there is none.
    """
    for target in targets:
        if name == target.NAME:
            return target
    raise unknown("target", name, [target.NAME for target in targets])


def target_of(path: Path, targets: tuple[Target, ...] = TARGETS) -> Target:
    """The target whose model file `path` is, by suffix and content.

    Raises:
        UsageError: there is no such file, or no target claims it.
    """
    if not path.exists():
        raise UsageError(f"no such file: {path}", hint="give the path of a converted model")
    for target in targets:
        if target.claims(path):
            return target
    suffixes = ", ".join(f"{target.NAME} (*{target.SUFFIX})" for target in targets)
    raise UsageError(f"{path} is no artifact that modelc knows", hint=f"known: {suffixes}")
