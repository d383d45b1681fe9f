"""Import and call the user's factory, the function or class that builds the module."""

from __future__ import annotations

import ast
import glob
import importlib
import inspect
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import TYPE_CHECKING, Union, get_args, get_origin

from ..core.call import ParameterKind, parameters_of
from ..core.errors import (
    CheckpointError,
    ErrorCode,
    Hint,
    Option,
    UsageError,
    first_line,
    nearest_names,
)
from ..core.nested_values import OBJECT_SPEC
from ..core.signature import Dim, InputSpec
from .loaded_module import HyperParameters, LoadedModule, Module
from .user_code import code_folders, locate_user_code, make_user_code_importable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

_FETCHES = "pretrained"  # the parameter for downloading weights in timm and torchvision
_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, kw_only=True)
class FactoryResult:
    """The module, and notes on arguments that the user did not give."""

    module: Module
    notes: tuple[str, ...] = ()


def call_factory(
    spec: str, arguments: Mapping[str, str], recorded: HyperParameters | None = None
) -> FactoryResult:
    """Call the factory `package.module:name` with `arguments`, converted by its annotations.

    Further arguments come from `recorded`. A factory that downloads weights by default gets
    `pretrained=False`: the checkpoint has them.

    Raises:
        UsageError: the factory or one of its arguments does not exist.
        CheckpointError: the user's code raised, or did not return a module.
    """
    from torch import nn

    _check_form(spec, "--model", "FACTORY")
    with make_user_code_importable(), use_fixed_seed():  # importing may build as well
        found = _resolve_object(spec, "--model")
        if isinstance(found, nn.Module):
            if arguments:
                raise UsageError(
                    f"--model-arg {next(iter(arguments))} has no effect: {spec} is a "
                    "module, and is not called",
                    hint="leave it out, or name the function or class that builds the module",
                    option="model-arg",
                    code=ErrorCode.NO_EFFECT,
                )
            return FactoryResult(module=found)
        if not callable(found):
            raise UsageError(
                f"--model {spec} is a {type(found).__name__}, which cannot be called",
                hint="name a function or class that builds the module",
                option="model",
                code=ErrorCode.NOT_CALLABLE,
            )
        more = _extra_arguments(found, arguments, recorded or HyperParameters())
        module = _call_with_arguments(found, arguments, spec, more)
    if not isinstance(module, nn.Module):
        raise CheckpointError(
            f"the factory {spec} returned {type(module).__name__}, not a torch.nn.Module",
            hint="return the module from the factory",
        )
    check_acyclic(module)
    shown = ", ".join(f"{name}={value!r}" for name, value in more.items() if name != _FETCHES)
    notes = [f"built with hyper_parameters of the checkpoint: {shown}"] if shown else []
    if more.get(_FETCHES) is False:
        notes.append(f"{spec} was given {_FETCHES}=False: the weights are the checkpoint's")
    return FactoryResult(module=module, notes=tuple(notes))


def check_acyclic(module: torch.nn.Module) -> None:
    """Check that no module contains itself, which would make traversals endless.

    Raises:
        CheckpointError: a module contains itself.
    """
    done: set[int] = set()
    open_parts: list[tuple[torch.nn.Module, str, bool]] = [(module, "", False)]
    above: set[int] = set()
    while open_parts:
        part, name, leaves = open_parts.pop()
        if leaves:
            above.discard(id(part))
            done.add(id(part))
        elif id(part) in above:
            raise CheckpointError(
                f"the module contains itself, as {name}",
                hint="keep a reference to a module that is not its part in a list or a closure",
            )
        elif id(part) not in done:
            above.add(id(part))
            open_parts.append((part, name, True))
            children = ((k, v) for k, v in part._modules.items() if v is not None)
            open_parts += [(child, f"{name}.{key}".strip("."), False) for key, child in children]


def _extra_arguments(
    factory: Callable[..., object], arguments: Mapping[str, str], recorded: HyperParameters
) -> dict[str, object]:
    """Return arguments of the factory that the user did not give.

    Raises:
        UsageError: a recorded value is not plain data, or weights would be downloaded.
    """
    signature = _factory_signature(factory)
    if _BOOLS.get(arguments.get(_FETCHES, "").lower()):
        raise UsageError(
            f"--model-arg {_FETCHES}={arguments[_FETCHES]} would download weights, but "
            "the checkpoint has them",
            hint=f"leave {_FETCHES} out",
            option="model-arg",
        )
    more = recorded.arguments(signature, arguments)
    fetches = signature.parameters.get(_FETCHES)
    if _FETCHES not in arguments and (
        more.get(_FETCHES) or (fetches is not None and fetches.default is True)
    ):
        more[_FETCHES] = False
    return more


