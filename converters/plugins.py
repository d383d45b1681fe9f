"""Targets of other packages, by entry point; only the name is known before a target is used."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from importlib import metadata
from pathlib import Path

from ..core.contract import (
    EAGER,
    Converted,
    Feed,
    Inspection,
    Job,
    Readiness,
    Runner,
    Target,
)
from ..core.errors import ErrorCode, MissingError, ModelcError, first_line
from ..core.kinds import Capture, Precision
from ..core.records import Coverage
from ..core.signature import Signature

GROUP = "modelc.targets"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_VALUES = ("SUMMARY", "SUFFIX", "MADE_FROM", "CAPTURES", "DEVICES")
_DEVICES = frozenset({"cpu", "cuda"})
_FUNCTIONS = ("readiness", "claims", "convert", "open_runner", "inspect", "coverage")


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
        """The package with its version."""
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

    @property
    def SUMMARY(self) -> str:  # noqa: N802 - the contract's name
        """The summary of the format."""
        return f"a target of {self.package}" if self.fault else self.load().SUMMARY

    @property
    def SUFFIX(self) -> str:  # noqa: N802 - the contract's name
        """The suffix of model files; one that no file has if the target cannot be loaded."""
        return f".{self.NAME}.unusable" if self.fault else self.load().SUFFIX

    @property
    def MADE_FROM(self) -> Mapping[Precision, str]:  # noqa: N802 - the contract's name
        """Its precisions, with what each is made from."""
        return {} if self.fault else self.load().MADE_FROM

    @property
    def CAPTURES(self) -> tuple[Capture, ...]:  # noqa: N802 - the contract's name
        """The captures that `auto` tries."""
        return () if self.fault else self.load().CAPTURES

    @property
    def DEVICES(self) -> tuple[str, ...]:  # noqa: N802 - the contract's name
        """The devices that it runs on."""
        return () if self.fault else self.load().DEVICES

    def readiness(self) -> Readiness:
        """Return the package's readiness; not ready if it cannot be loaded."""
        if isinstance(self._target, ModelcError):
            return Readiness(ready=False, reason=self._target.message, mend=self._target.hint)
        return self.load().readiness()

    def claims(self, path: Path) -> bool:
        """Return whether it is a model of this format; false if the target cannot be loaded."""
        return not self.fault and self.load().claims(path)

    def convert(self, job: Job) -> Converted:
        """Convert a job."""
        return self.load().convert(job)

    def open_runner(self, path: Path, device: str, signature: Signature) -> Runner:
        """Open a model file."""
        return self.load().open_runner(path, device, signature)

    def inspect(self, path: Path) -> Inspection:
        """Describe a model file."""
        return self.load().inspect(path)

    def coverage(self, path: Path, example: Feed, device: str) -> Coverage | None:
        """Return the compute dtypes of a model file."""
        return self.load().coverage(path, example, device)


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
    used = {target.NAME for target in built_in}
    twice = {name for name, count in Counter(entry.name for entry in found).items() if count > 1}
    taking: list[PluginTarget] = []
    rejected: list[str] = []
    for plugin in map(PluginTarget, found):
        why = _name_fault(plugin.NAME, used, twice)
        if why:
            rejected.append(f"the target {plugin.NAME!r} of {plugin.package} is rejected: {why}")
        else:
            taking.append(plugin)
    return tuple(taking), tuple(rejected)


def _name_fault(name: str, used: Collection[str], twice: Collection[str]) -> str:
    if name in used or name == EAGER:
        return "modelc has a target of that name"
    if name in twice:
        return "several packages have a target of that name"
    return (
        "" if _NAME.fullmatch(name) else "a name consists of lower-case letters, digits and dashes"
    )


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
        yield "MADE_FROM names no precision"
    elif not all(isinstance(precision, Precision) for precision in made_from):
        yield "a key of MADE_FROM is not a Precision"
    if not values["DEVICES"] or not _DEVICES.issuperset(values["DEVICES"]):
        yield f"its DEVICES are {values['DEVICES']!r}, not cpu or cuda"
