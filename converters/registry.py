"""The table of formats. To add one, add its module to the two tuples.

Targets of other packages follow, found by entry point. A package is loaded when anything beyond the
name of its target is read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..core.contract import EAGER, Deferred, Readiness, Target
from ..core.errors import (
    ErrorCode,
    MissingError,
    ModelcError,
    UsageError,
    first_line,
    unknown_name_error,
)
from ..core.kinds import Precision

if TYPE_CHECKING:
    from . import (
        aoti_package,
        exported_program,
        onnx_model,
        onnx_tensorrt,
        openvino_ir,
        tensorrt_engine,
        tensorrt_onnx,
        tensorrt_rtx,
        torch_tensorrt_program,
        torchscript_module,
    )

    _CHECKED: tuple[Target, ...] = (
        torchscript_module, exported_program, aoti_package, onnx_model, openvino_ir, tensorrt_onnx,
        tensorrt_engine, tensorrt_rtx, torch_tensorrt_program, onnx_tensorrt,
    )  # fmt: skip


class BuiltInTarget:
    """A target of modelc, whose module is imported when anything beyond its name is read."""

    def __init__(self, name: str, module: str) -> None:
        self.NAME = name
        self._module = module

    def load(self) -> Target:
        """Import the module."""
        return cast("Target", import_module(f".{self._module}", __package__))

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the module."""
        return getattr(self.load(), name)


GROUP = "modelc.targets"
BUILT_IN: tuple[Target, ...] = (
    BuiltInTarget("torchscript", "torchscript_module"),
    BuiltInTarget("pt2", "exported_program"),
    BuiltInTarget("aoti", "aoti_package"),
    BuiltInTarget("onnx", "onnx_model"),
    BuiltInTarget("openvino", "openvino_ir"),
    BuiltInTarget("tensorrt-onnx", "tensorrt_onnx"),
    BuiltInTarget("tensorrt", "tensorrt_engine"),
    BuiltInTarget("tensorrt-rtx", "tensorrt_rtx"),
    BuiltInTarget("torch-tensorrt", "torch_tensorrt_program"),
    BuiltInTarget("onnx-tensorrt", "onnx_tensorrt"),
)
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_VALUES = ("SUMMARY", "SUFFIX", "MADE_FROM", "CAPTURES", "DEVICES")
_FUNCTIONS = ("readiness", "claims", "convert", "open_runner", "inspect", "coverage")
_DEVICES = frozenset({"cpu", "cuda"})


class PluginTarget:
    """A target of another package, loaded when anything beyond its name is read.

    The registry's table holds this proxy; `load` returns the package's own object. A target that
    cannot be loaded is not ready.
    """

    def __init__(self, entry: metadata.EntryPoint) -> None:
        self.NAME = entry.name
        self._entry = entry

    @property
    def package(self) -> str:
        """Return the package with its version."""
        found = self._entry.dist
        return "an unknown package" if found is None else f"{found.name} {found.version}"

    @cached_property
    def _target(self) -> Target | MissingError:
        try:
            target = self._entry.load()
            faults = tuple(_target_faults(target, self.NAME))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - code of others: reported, not raised
            faults = (f"{type(error).__name__}: {first_line(error)}",)
            target = None
        if not faults:
            return target  # type: ignore[no-any-return]  # looked at above
        name = "PACKAGE" if self._entry.dist is None else self._entry.dist.name
        return MissingError(
            f"the target {self.NAME!r} of {self.package} cannot be used: {'; '.join(faults)}",
            hint=f"pip install --upgrade {name}, or pip uninstall {name}",
            code=ErrorCode.NOT_INSTALLED,
        )

    def load(self) -> Target:
        """Load the package's own object.

        Raises:
            MissingError: it cannot be loaded, or is not a target.
        """
        if isinstance(self._target, ModelcError):
            raise self._target
        return self._target

    @property
    def fault(self) -> str:
        """Return why it cannot be used; empty if it can."""
        return self._target.message if isinstance(self._target, ModelcError) else ""

    def __getattr__(self, name: str) -> Any:
        """Return the package's attribute; of a target that cannot be loaded, an empty one."""
        if name not in (*_VALUES, *_FUNCTIONS):
            raise AttributeError(name)
        unusable = {
            "SUMMARY": f"a target of {self.package}",
            "SUFFIX": f".{self.NAME}.unusable",  # that no file has
            "MADE_FROM": {},
            "CAPTURES": (),
            "DEVICES": (),
        }
        return unusable[name] if self.fault and name in unusable else getattr(self.load(), name)

    def readiness(self) -> Readiness:
        """Return the package's readiness; not ready if it cannot be loaded."""
        if isinstance(self._target, ModelcError):
            return Readiness(ready=False, reason=self._target.message, mend=self._target.hint)
        return self.load().readiness()

    def claims(self, path: Path) -> bool:
        """Return whether it is a model of this format; false if the target cannot be loaded."""
        return not self.fault and self.load().claims(path)


