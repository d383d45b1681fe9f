"""Read modelc.toml into a Project, with the line of every key."""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from ..core.errors import ErrorCode, Place, UsageError, first_line
from ..pipeline.limit_text import parse_limits
from ..pipeline.model_metadata import flatten_meta, make_meta, split_meta
from ..pipeline.option_spec import OptionSpec
from ..pipeline.parts.parts_file import check_part_name
from ..serving.ensembles import EnsembleSpec
from .ensemble_tables import read_ensemble
from .project_faults import Faults, check_names
from .project_records import KeyPath, Project, Setting, SettingLayer, Value, format_key_path
from .setting_keys import (
    DEFAULT_KEYS,
    ENSEMBLES,
    GATE_KEYS,
    GATES,
    LIMIT_KEYS,
    META,
    MODEL_KEYS,
    PARTS,
    RESERVED_NAMES,
    RUN_KEYS,
    TABLES,
    TOLERANCE,
    TOP_LEVEL,
)
from .setting_values import parse_value

_MAX_BYTES = 1 << 21  # bytes; a thousand models are 500 kB
_MAX_DEPTH = 32  # parts of a dotted key: the standard library's reader is slow with thousands
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")


def read_project(path: Path) -> Project:
    """Read a modelc.toml.

    Raises:
        UsageError: it cannot be read, or has faults: all of them, each with its line.
    """
    faults = Faults()
    project = read_project_leniently(path, faults)
    faults.raise_any()
    return project


def read_project_leniently(path: Path, faults: Faults) -> Project:
    """Read a modelc.toml like `read_project`, but add invalid settings to `faults`.

    Raises:
        UsageError: it cannot be read at all, or is not TOML.
    """
    text = _read_text(path)
    tables = _parse_toml(text, path)
    return _ProjectReader(path, find_key_lines(text), faults).project(tables)


def _read_text(path: Path) -> str:
    hint = "create one with modelc init CHECKPOINT, or pass another with --file"
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
        text = raw.decode("utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", hint=hint, code=ErrorCode.NOT_FOUND) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8: {first_line(error)}",
            hint="save it as UTF-8",
            code=ErrorCode.CORRUPT_FILE,
        ) from error
    if len(raw) > _MAX_BYTES:
        raise UsageError(f"{path} is larger than {_MAX_BYTES} bytes", hint="split the project")
    return text.replace("\r\n", "\n")


def _parse_toml(text: str, path: Path) -> dict[str, object]:
    for number, line in enumerate(text.split("\n"), start=1):
        head = line.partition("=")[0].strip()
        if not head.startswith("#") and head.count(".") > _MAX_DEPTH:
            place = Place(file=str(path), line=number)
            _raise_at(place, f"a key has more than {_MAX_DEPTH} parts")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        message = first_line(error)
        found = _AT_LINE.search(message)
        place = Place(file=str(path), line=int(found.group(1)) if found else 0)
        what = "too many nested lists" if isinstance(error, RecursionError) else message
        _raise_at(place, f"not TOML: {_AT_LINE.sub('', what)}", error)


def _raise_at(place: Place, message: str, cause: Exception | None = None) -> NoReturn:
    raise UsageError(
        message,
        hint="correct the line; strings need quotes",
        place=place,
        code=ErrorCode.CORRUPT_FILE,
    ) from cause


