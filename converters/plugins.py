"""Formats of other packages, by entry point; of each only its name is known until it is used."""

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
from ..core.errors import MissingError, ModelcError, first_line
from ..core.kinds import Capture, Precision
from ..core.records import Coverage
from ..core.signature import Signature

GROUP = "modelc.targets"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_VALUES = ("SUMMARY", "SUFFIX", "MADE_FROM", "CAPTURES", "DEVICES")
_DEVICES = frozenset({"cpu", "cuda"})
_FUNCTIONS = ("readiness", "claims", "convert", "open_runner", "inspect", "coverage")


class PluginTarget:
    """A target of another package, loaded where more than its name is asked for.

    Whoever names it gets the package's own object (`load`). In the table this stands for it, and
    one that cannot be loaded is a target that is not ready.
    """

    def __init__(self, entry: metadata.EntryPoint) -> None:
        self.NAME = entry.name
        self._entry = entry

    @property
    def package(self) -> str:
        """The distribution that it is of, with its version."""
        found = self._entry.dist
        return "an unknown package" if found is None else f"{found.name} {found.version}"

    @cached_property
    def _target(self) -> Target | MissingError:
        try:
            target = self._entry.load()
            faults = tuple(_target_faults(target, self.NAME))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - code of others: it is told, not met
            faults = (f"{type(error).__name__}: {first_line(error)}",)
            target = None
        if not faults:
            return target  # type: ignore[no-any-return]  # looked at above
        name = "PACKAGE" if self._entry.dist is None else self._entry.dist.name
        return MissingError(
            f"the target {self.NAME!r} of {self.package} cannot be used: {'; '.join(faults)}",
            hint=f"pip install --upgrade {name}, or pip uninstall {name}",
        )

    def load(self) -> Target:
        """The package's own object.

        Raises:
            MissingError: it cannot be loaded, or is no target.
        """
        if isinstance(self._target, ModelcError):
            raise self._target
        return self._target

    @property
    def fault(self) -> str:
        """Why it cannot be used; empty where it can."""
        return self._target.message if isinstance(self._target, ModelcError) else ""

    @property
    def SUMMARY(self) -> str:  # noqa: N802 - the contract's name
        """What it makes."""
        return f"a target of {self.package}" if self.fault else self.load().SUMMARY

    @property
    def SUFFIX(self) -> str:  # noqa: N802 - the contract's name
        """Of its model files; one that no file has where it cannot be loaded."""
        return f".{self.NAME}.unusable" if self.fault else self.load().SUFFIX

    @property
    def MADE_FROM(self) -> Mapping[Precision, str]:  # noqa: N802 - the contract's name
        """Its precisions, with what each is made from."""
        return {} if self.fault else self.load().MADE_FROM

    @property
    def CAPTURES(self) -> tuple[Capture, ...]:  # noqa: N802 - the contract's name
        """What `auto` tries."""
        return () if self.fault else self.load().CAPTURES

    @property
    def DEVICES(self) -> tuple[str, ...]:  # noqa: N802 - the contract's name
        """Where it runs."""
        return () if self.fault else self.load().DEVICES

    def readiness(self) -> Readiness:
        """As the package says; not ready where it cannot be loaded."""
        if isinstance(self._target, ModelcError):
            return Readiness(ready=False, reason=self._target.message, mend=self._target.hint)
        return self.load().readiness()

    def claims(self, path: Path) -> bool:
        """Whether it is a model of this format; nothing is where it cannot be loaded."""
        return not self.fault and self.load().claims(path)

    def convert(self, job: Job) -> Converted:
        """Make it."""
        return self.load().convert(job)

    def open_runner(self, path: Path, device: str, signature: Signature) -> Runner:
        """Open it."""
        return self.load().open_runner(path, device, signature)

    def inspect(self, path: Path) -> Inspection:
        """Read what it says of itself."""
        return self.load().inspect(path)

    def coverage(self, path: Path, example: Feed, device: str) -> Coverage | None:
        """What it computes in."""
        return self.load().coverage(path, example, device)


def find_plugins(
    built_in: Collection[Target], entries: Iterable[metadata.EntryPoint] | None = None
) -> tuple[tuple[PluginTarget, ...], tuple[str, ...]]:
    """The targets of installed packages by their names, and why some are refused.

    `entries` are entry points of `modelc.targets`; None looks them up. None of them is loaded.
    """
    found = sorted(
        metadata.entry_points(group=GROUP) if entries is None else entries,
        key=lambda entry: (entry.name, entry.value),
    )
    taken = {target.NAME for target in built_in}
    twice = {name for name, count in Counter(entry.name for entry in found).items() if count > 1}
    taking: list[PluginTarget] = []
    refused: list[str] = []
    for plugin in map(PluginTarget, found):
        why = _name_refusal(plugin.NAME, taken, twice)
        if why:
            refused.append(f"the target {plugin.NAME!r} of {plugin.package} is refused: {why}")
        else:
            taking.append(plugin)
    return tuple(taking), tuple(refused)


def _name_refusal(name: str, taken: Collection[str], twice: Collection[str]) -> str:
    if name in taken or name == EAGER:
        return "modelc has that name itself"
    if name in twice:
        return "several packages have that name"
    return "" if _NAME.fullmatch(name) else "a name is of small letters, digits and dashes"


def _target_faults(target: object, name: str) -> Iterator[str]:
    """What keeps an object from being a target of that name."""
    lacks = [one for one in ("NAME", *_VALUES) if not hasattr(target, one)]
    lacks += [f"{one}()" for one in _FUNCTIONS if not callable(getattr(target, one, None))]
    if lacks:
        yield f"it lacks {', '.join(lacks)}"
        return
    values = {one: getattr(target, one) for one in ("NAME", *_VALUES)}
    if values["NAME"] != name:
        yield f"it calls itself {values['NAME']!r}"
    if not isinstance(values["SUFFIX"], str) or not values["SUFFIX"].startswith("."):
        yield f"its SUFFIX is {values['SUFFIX']!r}, which begins with no dot"
    made_from = values["MADE_FROM"]
    if not isinstance(made_from, Mapping) or not made_from:
        yield "MADE_FROM names no precision"
    elif not all(isinstance(precision, Precision) for precision in made_from):
        yield "a key of MADE_FROM is no Precision"
    if not values["DEVICES"] or not _DEVICES.issuperset(values["DEVICES"]):
        yield f"its DEVICES are {values['DEVICES']!r}, not cpu or cuda"
