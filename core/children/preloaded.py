"""Notice what makes a forked child differ from a new process: changes before libraries load.

In a new process, the user's code runs before most libraries are imported, and what it changes
(variables of the environment, functions of torch, import hooks) is what they see. A child of the
fork server has them already. Where the user's code has changed such a thing, the child gives up
and its call begins again in a new process. What both inherit has to be the same from the start.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ..process import StopCallError
from .process_tree import CHILD_MARK

_WATCHED = ("torch", "torchgen", "numpy", "onnx", "onnxscript", "onnx_ir", "onnxruntime", "sympy")
_CLASSES = (("torch", "Tensor"), ("torch.nn", "Module"), ("torch.nn", "Parameter"))
_METHODS_OF = tuple(f"{module}.{name}" for module, name in _CLASSES)
_OURS = f"{__name__.partition('.')[0]}."


class NewProcessNeededError(StopCallError):
    """The call must begin again in a new process; `reason` names what was changed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class ProcessSurroundings:
    """What a process passes on to the children that it starts."""

    environment: Mapping[str, str]
    path: tuple[str, ...]
    absent: frozenset[str]  # modules whose import fails
    umask: str
    limits: tuple[tuple[int, int], ...]
    cores: frozenset[int]
    priority: int

    @classmethod
    def of_this_process(cls, environment: Mapping[str, str]) -> ProcessSurroundings:
        """Read them, for a child with this environment."""
        import resource

        modules: Mapping[str, object] = sys.modules
        kinds = sorted({getattr(resource, n) for n in dir(resource) if n.startswith("RLIMIT_")})
        status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return cls(
            environment={name: environment[name] for name in environment if name != CHILD_MARK},
            path=tuple(sys.path),
            absent=frozenset(name for name, module in modules.items() if module is None),
            umask=next((line for line in status if line.startswith("Umask:")), ""),
            limits=tuple(resource.getrlimit(kind) for kind in kinds),
            cores=frozenset(os.sched_getaffinity(0)),
            priority=os.getpriority(os.PRIO_PROCESS, 0),
        )


@dataclass(frozen=True, kw_only=True)
class _Preloaded:
    """What the libraries left: the variables that they set, their functions, import hooks."""

    exempt: frozenset[str]
    functions: Mapping[str, Mapping[str, object]]
    hooks: tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class _CallStart:
    """The state in which the call of a forked child began."""

    preloaded: _Preloaded
    environment: Mapping[str, str]
    modules: Mapping[str, ModuleType | None]
    defaults: tuple[object, ...]


_preloaded: list[_Preloaded] = []
_call_start: list[_CallStart] = []


def remember_preloaded(exempt: Iterable[str]) -> None:
    """Mark this process as one that has preloaded modules, which set the variables `exempt`."""
    found = dict(_find_functions(dict(sys.modules)))
    hooks = (builtins.__import__, *sys.meta_path)
    _preloaded[:] = [_Preloaded(exempt=frozenset(exempt), functions=found, hooks=hooks)]


def watch_preloaded() -> None:
    """Remember the state in which the call of a forked child begins; nothing in a new process."""
    if _preloaded:
        _call_start[:] = [
            _CallStart(
                preloaded=_preloaded[0],
                environment=dict(os.environ),
                modules=dict(sys.modules),
                defaults=_defaults_of_torch(),
            )
        ]


def check_preloaded() -> None:
    """Check that nothing has changed which preloaded libraries would have seen.

    Raises:
        NewProcessNeededError: something has; never raised in a new process.
    """
    if not _call_start:
        return
    first = _call_start[0]
    for check in (
        _find_variable_change,
        _find_import_change,
        _find_function_change,
        _find_default_change,
    ):
        if reason := check(first):
            raise NewProcessNeededError(reason)


def _find_variable_change(first: _CallStart) -> str:
    now = dict(os.environ)
    names = {*now, *first.environment} - first.preloaded.exempt
    changed = sorted(name for name in names if now.get(name) != first.environment.get(name))
    return f"the variable {changed[0]} was changed" if changed else ""


def _find_import_change(first: _CallStart) -> str:
    now: Mapping[str, object] = sys.modules
    for name, module in first.modules.items():
        if name not in now or now[name] is not module:
            return f"the module {name} was replaced"
    ours = [one for one in sys.meta_path if type(one).__module__.startswith(_OURS)]
    hooks = [one for one in (builtins.__import__, *sys.meta_path) if one not in ours]
    changed = hooks != list(first.preloaded.hooks)
    return "an import hook was added or removed" if changed else ""


def _find_functions(
    modules: Mapping[str, ModuleType | None],
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the functions and classes of each watched module, and the methods of some classes."""
    for name, module in modules.items():
        if module is not None and name.partition(".")[0] in _WATCHED:
            yield name, {key: one for key, one in _members(module) if callable(one)}
    for name, kind in _CLASSES:
        if (found := getattr(modules.get(name), kind, None)) is not None:
            yield f"{name}.{kind}", {key: one for key, one in _members(found) if callable(one)}


def _members(owner: object) -> list[tuple[str, object]]:
    try:
        return list(vars(owner).items())
    except TypeError:  # an object in the place of a module
        return []


def _find_function_change(first: _CallStart) -> str:
    now = dict(_find_functions(first.modules))
    for owner, members in first.preloaded.functions.items():
        after = now.get(owner, {})
        added = set(after) - set(members) if owner in _METHODS_OF else set()
        for name in (*members, *(one for one in added if not one.startswith("__"))):
            if after.get(name) is not members.get(name):
                return f"{owner}.{name} was replaced"
    return ""


def _defaults_of_torch() -> tuple[object, ...]:
    torch = sys.modules.get("torch")
    if torch is None:
        return ()
    return torch.get_default_dtype(), torch.get_default_device()


def _find_default_change(first: _CallStart) -> str:
    changed = first.defaults != _defaults_of_torch()
    return "the default dtype or device of torch was changed" if changed else ""