class _ProjectReader:
    """Walks through the tables of one file."""

    def __init__(self, path: Path, lines: Mapping[KeyPath, int], faults: Faults) -> None:
        self.path = path
        self.lines = lines
        self.faults = faults

    def project(self, tables: Mapping[str, object]) -> Project:
        """Read the whole file."""
        for name, found in tables.items():
            if name == "model" and isinstance(found, dict):
                self.faults.add(
                    f"unknown table {name!r}",
                    hint="the table of a model is [models.NAME]",
                    code=ErrorCode.UNKNOWN_NAME,
                    place=self.place((name,)),
                )
                self.faults.rejected.add(("models",))
            elif name not in TOP_LEVEL:
                self._unknown((name,), TOP_LEVEL)
        models = self._table(tables, ("models",))
        check_names(models, lambda name: self.place(("models", name), table=True), self.faults)
        run = {name: value for name, value in tables.items() if name in RUN_KEYS}
        shared = {name: value for name, value in tables.items() if name == TOLERANCE}
        return Project(
            file=self.path,
            run=tuple(self._keys(run, (), RUN_KEYS)),
            defaults=(
                *self._settings(shared, (), {}),
                *self._settings(self._table(tables, ("defaults",)), ("defaults",), DEFAULT_KEYS),
            ),
            models={
                name: tuple(self._settings(self._table(models, at), at, MODEL_KEYS))
                for name, at in ((name, ("models", name)) for name in models)
            },
            places={name: self.place(("models", name), table=True) for name in models},
            ensembles=self._ensembles(tables),
        )

    def _ensembles(self, tables: Mapping[str, object]) -> tuple[EnsembleSpec, ...]:
        """Read `[ensembles.NAME]`: what is wrong with one is a fault at its place."""
        found: list[EnsembleSpec] = []
        for name, table in self._table(tables, (ENSEMBLES,)).items():
            path = (ENSEMBLES, name)
            with self.faults.at(self.place(path, table=True)):
                found.append(read_ensemble(name, table))
        return tuple(found)

    def place(self, path: KeyPath, *, table: bool = False) -> Place:
        """Return the place of a key or of a table itself: `modelc.toml:12 [models.digits]`."""
        around = path if table else path[:-1]
        key = f"[{format_key_path(around)}]" if around else ""
        return Place(file=str(self.path), line=nearest_line(self.lines, path) or 0, key=key)

    def _table(self, tables: Mapping[str, object], path: KeyPath) -> Mapping[str, object]:
        found = tables.get(path[-1], {})
        if isinstance(found, dict):
            return found
        name = ".".join(path)
        self.faults.add(
            f"{name} is not a table",
            hint=f"write [{name}] on its own line",
            code=ErrorCode.INVALID_VALUE,
            place=self.place(path),
        )
        self.faults.rejected.add(path)
        return {}

    def _settings(
        self, table: Mapping[str, object], at: KeyPath, known: Mapping[str, OptionSpec]
    ) -> Iterator[Setting]:
        """Read the settings of the table of a model, of [defaults], or of the top level."""
        plain = {name: value for name, value in table.items() if name not in TABLES}
        yield from self._keys(plain, at, known)
        for name, limits in ((GATES, GATE_KEYS), (TOLERANCE, LIMIT_KEYS)):
            if isinstance(table.get(name), dict):
                yield from self._limits(self._table(table, (*at, name)), (*at, name), limits)
            elif name == TOLERANCE and name in table:
                yield from self._texts(table[name], (*at, name))
            elif name in table:
                self._table(table, (*at, name))
        if META in table:
            yield from self._meta(table[META], (*at, META))
        if PARTS in table and known is MODEL_KEYS:
            yield from self._parts(self._table(table, (*at, PARTS)), (*at, PARTS))
        elif PARTS in table:
            self._unknown((*at, PARTS), known)

    def _keys(
        self,
        table: Mapping[str, object],
        at: KeyPath,
        known: Mapping[str, OptionSpec],
        under: KeyPath = (),
    ) -> Iterator[Setting]:
        for name, raw in table.items():
            path = (*at, name)
            if name not in known:
                self._unknown(path, known if under else (*known, *TABLES))
                continue
            place = self.place(path)
            with self.faults.at(place.of(name)), self.faults.record_rejection(path):
                value = parse_value(known[name], raw, self.path.parent)
                yield _make_setting((*under, name), value, at, place)

    def _limits(
        self, table: Mapping[str, object], at: KeyPath, known: Mapping[str, OptionSpec]
    ) -> Iterator[Setting]:
        """Read limits: numbers are for all; tables are for artifacts or outputs by name."""
        plain = {name: raw for name, raw in table.items() if not isinstance(raw, dict)}
        yield from self._keys(plain, at, known, at[-1:])
        for name, inner in table.items():
            if isinstance(inner, dict):
                yield from self._keys(inner, (*at, name), known, (at[-1], name))

    def _texts(self, raw: object, path: KeyPath) -> Iterator[Setting]:
        """Read `tolerance` given as texts, as the option takes them."""
        place = self.place(path)
        with self.faults.at(place.of(TOLERANCE)):
            key = OptionSpec(name=TOLERANCE, many=True)
            texts = parse_value(key, raw, self.path.parent)
            for output, name, value in parse_limit_texts(texts if isinstance(texts, tuple) else ()):
                under = (TOLERANCE, output) if output else (TOLERANCE,)
                yield _make_setting((*under, name), value, path, place)

    def _meta(self, raw: object, path: KeyPath) -> Iterator[Setting]:
        """Read the metadata: a table of its keys, or texts as the option takes them."""
        base = self.path.parent
        with self.faults.at(self.place(path).of(META)), self.faults.record_rejection(path):
            if isinstance(raw, dict):
                pairs = dict(flatten_meta(raw, base))
            else:
                texts = parse_value(OptionSpec(name=META, many=True), raw, base)
                pairs = split_meta(texts if isinstance(texts, tuple) else (), base)
            make_meta(pairs)
            for name, text in pairs.items():
                place = self.place((*path, name))
                yield _make_setting((META, name), text, path, place)

    def _parts(self, table: Mapping[str, object], at: KeyPath) -> Iterator[Setting]:
        """Read the submodule or method of each part."""
        for name, raw in table.items():
            place = self.place((*at, name))
            with self.faults.at(place.of(name)), self.faults.record_rejection(at):
                check_part_name(name)
                value = parse_value(OptionSpec(name=name), raw, self.path.parent)
                yield _make_setting((PARTS, name), value, at, place)

    def _unknown(self, path: KeyPath, known: Collection[str]) -> None:
        name = path[-1]
        self.faults.add(
            f"unknown key {name!r}",
            hint=unknown_key_hint(name, known),
            place=self.place(path),
            code=ErrorCode.UNKNOWN_NAME,
        )
        if name in MODEL_KEYS:  # valid in a model's table only
            self.faults.rejected.add(("defaults", name))
        elif name not in RESERVED_NAMES:
            self.faults.rejected.update((*path[:-1], meant) for meant in _nearest_key(name, known))


