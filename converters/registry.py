"""The table of formats. To add one, add its name to the import line and to the tuple.

Targets of other packages follow (`plugins.py`).
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
_PLUGINS, REFUSED = find_plugins(
    BUILT_IN
)  # REFUSED says which targets of other packages are rejected, and why
TARGETS: tuple[Target, ...] = (*BUILT_IN, *cast("tuple[Target, ...]", _PLUGINS))  # read-only


def target_named(name: str, targets: tuple[Target, ...] = TARGETS) -> Target:
    """Return the target called `name`.

    Raises:
        UsageError: there is none.
        MissingError: it belongs to another package, and cannot be loaded.
    """
    for target in targets:
        if name == target.NAME:
            return _own_object(target)
    raise unknown_name_error("target", name, [target.NAME for target in targets])


def target_for(path: Path, targets: tuple[Target, ...] = TARGETS) -> Target:
    """Return the target of a model file, by suffix (the longest first) and content.

    Raises:
        UsageError: the file does not exist, or no target claims it.
    """
    if not path.exists():
        rejected = path.parent / "rejected" / path.name
        hint = f"it was rejected: {rejected}" if rejected.exists() else "give a converted model"
        raise UsageError(f"no such file: {path}", hint=hint, code=ErrorCode.NOT_FOUND)
    claiming = [target for target in targets if target.claims(path)]
    if claiming:
        return _own_object(max(claiming, key=lambda target: len(target.SUFFIX)))
    suffixes = ", ".join(f"{target.NAME} (*{target.SUFFIX})" for target in targets)
    raise UsageError(
        f"{path} is not a model of a known format",
        hint=f"known: {suffixes}",
        code=ErrorCode.NOT_AN_ARTIFACT,
    )


def _own_object(target: Target) -> Target:
    """Return the target; the package's own object for a plugin."""
    return target.load() if isinstance(target, PluginTarget) else target


def package_of(target: Target, targets: tuple[Target, ...] = TARGETS) -> str:
    """Return the package of a target with its version; empty for modelc's own."""
    found = (
        one.package for one in targets if isinstance(one, PluginTarget) and one.NAME == target.NAME
    )
    return next(found, "")


def plugin_faults(targets: tuple[Target, ...] = TARGETS) -> tuple[str, ...]:
    """Return the plugin targets that are rejected or cannot be loaded, each with the reason."""
    broken = (one.fault for one in targets if isinstance(one, PluginTarget))
    return (*REFUSED, *filter(None, broken))


def as_deferred(target: Target) -> Deferred | None:
    """Return the target if a host that cannot build it can prepare it for another host."""
    return target if isinstance(target, Deferred) else None


def is_stage(target: Target, targets: tuple[Target, ...] = TARGETS) -> bool:
    """Return whether the target is only a stage on the way to a deferred one: nobody runs it."""
    return any(
        origin.partition(":")[0] == target.NAME
        for one in targets
        if as_deferred(one) is not None
        for origin in one.MADE_FROM.values()
    )