def find_plugins(
    built_in: Collection[Target], entries: Iterable[metadata.EntryPoint] | None = None
) -> tuple[tuple[PluginTarget, ...], tuple[str, ...]]:
    """Return the targets of installed packages by name, and why some are rejected.

    `entries` are entry points of `modelc.targets`; None looks them up. None is loaded.
    """
    found = sorted(
        metadata.entry_points(group=GROUP) if entries is None else entries,
        key=lambda entry: (entry.name, entry.value),
    )
    used = {EAGER, *(target.NAME for target in built_in)}
    twice = {name for name, count in Counter(entry.name for entry in found).items() if count > 1}
    plugins: list[PluginTarget] = []
    rejected: list[str] = []
    for plugin in map(PluginTarget, found):
        reason = ""
        if plugin.NAME in used:
            reason = "modelc has a target of that name"
        elif plugin.NAME in twice:
            reason = "several packages have a target of that name"
        elif not _NAME.fullmatch(plugin.NAME):
            reason = "a name consists of lower-case letters, digits and dashes"
        if reason:
            rejected.append(f"the target {plugin.NAME!r} of {plugin.package} is rejected: {reason}")
        else:
            plugins.append(plugin)
    return tuple(plugins), tuple(rejected)


def _target_faults(target: object, name: str) -> Iterator[str]:
    """Return what keeps an object from being a target of that name."""
    lacks = [one for one in ("NAME", *_VALUES) if not hasattr(target, one)]
    lacks += [f"{one}()" for one in _FUNCTIONS if not callable(getattr(target, one, None))]
    if lacks:
        yield f"it lacks {', '.join(lacks)}"
        return
    values = {one: getattr(target, one) for one in ("NAME", *_VALUES)}
    if values["NAME"] != name:
        yield f"its NAME is {values['NAME']!r}"
    if not isinstance(values["SUFFIX"], str) or not values["SUFFIX"].startswith("."):
        yield f"its SUFFIX is {values['SUFFIX']!r}, which does not begin with a dot"
    made_from = values["MADE_FROM"]
    if not isinstance(made_from, Mapping) or not made_from:
        yield "its MADE_FROM has no precision"
    elif not all(isinstance(precision, Precision) for precision in made_from):
        yield "a key of its MADE_FROM is not a Precision"
    if not values["DEVICES"] or not _DEVICES.issuperset(values["DEVICES"]):
        yield f"its DEVICES are {values['DEVICES']!r}, not cpu or cuda"


_PLUGINS, REJECTED = find_plugins(BUILT_IN)  # why some targets of other packages are rejected
TARGETS: tuple[Target, ...] = (*BUILT_IN, *_PLUGINS)  # read-only


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


_HEAD_BYTES = 16  # of a file, in a message


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
    named = [target for target in targets if path.is_file() and path.name.endswith(target.SUFFIX)]
    if named:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
        name = max(named, key=lambda target: len(target.SUFFIX)).NAME
        raise UsageError(
            f"{path} has the suffix of {name}, but begins with {head!r}",
            hint="copy or download the file again, and compare its size with the original",
            code=ErrorCode.NOT_AN_ARTIFACT,
        )
    suffixes = ", ".join(f"{target.NAME} (*{target.SUFFIX})" for target in targets)
    raise UsageError(
        f"{path} is not a model of a known format",
        hint=f"known: {suffixes}",
        code=ErrorCode.NOT_AN_ARTIFACT,
    )


def _own_object(target: Target) -> Target:
    """Return the target; the package's own object for a plugin."""
    return target.load() if isinstance(target, PluginTarget | BuiltInTarget) else target


def package_of(target: Target, targets: tuple[Target, ...] = TARGETS) -> str:
    """Return the package of a target with its version; empty for modelc's own."""
    found = (
        one.package for one in targets if isinstance(one, PluginTarget) and one.NAME == target.NAME
    )
    return next(found, "")


def plugin_faults(targets: tuple[Target, ...] = TARGETS) -> tuple[str, ...]:
    """Return the plugin targets that are rejected or cannot be loaded, each with the reason."""
    broken = (one.fault for one in targets if isinstance(one, PluginTarget))
    return (*REJECTED, *filter(None, broken))


def is_stage(target: Target, targets: tuple[Target, ...] = TARGETS) -> bool:
    """Return whether the target is only a stage on the way to a deferred one: nobody runs it.

    What is captured from the eager model is used for itself as well.
    """
    return EAGER not in target.MADE_FROM.values() and any(
        origin.partition(":")[0] == target.NAME
        for one in targets
        if isinstance(one, Deferred)
        for origin in one.MADE_FROM.values()
    )
