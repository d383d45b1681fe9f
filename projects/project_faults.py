"""Collects the faults of a project with their places, and checks paths, names and gates."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from ..core.errors import (
    ErrorCode,
    Hint,
    MissingError,
    ModelcError,
    Option,
    Place,
    UsageError,
    nearest_files,
)
from ..core.hub_ids import find_hub_id
from ..core.nested_values import is_loader_spec
from ..pipeline.option_spec import OptionSpec, ValueKind
from ..serving.version_folders import describe_name_fault
from .project_records import ALL_ARTIFACTS, Gate, KeyPath, Setting
from .setting_keys import GATES, MODEL_KEYS, PARTS, RESERVED_NAMES


class _JoinedError(ModelcError):
    """Several faults as one error."""

    def __init__(self, faults: Sequence[ModelcError]) -> None:
        text = "; ".join(fault.text for fault in faults)
        super().__init__(f"{len(faults)} errors: {text}", hint=faults[0].advice)
        self.faults = tuple(faults)


class ProjectError(_JoinedError, UsageError):
    """A project has several faults, in the order of `faults`."""


class ProjectMissingError(_JoinedError, MissingError):
    """A project needs several things that are missing on this host, and has no other fault."""


def split_faults(error: ModelcError) -> tuple[ModelcError, ...]:
    """Split an error into its faults, or return it alone."""
    return error.faults if isinstance(error, _JoinedError) else (error,)


class Faults:
    """Collects faults, so that one does not hide the next.

    `rejected` has the settings and tables that are invalid, as ("models", "digits", "to") or
    ("defaults",): their absence later is not another fault.
    """

    def __init__(self) -> None:
        self.found: list[ModelcError] = []
        self.rejected: set[KeyPath] = set()

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Keep an error of the block at this place."""
        try:
            yield
        except ModelcError as error:
            self.keep(error, place)

    @contextmanager
    def record_rejection(self, setting: KeyPath) -> Iterator[None]:
        """Note a setting whose value the block rejects."""
        try:
            yield
        except ModelcError:
            self.rejected.add(setting)
            raise

    def is_rejected(self, model: str, key: str) -> bool:
        """Whether a key of a model or of the defaults, or its table, is invalid."""
        paths = (("models", model, key), ("defaults", key))
        return any(path[:size] in self.rejected for path in paths for size in (1, 2, 3))

    def keep(self, error: ModelcError, place: Place) -> None:
        """Keep an error at this place."""
        for one in split_faults(error):
            self.found.append(place_error(one, {"": place}))

    def add(
        self,
        message: str,
        *,
        hint: str,
        place: Place | None = None,
        code: ErrorCode | None = None,
    ) -> None:
        """Add a fault."""
        self.found.append(UsageError(message, hint=hint, place=place, code=code))

    def raise_any(self) -> None:
        """Raise the faults, if there are any.

        Raises:
            ModelcError: the one fault, or all of them as one.
        """
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            missing = all(isinstance(fault, MissingError) for fault in self.found)
            raise (ProjectMissingError if missing else ProjectError)(self.found)


def place_error(error: ModelcError, places: Mapping[str, Place]) -> ModelcError:
    """Give an error the place of the key that it is about, else that of the model.

    `places` has the place of each key, and under "" that of the model.
    """
    return error.at(place_for(error, places), hint=key_hint(error.advice))


def place_for(error: ModelcError, places: Mapping[str, Place]) -> Place:
    """The place of the first key that an error is about; else that of the model."""
    return next((places[name] for name in error.options if name in places), places[""])


def key_hint(hint: Hint) -> Hint:
    """Rewrite a hint for modelc.toml: `calib = "DIR"` for `--calib DIR`."""
    return Hint(*(_option_as_key(one) if isinstance(one, Option) else one for one in hint.parts))


def _option_as_key(option: Option) -> str:
    key = MODEL_KEYS.get(option.name)
    if option.name == "part":  # the only option that is a table of another name
        name, _, method = option.value.partition("=")
        return f'{name} = "{method}" in [models.NAME.{PARTS}]'
    if key is None:
        return str(option)
    if key.kind is ValueKind.TRUTH:
        return f"{key.name} = true"
    if not option.value:
        return key.name
    value = option.value.strip("\"'")
    shown = value if key.kind in (ValueKind.WHOLE, ValueKind.NUMBER) else f'"{value}"'
    return f"{shown} in {key.name}" if key.many else f"{key.name} = {shown}"


# What `modelc init` writes where only the user knows.
FACTORY_FORM = "PKG.MOD:FACTORY"
_OPEN_SIZE = re.compile(r"EDIT_\w+")
_OUTPUT_KEYS = frozenset({"timing-cache"})  # modelc creates it if missing


def check_paths(said: Iterable[Setting], faults: Faults) -> None:
    """Add paths that do not exist and lines that `modelc init` left open to `faults`."""
    for one in said:
        key = MODEL_KEYS.get(one.path[0]) if len(one.path) == 1 else None
        if key is None:
            continue
        texts = one.value if isinstance(one.value, tuple) else (str(one.value),)
        for text in texts:
            _check_filled(one, text, faults)
            if _is_path(key, text):
                _check_exists(one, Path(text), faults)


