"""A strict double of the tensorrt package, generated from its surface in tests/data/tensorrt.

It has the names, keywords, arities and types of the real package and rejects all others. A test
gives the behaviour of each method that it uses; others raise. It builds no engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

SURFACES = Path(__file__).parent / "data" / "tensorrt"
VERSIONS = ("10.16", "11.4")
Surface = Mapping[str, Any]
Behaviours = Mapping[str, Callable[..., Any]]  # "Class.method" or "Class.property" -> what it does
_CPP_NAMES = {"IBuilder": "Builder", "IRuntime": "Runtime", "IParserError": "ParserError"}
_TAKEN: Mapping[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int),
    "tuple": lambda value: isinstance(value, tuple),
    "list": lambda value: isinstance(value, list),
    "typing.SupportsInt": lambda value: isinstance(value, int),
    "typing_extensions.Buffer": lambda value: isinstance(value, bytes | bytearray),
    "Dims": lambda value: (
        isinstance(value, list | tuple) and all(type(size) is int for size in value)
    ),
}


def surface_of(version: str) -> Surface:
    """The surface as it lies in tests/data."""
    found: Surface = json.loads((SURFACES / f"{version}.json").read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class Parameter:
    name: str
    type: str
    required: bool


def parameters_of(signature: str) -> list[Parameter]:
    """What a signature line takes, without `self`."""
    inside = signature[signature.index("(") + 1 : signature.rindex(")")]
    found = []
    for part in _apart(inside):
        declared, _, default = part.partition(" = ")
        name, _, kind = declared.partition(":")
        found.append(Parameter(name.strip(), kind.strip(), not default))
    return [one for one in found if one.name != "self"]


def _apart(text: str) -> Iterator[str]:
    """The parts between commas that stand in no bracket."""
    depth, part = 0, ""
    for sign in text:
        depth += (sign in "([<") - (sign in ")]>")
        if sign == "," and depth == 0:
            yield part
            part = ""
        else:
            part += sign
    if part.strip():
        yield part


class Member:
    """An enum member: compares by identity, has a name and a number, and no operators."""

    def __init__(self, enum: str, name: str, number: int) -> None:
        self.enum, self.name, self.value = enum, name, number

    def __int__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return f"<{self.enum}.{self.name}: {self.value}>"


class Double:
    """Makes the module; `made` lists the objects that were constructed, in order."""

    def __init__(self, surface: Surface, behaviours: Behaviours) -> None:
        self.surface = surface
        self.behaviours = dict(behaviours)
        self.made: list[Any] = []
        self.module = ModuleType("tensorrt", "A strict double.")
        for name, enum in surface["enums"].items():
            self._put(name, type(name, (), _members(name, enum)))
        for name in surface["classes"]:
            self._class(name)
        for name, enum in surface["enums"].items():
            if "." in name:
                owner, _, inner = name.partition(".")
                setattr(getattr(self.module, owner), inner, type(inner, (), _members(name, enum)))
        for name, function in surface["functions"].items():
            setattr(self.module, name, self._caller(name, function["signatures"]))
        vars(self.module)["__version__"] = surface["values"]["__version__"]

    def _put(self, name: str, value: object) -> None:
        if "." not in name:
            setattr(self.module, name, value)

    def new(self, name: str, /, **values: Any) -> Any:
        """An object of a class, even one that cannot be constructed; `values` are its own."""
        kind = getattr(self.module, name)
        made = kind.__new__(kind)
        made.__dict__.update(_inited=True, _own=dict(values))
        return made

    def _class(self, name: str) -> type:
        if hasattr(self.module, name):
            return getattr(self.module, name)  # type: ignore[no-any-return]
        entry = self.surface["classes"][name]
        bases = tuple(
            self._class(base) for base in entry["bases"] if base in self.surface["classes"]
        )
        body: dict[str, Any] = {"__init__": self._init(name, entry), "__setattr__": _set_strictly}
        if name == "IHostMemory":
            bases = (*bases, bytearray)  # the buffer protocol
            body["__init__"] = lambda made, data=b"": bytearray.__init__(made, data)
        for method, one in entry["methods"].items():
            body[method] = self._caller(f"{name}.{method}", one["signatures"], bound=True)
        for property_, one in entry["properties"].items():
            body[property_] = self._property(name, property_, one)
        if "__bool__" in entry["special"]:
            body["__bool__"] = lambda made: bool(
                self.behaviours.get(f"{name}.__bool__", bool)(made)
            )
        made = type(name, bases or (object,), body)
        setattr(self.module, name, made)
        return made

    def _init(self, name: str, entry: Mapping[str, Any]) -> Callable[..., None]:
        def construct(made: Any, *args: Any, **named: Any) -> None:
            if not entry["constructible"]:
                raise TypeError(f"tensorrt.{name}: No constructor defined!")
            bound = self._bind(name, entry["init"], args, named)
            made.__dict__.setdefault("_own", {})
            made.__dict__["_inited"] = True
            made.__dict__["_given"] = bound
            self.made.append(made)

        return construct

    def _property(self, owner: str, name: str, entry: Mapping[str, Any]) -> property:
        def read(made: Any) -> Any:
            if not entry["readable"]:
                raise AttributeError(f"{owner}.{name} can only be written")
            if name in made.__dict__["_own"]:
                return made.__dict__["_own"][name]
            return self._behaviour(f"{owner}.{name}")(made)

        def write(made: Any, value: Any) -> None:
            if not entry["writable"]:
                raise AttributeError(f"{owner}.{name} can only be read")
            wanted = entry.get("set_type") or entry["type"]
            if not self._is(value, wanted):
                raise TypeError(f"{owner}.{name} takes {wanted}, not {value!r}")
            made.__dict__["_own"][name] = value

        return property(read, write)

    def _caller(
        self, name: str, signatures: list[str], *, bound: bool = False
    ) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            made, given = (args[:1], args[1:]) if bound else ((), args)
            values = self._bind(name, signatures, given, named)
            return self._behaviour(name)(*made, **values)

        return call

    def _behaviour(self, name: str) -> Callable[..., Any]:
        if name not in self.behaviours:
            raise NotImplementedError(f"the double was given no behaviour for {name}")
        return self.behaviours[name]

    def _bind(
        self, name: str, signatures: list[str], args: tuple[Any, ...], named: dict[str, Any]
    ) -> dict[str, Any]:
        """The arguments by name, of the first signature that takes them."""
        for signature in signatures:
            wanted = parameters_of(signature)
            values = dict(zip((one.name for one in wanted), args, strict=False))
            twice = values.keys() & named.keys()
            values.update(named)
            known = {one.name: one for one in wanted}
            missing = [one.name for one in wanted if one.required and one.name not in values]
            fits = len(args) <= len(wanted) and values.keys() <= known.keys()
            if not fits or missing or twice:
                continue
            if all(self._is(value, known[key].type) for key, value in values.items()):
                return values
        raise TypeError(f"{name}{args}{named}: incompatible arguments; it takes {signatures}")

    def _is(self, value: Any, kind: str) -> bool:
        """Whether the bindings would take the value for the type."""
        kind = re.sub(r"^(tensorrt|nv\w+)(::v_\w+)?(\.|::)", "", kind).rstrip(" *&")
        kind = _CPP_NAMES.get(kind.removeprefix("v_1_0::"), kind.removeprefix("v_1_0::"))
        if kind in self.surface["enums"]:
            return isinstance(value, Member) and value.enum == kind
        if kind in _TAKEN:
            return _TAKEN[kind](value)
        if kind not in self.surface["classes"]:
            return True
        if value is None:
            return kind.startswith("I")
        real = isinstance(value, getattr(self.module, kind))
        return real and bool(value.__dict__.get("_inited", False))


def _members(name: str, enum: Mapping[str, Any]) -> dict[str, Any]:
    members = {key: Member(name, key, number) for key, number in enum["members"].items()}
    return {**members, "__members__": members}


def _set_strictly(made: Any, name: str, value: Any) -> None:
    """No name that the class has not, as the bindings refuse it; a subclass of ours is free."""
    kind = type(made)
    free = name == "__class__" or kind.__module__ != __name__
    if free or isinstance(getattr(kind, name, None), property):
        object.__setattr__(made, name, value)
        return
    raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
