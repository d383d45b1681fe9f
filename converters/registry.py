"""The table of formats. A new one is its name in the import line and in the tuple.

Formats of other packages stand after them (`plugins.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from ..core.contract import Deferred, Target
from ..core.errors import ErrorCode, UsageError, unknown_name_error
from . import (
    aoti_package,
    exported_program,
    onnx_model,
    openvino_ir,
    tensorrt_engine,
    tensorrt_onnx,
    torchscript_module,
)
from .plugins import PluginTarget, find_plugins

BUILT_IN: tuple[Target, ...] = (
    torchscript_module,
    exported_program,
    aoti_package,
    onnx_model,
    openvino_ir,
    tensorrt_onnx,
    tensorrt_engine,
)
_PLUGINS, REFUSED = find_plugins(BUILT_IN)  # REFUSED says which targets of others are none, and why
TARGETS: tuple[Target, ...] = (*BUILT_IN, *cast("tuple[Target, ...]", _PLUGINS))  # only to be read


def target_named(name: str, targets: tuple[Target, ...] = TARGETS) -> Target:
    """The target called `name`.

    Raises:
        UsageError: there is none.
        MissingError: it is of another package, and cannot be loaded.
    """
    for target in targets:
        if name == target.NAME:
            return _own_object(target)
    raise unknown_name_error("target", name, [target.NAME for target in targets])


def target_for(path: Path, targets: tuple[Target, ...] = TARGETS) -> Target:
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
        return _own_object(max(claiming, key=lambda target: len(target.SUFFIX)))
    suffixes = ", ".join(f"{target.NAME} (*{target.SUFFIX})" for target in targets)
    raise UsageError(
        f"{path} is no artifact that modelc knows",
        hint=f"known: {suffixes}",
        code=ErrorCode.NOT_AN_ARTIFACT,
    )


def _own_object(target: Target) -> Target:
    """The target; of another package's, its own object."""
    return target.load() if isinstance(target, PluginTarget) else target


def package_of(target: Target, targets: tuple[Target, ...] = TARGETS) -> str:
    """The package that a target is of, with its version; empty for modelc's own."""
    found = (
        one.package for one in targets if isinstance(one, PluginTarget) and one.NAME == target.NAME
    )
    return next(found, "")


def plugin_faults(targets: tuple[Target, ...] = TARGETS) -> tuple[str, ...]:
    """Targets of other packages that are refused or cannot be loaded, each with the reason."""
    broken = (one.fault for one in targets if isinstance(one, PluginTarget))
    return (*REFUSED, *filter(None, broken))


def as_deferred(target: Target) -> Deferred | None:
    """The target, if a host that cannot make it can prepare it for one that can."""
    return target if isinstance(target, Deferred) else None


def is_stage(target: Target, targets: tuple[Target, ...] = TARGETS) -> bool:
    """Whether the target is only a stage on the way to a deferred one: nobody runs it."""
    return any(
        origin.partition(":")[0] == target.NAME
        for one in targets
        if as_deferred(one) is not None
        for origin in one.MADE_FROM.values()
    )
