"""Bind inputs to the parameters of a model's forward, and call it. Duck-typed."""

from __future__ import annotations

import difflib
import inspect
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from .errors import Hint, Option, UsageError
from .nested_values import ValuePath, nest_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class ParameterKind(Enum):
    """How a parameter accepts its argument."""

    POSITIONAL = "by position only"
    EITHER = "by position or name"
    KEYWORD = "by name only"
    REST = "*args"
    REST_BY_NAME = "**kwargs"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of a forward.

    `listed` passes a sequence as a list, `sparse` as a dict by position, as text, which may leave
    some out; `constant`, if it holds a value, is always passed.
    """

    name: str
    kind: ParameterKind = ParameterKind.EITHER
    required: bool = True
    listed: bool = False
    sparse: bool = False
    constant: tuple[object, ...] = ()


class _Argument(Protocol):
    name: str
    type: object
    kwarg_only: bool

    def has_default_value(self) -> bool: ...


class Schema(Protocol):
    """The arguments of a TorchScript method (`torch._C.FunctionSchema`)."""

    arguments: Sequence[_Argument]


_PARAMETER_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: ParameterKind.POSITIONAL,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: ParameterKind.EITHER,
    inspect.Parameter.KEYWORD_ONLY: ParameterKind.KEYWORD,
    inspect.Parameter.VAR_POSITIONAL: ParameterKind.REST,
    inspect.Parameter.VAR_KEYWORD: ParameterKind.REST_BY_NAME,
}
_NUMBER_SUFFIX = re.compile(r"_?\d+$")
_SHORT_NAME = 4  # characters: shorter names are similar by chance
_SIMILARITY = 0.8
_VARIADIC = (ParameterKind.REST, ParameterKind.REST_BY_NAME)


def parameters_of(function: Callable[..., object]) -> tuple[Parameter, ...]:
    """Return the parameters of a Python function or bound method."""
    return tuple(
        Parameter(
            name=parameter.name,
            kind=_PARAMETER_KINDS[parameter.kind],
            required=parameter.default is parameter.empty
            and _PARAMETER_KINDS[parameter.kind] not in _VARIADIC,
            listed=_is_list(parameter.annotation),
        )
        for parameter in inspect.signature(function).parameters.values()
    )


def parameters_of_schema(schema: Schema) -> tuple[Parameter, ...]:
    """Return the parameters of a TorchScript method, without self."""
    return tuple(
        Parameter(
            name=argument.name,
            kind=ParameterKind.KEYWORD if argument.kwarg_only else ParameterKind.EITHER,
            required=not argument.has_default_value(),
            listed=_is_list(argument.type),
        )
        for argument in schema.arguments[1:]
    )


def _is_list(annotation: object) -> bool:
    text = str(annotation).lower().replace("typing.", "").removeprefix("optional[")
    return text.startswith("list[")


@dataclass(frozen=True, kw_only=True)
class Binding:
    """The parameter of each input: `places[i]` is its name and the path inside its value.

    Passes by position what it can, up to the first omitted parameter: hooks see positions, as in
    `model(x, mask)`. With `by_name`, passes by name, as in `model(**inputs)`.
    """

    places: tuple[ValuePath, ...]
    parameters: tuple[Parameter, ...]
    by_name: bool = False

    def call(self, function: Callable[..., object], tensors: Sequence[object]) -> object:
        """Call `function` with `tensors`, which are in the order of `places`."""
        parts: dict[str, dict[ValuePath, object]] = {}
        for place, tensor in zip(self.places, tensors, strict=True):
            parts.setdefault(place[0], {})[place[1:]] = tensor
        rest = any(p.kind is ParameterKind.REST and p.name in parts for p in self.parameters)
        by_position = rest or not self.by_name
        args: list[object] = []
        kwargs: dict[str, object] = {}
        for parameter in self.parameters:
            if parameter.name not in parts and not parameter.constant:
                by_position = rest
                continue
            value = _build_argument(parameter, parts)
            if parameter.kind is ParameterKind.REST and isinstance(value, tuple):
                args.extend(value)
            elif parameter.kind is ParameterKind.REST_BY_NAME and isinstance(value, dict):
                kwargs.update(value)
            elif parameter.kind is ParameterKind.POSITIONAL or (
                by_position and parameter.kind is ParameterKind.EITHER
            ):
                args.append(value)
            else:
                kwargs[parameter.name] = value
        return function(*args, **kwargs)


def _build_argument(parameter: Parameter, parts: dict[str, dict[ValuePath, object]]) -> object:
    if parameter.constant:
        return parameter.constant[0]
    value = nest_leaves(parts[parameter.name], sparse=parameter.sparse)
    return list(value) if parameter.listed and isinstance(value, tuple) else value


def bind_inputs(
    names: Iterable[str],
    parameters: Sequence[Parameter],
    *,
    call: str = "forward",
    by_name: bool = False,
) -> Binding:
    """Find the parameter of `call` for each input.

    Looks up the first dotted segment of a name among the parameters. If no name is a parameter,
    binds by order; if only some are not, binds those by order to the remaining required parameters.

    Raises:
        UsageError: an input has no parameter, or a required parameter no input.
    """
    paths = [tuple(name.split(".")) for name in names]
    homes = _find_parameters(list(dict.fromkeys(path[0] for path in paths)), parameters, call)
    places = tuple((*homes[path[0]], *path[1:]) for path in paths)
    given = {place[0] for place in places}
    lacking = [p.name for p in parameters if p.required and p.name not in given and not p.constant]
    if lacking:
        raise UsageError(
            f"{call} requires {', '.join(lacking)}, which the inputs lack"
            f" ({call} takes {_list_names(parameters)})",
            hint=Hint("add ", Option("input", f'"{lacking[0]}:float32[...]"')),
            option="input",
        )
    nested: dict[str, dict[ValuePath, object]] = {}
    for place in places:
        nested.setdefault(place[0], {})[place[1:]] = None
    sparse = {parameter.name for parameter in parameters if parameter.sparse}
    for name, part in nested.items():
        nest_leaves(part, sparse=name in sparse)
    return Binding(places=places, parameters=tuple(parameters), by_name=by_name)


def _find_parameters(
    heads: Sequence[str], parameters: Sequence[Parameter], call: str
) -> dict[str, ValuePath]:
    """Return the parameter, as the start of a place, for each first segment."""
    plain = [p for p in parameters if p.kind not in _VARIADIC and not p.constant]
    known = {p.name for p in plain} & set(heads)
    free = [
        p
        for p in plain
        if p.name not in known and p.kind is not ParameterKind.KEYWORD and (p.required or not known)
    ]
    unknown = [head for head in heads if head not in known]
    for head in unknown:
        _refuse_misspelt(head, [p.name for p in plain if p.name not in known], parameters, call)
    homes: dict[str, ValuePath] = {head: (head,) for head in known}
    homes.update({head: (p.name,) for head, p in zip(unknown, free, strict=False)})
    return homes | _find_variadic(unknown[len(free) :], parameters, call)


def _refuse_misspelt(
    head: str, names: Sequence[str], parameters: Sequence[Parameter], call: str
) -> None:
    """Reject a name similar to a parameter's, which would silently bind by order.

    A trailing number, as in `input_1`, is not a typo.
    """
    plain = _NUMBER_SUFFIX.sub("", head)
    if len(plain) < _SHORT_NAME or plain in {_NUMBER_SUFFIX.sub("", name) for name in names}:
        return
    near = difflib.get_close_matches(head, names, n=1, cutoff=_SIMILARITY)
    if near:
        raise UsageError(
            f"{call} has no parameter {head!r} (it takes {_list_names(parameters)})",
            hint=f"did you mean {near[0]!r}?",
        )


def _find_variadic(
    heads: Sequence[str], parameters: Sequence[Parameter], call: str
) -> dict[str, ValuePath]:
    """Return places in *args or **kwargs for inputs without a parameter."""
    rest = next((p.name for p in parameters if p.kind is ParameterKind.REST), None)
    if rest is not None:
        return {head: (rest, str(index)) for index, head in enumerate(heads)}
    by_name = next((p.name for p in parameters if p.kind is ParameterKind.REST_BY_NAME), None)
    names = [p.name for p in parameters if p.kind not in _VARIADIC]
    homes: dict[str, ValuePath] = {}
    for head in heads:
        near = difflib.get_close_matches(head, names, n=1)
        if by_name is None or near:
            raise UsageError(
                f"{call} has no parameter {head!r} (it takes {_list_names(parameters)})",
                hint=f"did you mean {near[0]!r}?" if near else f"name the inputs as {call} does",
            )
        homes[head] = (by_name, head)
    return homes


def _list_names(parameters: Iterable[Parameter]) -> str:
    marks = {ParameterKind.REST: "*", ParameterKind.REST_BY_NAME: "**"}
    return ", ".join(marks.get(p.kind, "") + p.name for p in parameters) or "nothing"
