"""One row of the option table, and how what the user gives becomes a field of a record."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ..core.errors import ErrorCode, Hint, Option, UsageError

Record = TypeVar("Record")
Default = TypeVar("Default")
Given: TypeAlias = Mapping[str, object]
"""What the user gave, by the name of the option: flags of a command, or settings of a project."""


class Commands:
    """Sets of commands, for the rows of the table."""

    EXPORT = frozenset({"export"})
    TRT = frozenset({"build-trt"})
    OV = frozenset({"build-ov"})
    VALIDATE = frozenset({"validate"})
    DEBUG = frozenset({"debug"})
    RUN = frozenset({"run"})
    MERGE = frozenset({"merge"})
    FINISH = frozenset({"finish"})
    CALIBRATE = frozenset({"calibrate"})
    INIT = frozenset({"init"})
    INSPECT = frozenset({"inspect"})
    REPORT = frozenset({"report"})
    BENCHMARK = frozenset({"bench"})
    PACK = frozenset({"pack"})
    MAKING = EXPORT | TRT | OV
    JUDGING = MAKING | VALIDATE
    EAGER = JUDGING | DEBUG  # those that open a checkpoint
    LOADING = EAGER | INSPECT | BENCHMARK  # those that build its module
    WITH_JSON = (
        EAGER | RUN | MERGE | FINISH | CALIBRATE | INIT | INSPECT | REPORT | BENCHMARK
        | PACK
        | {"config", "doctor", "targets", "verify", "cache ls", "cache gc", "cache verify",
            "cache runtimes"}
    )  # fmt: skip
    ALL = WITH_JSON | {"sbom"}


class Panel(StrEnum):
    """The groups of options in every command's help, in this order; rare ones are in the last."""

    PROJECT = "Project"
    FLEET = "Several hosts"
    INPUT = "Input"
    OUTPUT = "Output"
    PRECISION = "Precision"
    CALIBRATION = "Calibration"
    VALIDATION = "Validation"
    TOKENS = "Tokens of a decoder"
    ACCURACY = "Accuracy on labelled data"
    CAPTURE = "Capture"
    TENSORRT = "TensorRT"
    CACHE = "Cache"
    ISOLATION = "Isolation"
    SIGNING = "Signing"
    ADVANCED = "Advanced"


class ValueKind(StrEnum):
    """The type of a value, as messages name it."""

    TEXT = "text"
    WHOLE = "a whole number"
    NUMBER = "a number"
    TRUTH = "true or false"
    PATH = "a path"
    SOURCE = "a path or PKG.MOD:LOADER"
    FOLDER = "a folder or a URL"
    SIZE = "a size"
    TIME = "a time"
    DROP = "a part"


@dataclass(frozen=True, kw_only=True)
class OptionSpec:
    """One option: its flag, its key in modelc.toml, and the field that holds its value.

    Attributes:
        name: the flag without dashes, which is also the key; `MODELC_NAME` is its variable.
        help: one or two sentences for the help, the JSON Schema and the documentation.
        panel: its group in the help of a command.
        commands: the commands that have the flag; none for a key of modelc.toml alone.
        key: whether modelc.toml has it.
        flags: the flags where they are more than `--name`.
        metavar: what stands for its value in the help.
        env: an environment variable of the flag itself.
        kind: the type of a value; of each one where `many` are allowed.
        choices: the only values; with `lists_choices` the command line checks them itself.
        least: the smallest number.
        most: the largest number.
        above: a number that the value must exceed.
        words: values of a path option that name no path.
        commas: whether one text may hold several values.
        check: refuses a text of modelc.toml that `parse` would refuse.
        default: the value where the user gives none.
        recorded: whether the value of an earlier run precedes `default`.
        required: the commands that must have it.
        field: the field of the record; without one, the name.
        negated: whether the field is true unless the flag is given.
        parse: turns what was given into the value of the field.
        partial: whether a project may set it for all models although some have no use for it.
        rebuilds: whether another value makes another artifact: it is a part of the cache key.
    """

    name: str
    help: str = ""
    panel: Panel = Panel.ADVANCED
    commands: frozenset[str] = frozenset()
    key: bool = True
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    env: str | None = None
    kind: ValueKind = ValueKind.TEXT
    many: bool = False
    choices: tuple[str, ...] = ()
    lists_choices: bool = False
    least: float | None = None
    most: float | None = None
    above: float | None = None
    words: tuple[str, ...] = ()
    commas: bool = False
    check: Callable[[str], object] | None = None
    default: str | int | float | bool | tuple[str, ...] | None = None
    recorded: bool = False
    required: frozenset[str] = frozenset()
    field: str = ""
    negated: bool = False
    parse: Callable[[Any], object] | None = None
    partial: bool = False
    rebuilds: bool = True

    def __post_init__(self) -> None:
        if not self.field:
            object.__setattr__(self, "field", self.name.replace("-", "_"))

    def check_number(self, value: float, place: str = "") -> None:
        """Check that a number is finite and within the limits; the message begins with `place`.

        Raises:
            UsageError: it is not.
        """
        low, high = self.least, self.most
        fits = (low is None or value >= low) and (high is None or value <= high)
        if fits and (self.above is None or value > self.above) and abs(value) < math.inf:
            return
        if low is not None and high is not None:
            allowed = f"from {_as_text(low)} to {_as_text(high)}"
        else:
            limits = {"above": self.above, "at least": low, "at most": high}
            named = (f"{word} {_as_text(one)}" for word, one in limits.items() if one is not None)
            allowed = " and ".join(named) or "finite"
        usual = self.default if isinstance(self.default, int | float) else None
        raise UsageError(
            f"{place}must be {allowed}, not {_as_text(value)}",
            hint="leave it out for its default"
            if usual is None
            else Hint("for example ", Option(self.name, _as_text(usual))),
            option=self.name,
            code=ErrorCode.INVALID_VALUE,
        )

    def value_of(self, given: object) -> object:
        """The value of the field, from what a flag or a setting gives."""
        if self.parse is not None:
            return self.parse(given)
        if self.negated:
            return not given
        if self.many:
            return tuple(given) if isinstance(given, list | tuple) else (given,)
        if self.kind is ValueKind.PATH and not self.words:
            return Path(str(given))
        return str(given) if isinstance(given, str) else given