def import_object(spec: str, option: str) -> object:
    """Import the object `package.module:name`; `option` is the user's option for it.

    Raises:
        UsageError: the module or name does not exist, or the text has another form.
        CheckpointError: the user's module raised while it was imported.
    """
    _check_form(spec, option, "NAME")
    with make_user_code_importable():
        return _resolve_object(spec, option)


def _resolve_object(spec: str, option: str) -> object:
    module_name, _, attribute = spec.partition(":")
    return _find_attribute(
        _import_module(module_name, f"{option} {spec}"), attribute, f"{option} {spec}"
    )


def _check_form(spec: str, option: str, name: str) -> None:
    if OBJECT_SPEC.fullmatch(spec):
        return
    path, _, given = spec.partition(":")
    dotted = path.removesuffix(".py").strip("./").replace("/", ".")
    is_file = path.endswith(".py")
    raise UsageError(
        f"{option} {spec!r} is not of the form PKG.MOD:{name}",
        hint=f"write {option} {dotted}:{given or name}"
        if is_file
        else f"for example {option} {'nets.resnet:build' if name == 'FACTORY' else 'app:name'}",
        option=option.removeprefix("--"),
    )


def _import_module(name: str, asked: str) -> ModuleType:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _user_code_error(f"importing {name}", error) from error
        near = nearest_names(name, _list_importable())
        raise UsageError(
            f"{asked}: no module {error.name!r} in {Path.cwd()} or installed",
            hint=f"did you mean {near[0]}?"
            if near
            else "run modelc in the folder that contains it",
            code=ErrorCode.NOT_FOUND,
        ) from error
    except (Exception, SystemExit) as error:
        raise _user_code_error(f"importing {name}", error) from error


