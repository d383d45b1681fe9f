"""`--method`: convert a method or a submodule instead of the module's forward."""

from __future__ import annotations

import ast
import difflib
import inspect
import linecache
import textwrap
from dataclasses import replace
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..core.call import Parameter, parameters_of, parameters_of_schema
from ..core.errors import CheckpointError, ErrorCode, Hint, Option, UsageError
from .sniff import HUGGINGFACE, PT2

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from .loaded_module import LoadedModule

_SHOWN = 10  # methods that an error lists
# The method that each wrapper class calls; not an attribute, which scripting would include.
_CALLED: WeakKeyDictionary[type, str] = WeakKeyDictionary()


def with_method(loaded: LoadedModule, name: str, *, part: str = "") -> LoadedModule:
    """Return the loaded module with the method `name` in place of forward.

    `name` may be a path (`decoder.step`). A submodule is used directly; for a method, the module
    is wrapped in one whose forward calls it. `part` is the name under which `--part` asked for it.

    Raises:
        UsageError: the module has no such method.
    """
    asked = Option("part", f"{part}={name}") if part else Option("method", name)
    if loaded.kind == PT2:
        raise UsageError(
            f"{asked}: an exported program has only forward",
            hint=Hint(
                "leave ",
                Option(asked.name),
                " out, or give the checkpoint that it was exported from",
            ),
            option=asked.name,
            code=ErrorCode.UNSUPPORTED,
        )
    place, _, last = name.rpartition(".")
    owner = _find_owner_module(loaded.module, place, asked)
    found = _find_member(owner, last, asked)
    module = found if _is_module(found) else _make_caller(owner, last, found)
    takes = _method_parameters(found)
    names = {parameter.name for parameter in takes}
    by_name = loaded.kind == HUGGINGFACE  # by parameter name; other kinds know forward only
    known = {key: spec for key, spec in loaded.known.items() if by_name and key in names}
    return replace(loaded, module=module, takes=takes, known=known, call=name)


def list_methods(module: torch.nn.Module) -> tuple[str, ...]:
    """Return the public methods with an argument that the module's classes add to torch's."""
    from torch import jit, nn

    if isinstance(module, jit.ScriptModule):
        inner: Any = module._c  # untyped in torch
        return tuple(inner._method_names())
    found: dict[str, None] = {}
    for kind in type(module).__mro__:
        if issubclass(nn.Module, kind):
            break
        found.update((key, None) for key, value in vars(kind).items() if _is_method(key, value))
    return tuple(found)


def _is_method(name: str, value: object) -> bool:
    if name.startswith("_") or not isinstance(value, FunctionType):
        return False
    code = value.__code__
    return code.co_argcount + code.co_kwonlyargcount > 1 or bool(code.co_flags & inspect.CO_VARARGS)


def _find_owner_module(module: torch.nn.Module, place: str, asked: Option) -> torch.nn.Module:
    # not get_submodule, which ScriptModules reject
    parts: dict[str, torch.nn.Module] = dict(module.named_modules())
    if place in parts:
        return parts[place]
    near = difflib.get_close_matches(place, [path for path in parts if path], n=1)
    raise UsageError(
        f"{asked}: {type(module).__name__} has no submodule {place!r}",
        hint=f"did you mean {near[0]}.{asked.value.rpartition('.')[2]}?"
        if near
        else f"name a submodule or a method: {', '.join(dict(module.named_children())) or 'none'}",
        option=asked.name,
    )


def _find_member(owner: torch.nn.Module, last: str, asked: Option) -> Any:
    """Return the bound method or submodule.

    Raises:
        UsageError: there is none of that name, or every module has it, such as `half`.
    """
    from torch import nn

    found = getattr(owner, last, None)
    is_torchs = getattr(type(owner), last, None) is getattr(nn.Module, last, ())
    if callable(found) and not is_torchs:
        return found
    children = [path for path, _ in owner.named_children()]
    names = list(list_methods(owner)) or children
    inside = [path for path, _ in owner.named_modules() if path.endswith(f".{last}")]
    near = inside[:1] or difflib.get_close_matches(last, {*names, *children}, n=3)
    plain = found is None or is_torchs
    said = f"has {last!r}, a {type(found).__name__}, not a method"
    what = f"has no method {last!r}" if plain else said
    listed = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    raise UsageError(
        f"{asked}: {type(owner).__name__} {what}",
        hint=f"did you mean {' or '.join(near)}?" if near else f"it has {listed or 'none'}",
        option=asked.name,
        code=ErrorCode.NOT_FOUND,
    )