def _is_path(key: OptionSpec, text: str) -> bool:
    if (
        key.kind not in (ValueKind.PATH, ValueKind.SOURCE)
        or text in key.words
        or key.name in _OUTPUT_KEYS
    ):
        return False
    if key.name == "checkpoint" and find_hub_id(text):
        return False
    return not (key.kind is ValueKind.SOURCE and is_loader_spec(text))


def _check_filled(one: Setting, text: str, faults: Faults) -> None:
    left = FACTORY_FORM if one.path == ("model",) and text == FACTORY_FORM else ""
    if one.path == ("input",):
        left = ", ".join(open_sizes(text))
    if left:
        faults.add(
            f"placeholder to replace: {left}",
            place=one.place.of(one.name),
            hint="write the sizes of your model"
            if left != FACTORY_FORM
            else "write the function or class that builds the module, as nets.resnet:build",
        )


def open_sizes(text: str) -> tuple[str, ...]:
    """Find the placeholders for sizes that only the user knows."""
    return tuple(dict.fromkeys(_OPEN_SIZE.findall(text)))


def _check_exists(one: Setting, path: Path, faults: Faults) -> None:
    try:
        if path.exists():
            return
        near = nearest_files(path)
    except OSError:  # a name that is too long, a folder that may not be read
        near = []
    hint = f"did you mean {near[0]}?" if near else f"create it, or correct {one.name}"
    faults.add(
        f"{path} does not exist", hint=hint, place=one.place.of(one.name), code=ErrorCode.NOT_FOUND
    )


_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_HINT = "use up to 64 letters, digits, '-', '_' and '.'; start with a letter or digit"


def check_names(names: Iterable[str], place: Callable[[str], Place], faults: Faults) -> None:
    """Add invalid names of models to `faults`."""
    seen: dict[str, str] = {}
    for name in names:
        why = _name_fault(name)
        twin = seen.setdefault(name.lower(), name)
        if why:
            text = f"the name of the model {name[:80]!r} {why}"
            faults.add(text, hint=_NAME_HINT, place=place(name), code=ErrorCode.INVALID_VALUE)
        elif twin != name:
            faults.add(
                f"{name} and {twin} are the same folder on file systems that ignore case",
                hint="rename one of them",
                place=place(name),
                code=ErrorCode.SAME_FILE,
            )


def _name_fault(name: str) -> str:
    if not _MODEL_NAME.fullmatch(name):
        return "is not a valid folder name on every system"
    return "is the name of a key" if name in RESERVED_NAMES else describe_name_fault(name)


def make_model_name(text: str) -> str:
    """Make the name of a model from any text."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:64] or "net"
    return plain if not _name_fault(plain) else f"{plain[:58]}-model"


_PATTERN_DEPTH = 3  # parts of a path with a pattern


def read_gates(said: Mapping[KeyPath, Setting]) -> tuple[Gate, ...]:
    """Read the gates from settings, those of all artifacts first."""
    found: dict[str, dict[str, Setting]] = {}
    for path, one in said.items():
        if path[0] == GATES:
            pattern = path[1] if len(path) == _PATTERN_DEPTH else ALL_ARTIFACTS
            found.setdefault(pattern, {})[path[-1]] = one
    gates = (_make_gate(pattern, limits) for pattern, limits in found.items())
    return tuple(sorted(gates, key=lambda gate: gate.pattern != ALL_ARTIFACTS))


def _make_gate(pattern: str, limits: Mapping[str, Setting]) -> Gate:
    from ..pipeline.limit_text import parse_drop

    drop, size, ratio = (limits.get(n) for n in ("max-drop", "max-size", "max-latency-ratio"))
    return Gate(
        pattern=pattern,
        max_drop=None if drop is None else parse_drop(str(drop.value)),
        max_size=None if size is None else int(str(size.value)),
        max_latency_ratio=None if ratio is None else float(str(ratio.value)),
        places={name.replace("-", "_"): one.place for name, one in limits.items()},
    )


def check_gates(
    said: Iterable[Setting], artifacts: Sequence[str], faults: Faults, *, measures: bool
) -> None:
    """Add gates without effect to `faults`: without an artifact, or without labelled data."""
    for one in said:
        if one.path[0] != GATES:
            continue
        place = one.place.of(one.name)
        if one.path[-1] == "max-drop" and not measures:
            faults.add(
                "max-drop has no effect without data",
                hint="add data, or remove it",
                place=place,
                code=ErrorCode.NO_EFFECT,
            )
        if not one.shared:
            _check_pattern(one, artifacts, faults)


def check_shared_gates(said: Iterable[Setting], artifacts: Sequence[str], faults: Faults) -> None:
    """Add shared gates to `faults` that match no artifact of any model."""
    for one in dict.fromkeys(said):
        if one.path[0] == GATES and one.shared:
            _check_pattern(one, artifacts, faults)


def _check_pattern(one: Setting, artifacts: Sequence[str], faults: Faults) -> None:
    pattern = one.path[1] if len(one.path) == _PATTERN_DEPTH else ALL_ARTIFACTS
    if any(fnmatchcase(name, pattern) or name == pattern for name in artifacts):
        return
    near = difflib.get_close_matches(pattern, artifacts, n=1)
    faults.add(
        f"it matches no artifact: {', '.join(artifacts)}",
        code=ErrorCode.NO_EFFECT,
        place=one.place.of(one.name),
        hint=f"did you mean {near[0]!r}?"
        if near
        else "write the name of an artifact, or a pattern as *-int8",
    )