def _list_importable() -> list[str]:
    """Return dotted names of the modules in the user's folders, two levels deep."""
    patterns = ("*.py", "*/*.py", "*/*/*.py")
    files = [
        Path(file)
        for folder in code_folders()
        for pattern in patterns
        # Path.glob fails on a folder that vanishes meanwhile
        for file in glob.glob(pattern, root_dir=folder)  # noqa: PTH207
    ]
    names = [".".join(file.with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names]


def _find_attribute(module: ModuleType, path: str, asked: str) -> object:
    found: object = module
    for part in path.split("."):
        if not hasattr(found, part):
            near = nearest_names(part, (name for name in dir(found) if name[0] != "_"), 3)
            place = getattr(module, "__file__", None) or module.__name__
            raise UsageError(
                f"{asked}: {module.__name__} has no {path!r}",
                hint=f"did you mean {' or '.join(near)}?"
                if near
                else f"name a function or class of {place}",
                code=ErrorCode.NOT_FOUND,
            )
        found = getattr(found, part)
    return found


def _call_with_arguments(
    factory: Callable[..., object],
    arguments: Mapping[str, str],
    spec: str,
    more: Mapping[str, object],
) -> object:
    signature = _factory_signature(factory)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    values: dict[str, object] = dict(more)
    for name, text in arguments.items():
        parameter = signature.parameters.get(name)
        if parameter is None and not open_ended:
            raise _unknown_parameter_error(name, signature, spec)
        annotation = inspect.Parameter.empty if parameter is None else parameter.annotation
        values[name] = _convert_argument(name, text, annotation)
    first = [
        values.pop(name)
        for name, parameter in signature.parameters.items()
        if parameter.kind is parameter.POSITIONAL_ONLY and name in values
    ]
    try:
        signature.bind(*first, **values)
    except TypeError as error:
        raise UsageError(
            f"--model {spec}: {error} (it takes {signature})",
            hint=Hint("add ", Option("model-arg", "KEY=VALUE"), " for it"),
            option="model",
        ) from error
    try:
        return factory(*first, **values)
    except (Exception, SystemExit) as error:
        raise _user_code_error(f"the factory {spec}", error) from error


@contextmanager
def use_fixed_seed() -> Iterator[None]:
    """Seed random numbers, so that weights missing in the file are the same in every load."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # the CPU's only, as forked
        yield


def _factory_signature(factory: Callable[..., object]) -> inspect.Signature:
    try:
        return inspect.signature(factory, eval_str=True)
    except NameError:  # annotations for type checkers only
        return inspect.signature(factory)
    except (TypeError, ValueError):  # built in C, without a signature
        return inspect.Signature([inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)])


def _unknown_parameter_error(name: str, signature: inspect.Signature, spec: str) -> UsageError:
    names = list(signature.parameters)
    near = nearest_names(name, names)
    return UsageError(
        f"--model-arg {name}: {spec} takes {', '.join(names) or 'no arguments'}",
        hint=f"did you mean {near[0]}?" if near else "leave it out, or use one of these names",
        option="model-arg",
    )


def _convert_argument(name: str, text: str, annotation: object) -> object:
    """Convert the text to the annotated type; without one, to a Python literal or text."""
    choices = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()
    if NoneType in choices and text.lower() == "none":
        return None
    kinds = [choice for choice in choices or (annotation,) if choice is not NoneType]
    for kind in (bool, int, float, str):
        if kind not in kinds:
            continue
        try:
            return _BOOLS[text.lower()] if kind is bool else kind(text)
        except (KeyError, ValueError) as error:
            if kinds == [kind]:
                raise UsageError(
                    f"--model-arg {name}={text}: {name} is {kind.__name__}",
                    hint=f"give a value of type {kind.__name__}",
                    option="model-arg",
                ) from error
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _user_code_error(what: str, error: Exception | SystemExit) -> CheckpointError:
    """Return the error for an exception of the user's code, with its innermost line."""
    place = locate_user_code(error)
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        return CheckpointError(
            f"{what} exited the program{place}: sys.exit({code})",
            hint="move the code that exits below `if __name__ == '__main__':`",
        )
    return CheckpointError(
        f"{what} raised {type(error).__name__}{place}: {first_line(error)}",
        hint="the error is in the model's code; run the factory in Python to see all of it",
    )


# What a module that a factory built says of its inputs itself: timm's do. Duck-typed.


_BATCH = Dim(name="batch", low=1, opt=2, high=4, bounded=False)  # eager determines the bounds
_CONFIG_NAMES = ("pretrained_cfg", "default_cfg")
_IMAGE_RANK = 3  # channels, height, width
_POSITIONAL_KINDS = (ParameterKind.POSITIONAL, ParameterKind.EITHER)


def wrap_built_module(
    module: torch.nn.Module, *, kind: str, notes: tuple[str, ...]
) -> LoadedModule:
    """Wrap the filled module of a factory, with its image input if its config has one."""
    takes = parameters_of(module.forward)
    sizes = _image_size(module)
    first = next((p.name for p in takes if p.kind in _POSITIONAL_KINDS), None)
    known: dict[str, InputSpec] = {}
    if sizes is not None and first is not None:
        dims = (_BATCH, *(Dim.of_size(size) for size in sizes))
        known[first] = InputSpec(name=first, dtype="float32", dims=dims)
    return LoadedModule(
        kind=kind, module=module, takes=takes, known=known, assumed=True, notes=notes
    )


def _image_size(module: torch.nn.Module) -> tuple[int, ...] | None:
    """Return channels (those of the first convolution), height and width."""
    for name in _CONFIG_NAMES:
        config = getattr(module, name, None)
        size = _config_value(config, "input_size")
        if not isinstance(size, (tuple, list)) or len(size) != _IMAGE_RANK:
            continue
        if all(isinstance(one, int) and one > 0 for one in size):
            return (
                _input_channels(module, _config_value(config, "first_conv")) or size[0],
                *size[1:],
            )
    return None


def _config_value(config: object, name: str) -> object:
    if isinstance(config, Mapping):
        return config.get(name)
    return getattr(config, name, None)


def _input_channels(module: torch.nn.Module, place: object) -> int | None:
    names = place if isinstance(place, (tuple, list)) else (place,)
    if not names or not isinstance(names[0], str):
        return None
    try:
        found = getattr(module.get_submodule(names[0]), "in_channels", None)
    except AttributeError:
        return None
    return found if isinstance(found, int) else None
