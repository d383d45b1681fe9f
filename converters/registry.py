"""The table of formats. A new one is its name in the import line and in the tuple."""

from __future__ import annotations

from pathlib import Path

from ..core.contract import Deferred, Target
from ..core.errors import UsageError
from ..core.names import unknown
from . import (
    aoti_package,
    exported_program,
    onnx_graph,
    openvino_ir,
    tensorrt_engine,
    tensorrt_onnx,
    torchscript_module,
)

TARGETS: tuple[Target, ...] = (
    torchscript_module,
    exported_program,
    aoti_package,
    onnx_graph,
    openvino_ir,
    tensorrt_onnx,
    tensorrt_engine,
)


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
    """The target whose model file `path` is, by suffix and content; the longest suffix tells.

    Raises:
        UsageError: there is no such file, or no target claims it.
    """
    if not path.exists():
        refused = path.parent / "rejected" / path.name
        hint = f"it was refused: {refused}" if refused.exists() else "give a converted model"
        raise UsageError(f"no such file: {path}", hint=hint)
    claiming = [target for target in targets if target.claims(path)]
    if claiming:
        return max(claiming, key=lambda target: len(target.SUFFIX))
    suffixes = ", ".join(f"{target.NAME} (*{target.SUFFIX})" for target in targets)
    raise UsageError(f"{path} is no artifact that modelc knows", hint=f"known: {suffixes}")


def deferred(target: Target) -> Deferred | None:
    """The target, if a host that cannot make it can prepare it for one that can."""
    return target if isinstance(target, Deferred) else None


def prepares(target: Target, targets: tuple[Target, ...] = TARGETS) -> bool:
    """Whether the target is only a stage on the way to a deferred one: nobody runs it."""
    return any(
        origin.partition(":")[0] == target.NAME
        for one in targets
        if deferred(one) is not None
        for origin in one.MADE_FROM.values()
    )