def _is_module(value: object) -> bool:
    from torch import nn

    return isinstance(value, nn.Module)


def _method_parameters(called: Any) -> tuple[Parameter, ...]:
    """Return the parameters of a method or of a submodule's forward, scripted or not."""
    function = called.forward if _is_module(called) else called
    schema = getattr(function, "schema", None)
    return parameters_of(function) if schema is None else parameters_of_schema(schema)


def find_owner(module: torch.nn.Module) -> torch.nn.Module | None:
    """Return the module whose method a wrapper of `with_method` calls; None for other modules."""
    inner: torch.nn.Module | None = getattr(module, "model", None)
    return inner if type(module) in _CALLED else None


def rebind_method(module: torch.nn.Module, owner: torch.nn.Module) -> torch.nn.Module:
    """Return a wrapper that calls the same method of another owner.

    Raises:
        CheckpointError: the owner has no such method.
    """
    name = _CALLED[type(module)]
    method = getattr(owner, name, None)
    if not callable(method):
        raise CheckpointError(
            f"--method {name}: the {type(owner).__name__} that --patch returned has no such method",
            hint="return a module that has it, or change the one given",
            option="method",
        )
    return _make_caller(owner, name, method)


def _make_caller(owner: torch.nn.Module, name: str, method: Any) -> torch.nn.Module:
    """Return a module whose forward calls the method; `owner` is its submodule `model`."""
    from torch import nn

    def pass_on(self: Any, *args: object, **kwargs: object) -> object:
        return getattr(self.model, name)(*args, **kwargs)

    class Called(nn.Module):
        """Calls a method of the user's module."""

        def __init__(self) -> None:
            super().__init__()
            self.model = owner
            self.training = owner.training

        forward = _compile_forward(method, name) or pass_on

    _CALLED[Called] = name
    return Called()


def _compile_forward(method: Any, name: str) -> Callable[..., object] | None:
    """Return a forward with the method's parameters, as torch.jit.script needs it.

    None if the method's source is not available: torch.jit.script then fails.
    """
    written = (
        _schema_signature(method, name)
        if hasattr(method, "schema")
        else _source_signature(method, name)
    )
    if written is None:
        return None
    text, names = written
    file = f"<method {name}>"
    scope = dict(names)
    try:
        # compiled from the user's signature, with its annotations and defaults
        exec(compile(text, file, "exec", dont_inherit=True), scope)
    except (NameError, AttributeError, TypeError):
        return None  # names known to type checkers only, or of an enclosing function
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    forward: Callable[..., object] = scope["forward"]
    return forward


def _source_signature(method: Any, name: str) -> tuple[str, dict[str, Any]] | None:
    function = getattr(method, "__func__", None)
    if not isinstance(method, MethodType) or not isinstance(function, FunctionType):
        return None
    if hasattr(function, "__wrapped__"):  # a decorator may change the arguments
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    (node, *_) = tree.body
    if not isinstance(node, ast.FunctionDef) or node.args.vararg or node.args.kwarg:
        return None
    arguments = node.args
    given = [*arguments.posonlyargs, *arguments.args][1:]
    if not (arguments.posonlyargs or arguments.args):
        return None
    passed = [*(a.arg for a in given), *(f"{a.arg}={a.arg}" for a in arguments.kwonlyargs)]
    line = f"return self.model.{name}({', '.join(passed)})"
    first = (arguments.posonlyargs or arguments.args)[0]
    first.arg, first.annotation = "self", None
    return f"def forward({ast.unparse(arguments)}):\n    {line}\n", dict(function.__globals__)


def _schema_signature(method: Any, name: str) -> tuple[str, dict[str, Any]] | None:
    """Return the signature of a method in a TorchScript archive."""
    import typing

    import torch

    arguments = method.schema.arguments[1:]
    parts = [
        f"{a.name}: {a.type.annotation_str}" + (f" = {a.default_value!r}" if a.has_default_value()
        else "")
        for a in arguments
    ]  # fmt: skip
    passed = ", ".join(f"{a.name}={a.name}" for a in arguments)
    names = {key: getattr(typing, key) for key in ("Optional", "List", "Dict", "Tuple")}
    text = f"def forward({', '.join(['self', *parts])}):\n    return self.model.{name}({passed})\n"
    return text, {**names, "Tensor": torch.Tensor, "torch": torch}