def option(
    default: Default, name: str, about: str, /, panel: Panel = Panel.ADVANCED, **spec: Any
) -> Default:
    """Declare a field of a record as an option; `default` is that of the field."""
    shown = str(default) if isinstance(default, Path) else default
    row = OptionSpec(name=name, help=about, panel=panel, **{"default": shown or None, **spec})
    metadata = {_ROW: row}
    found: Any = (
        field(default_factory=dict, metadata=metadata)
        if isinstance(default, dict)
        else field(default=default, metadata=metadata)
    )
    return found  # type: ignore[no-any-return]  # a dataclass makes the default of it


def switch(name: str, about: str, /, panel: Panel = Panel.ADVANCED, **spec: Any) -> bool:
    """Declare a flag without a value: false unless it is given, or true if it is `negated`."""
    usual = bool(spec.get("negated"))
    return option(usual, name, about, panel, kind=ValueKind.TRUTH, default=False, **spec)


_ROW = "option"


def specs_of(record: type) -> tuple[OptionSpec, ...]:
    """The options among the fields of a record."""
    kind: Any = record  # a class is hashable, which mypy does not know
    return _read_specs(kind)


@functools.cache
def _read_specs(record: Any) -> tuple[OptionSpec, ...]:
    return tuple(
        replace(one.metadata[_ROW], field=one.name)
        for one in fields(record)
        if _ROW in one.metadata
    )


def field_values(specs: Iterable[OptionSpec], values: Given) -> dict[str, Any]:
    """The fields of those options that were given, as keyword arguments of a record.

    Raises:
        UsageError: a value that `parse` refuses.
    """
    return {
        one.field: one.value_of(values[one.name])
        for one in specs
        if values.get(one.name) is not None
    }


def read_record(record: type[Record], values: Given) -> Record:
    """The record with the options that were given, and its defaults for the others.

    Raises:
        UsageError: a value that the record refuses.
    """
    return record(**field_values(specs_of(record), values))


def check_numbers(record: object) -> None:
    """Check that the numbers of a record are within the limits of their options.

    Raises:
        UsageError: one is not.
    """
    for one in specs_of(type(record)):
        value = getattr(record, one.field)
        if one.kind in (ValueKind.WHOLE, ValueKind.NUMBER) and value is not None:
            one.check_number(value, f"--{one.name} ")


def summarize(record: object) -> dict[str, str]:
    """What a manifest keeps of a record's options that change an artifact: text, "" by default."""
    texts = {}
    for one, default in _specs_that_rebuild(type(record)):  # type: ignore[arg-type]
        value = getattr(record, one.field)
        texts[one.name.replace("-", "_")] = "" if value == default else _as_text(value)
    return texts


@functools.cache
def _specs_that_rebuild(record: Any) -> tuple[tuple[OptionSpec, object], ...]:
    """The options of a record that change an artifact, each with the default of its field."""
    defaults = {one.name: {} if one.default is MISSING else one.default for one in fields(record)}
    return tuple((one, defaults[one.field]) for one in specs_of(record) if one.rebuilds)


def _as_text(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