def _make_setting(path: KeyPath, value: Value, at: KeyPath, place: Place) -> Setting:
    """Make a setting of the table `at`; it is shared unless the table is of one model."""
    own = at[:1] == ("models",)
    return Setting(path=path, value=value, layer=SettingLayer.FILE, place=place, shared=not own)


def parse_limit_texts(texts: Collection[str]) -> Iterator[tuple[str, str, float]]:
    """Parse `--tolerance` texts into output (or ""), limit and value.

    Raises:
        UsageError: a text has another form, or a value is out of range.
    """
    for text in texts:
        output, values = parse_limits(text)
        for field, value in values.items():
            name = field.replace("_", "-")
            yield output, name, float(str(parse_value(LIMIT_KEYS[name], value, Path())))


def unknown_key_hint(name: str, known: Collection[str]) -> str:
    """Suggest the nearest key, or the table where the key belongs."""
    if name in known:
        return f"write {name}"
    if name in MODEL_KEYS or name in TABLES:
        other = (
            " or in [defaults]"
            if name != PARTS and (name in DEFAULT_KEYS or name in TABLES)
            else ", as each model has its own"
        )
        return f"{name} belongs in [models.NAME]{other}"
    if name in RUN_KEYS:
        return f"{name} is a setting of the run: write it above the first table"
    for table, keys in ((GATES, GATE_KEYS), (TOLERANCE, LIMIT_KEYS)):
        if name in keys:
            return f"{name} belongs in [models.NAME.{table}] or in [defaults.{table}]"
    near = _nearest_key(name, known)
    return f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"


def _nearest_key(name: str, known: Collection[str]) -> list[str]:
    """Find the nearest key, if any."""
    return difflib.get_close_matches(name.lower().replace("_", "-"), list(known), n=1)


_TOML_TOKEN = re.compile(
    r"""(?P<text>\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
    r"""|(?P<comment>\#[^\n]*)|(?P<sign>[\[\]{}=,\n])|(?P<bare>[^\s\[\]{}=,"'\#]+)""",
    re.S,
)
_OPEN_BRACKETS, _CLOSE_BRACKETS = "[{", "]}"


def find_key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line, from 1, of every table and key of a text that is valid TOML."""
    found: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for line, header, name in _statements(text):
        path = parse_dotted_key(name)
        if header:
            table = path
            found.setdefault(table, line)
        else:
            found.setdefault((*table, *path), line)
    return found


def nearest_line(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """Return the line of a key, its first content, or the nearest enclosing table."""
    if path in lines:  # nearly always: the rest looks at every key of the file
        return lines[path]
    around = [path[:size] for size in range(len(path), 0, -1)]
    first = (one for one in lines if one[: len(path)] == path)
    return next((lines[one] for one in (*first, *around) if one in lines), None)


def _statements(text: str) -> Iterator[tuple[int, bool, str]]:
    """Yield line, whether it is a table header, and name of each statement."""
    name: list[str] = []
    depth, in_value = 0, False
    for line, sign, word in _tokens(f"{text}\n"):
        if in_value:
            depth += (word in _OPEN_BRACKETS) - (word in _CLOSE_BRACKETS) if sign else 0
            in_value = depth > 0 or word != "\n"
        elif word in ("\n", "="):
            if name:
                yield line, word == "\n", "".join(name)
            name, in_value = [], word == "="
        elif not sign:
            name.append(word)


def _tokens(text: str) -> Iterator[tuple[int, bool, str]]:
    """Yield line, whether it is punctuation, and text of each token, without comments."""
    line, at = 1, 0
    for token in _TOML_TOKEN.finditer(text):
        line += text.count("\n", at, token.start())
        at = token.start()
        if token.lastgroup != "comment":
            yield line, token.lastgroup == "sign", token.group()


@functools.lru_cache(maxsize=4096)
def parse_dotted_key(name: str) -> KeyPath:
    """Split a dotted key into its parts.

    Raises:
        ValueError: the text is not a key.
    """
    table: object = tomllib.loads(f"{name} = 0")
    parts = []
    while isinstance(table, dict):
        ((part, table),) = table.items()
        parts.append(part)
    return tuple(parts)
