"""Sets of weights in one checkpoint, such as raw and EMA: choose the one for the module."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, prod
from typing import TYPE_CHECKING, Any

from ..core.errors import CheckpointError, ErrorCode, Hint, Option, unknown_name_error
from ..core.torch_file import read_torch_file
from .sniff import SAFETENSORS, STATE_DICT, sniff_kind
from .weight_loading import find_renaming

if TYPE_CHECKING:
    from pathlib import Path

    import torch

TOP_KEY = "."  # the key of weights at the top level of the file
USUAL_KEYS = ("state_dict", "model_state_dict", "model")  # Lightning; the tutorials; many trainers
_TRAINING_KEYS = re.compile(r"optim|sched|scaler|rng")  # keys of tensors that are not weights
_DEPTH = 3  # of dicts in dicts
_SHOWN = 6  # sets that a message lists
_MAX_MODELS = 3  # at most this many parts of one set count as separate sets
_LISTED = 20  # parts of names that a hint lists


@dataclass(frozen=True, kw_only=True)
class WeightSet:
    """One state dict, selected with --weights-key `key`.

    `shapes` has the shapes of its tensors by name; `prefix` precedes the names in the file.
    `read` returns a tensor by name.
    """

    key: str
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Any]  # a tensor
    prefix: str = ""

    @property
    def parameters(self) -> int:
        """The number of its elements."""
        return sum(map(prod, self.shapes.values()))

    def is_in(self, key: str) -> bool:
        """Whether the set is the one of a key, or a part of it."""
        return key in (TOP_KEY, self.key) or self.key.startswith(f"{key}.")

    def within(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of the set, by their names in it."""
        return {
            name.removeprefix(self.prefix): value
            for name, value in found.items()
            if name.startswith(self.prefix)
        }

    def parts(self) -> Iterator[WeightSet]:
        """Yield a set per first part of the names, if all names have one and there are several."""
        named: dict[str, dict[str, tuple[int, ...]]] = {}
        for name, shape in self.shapes.items():
            head, dot, rest = name.partition(".")
            if not dot:
                return
            named.setdefault(head, {})[rest] = shape
        for head, shapes in named.items() if len(named) > 1 else ():
            yield WeightSet(
                key=head if self.key == TOP_KEY else f"{self.key}.{head}",
                shapes=shapes,
                read=lambda name, head=head: self.read(f"{head}.{name}"),  # type: ignore[misc]
                prefix=f"{self.prefix}{head}.",
            )


@dataclass(frozen=True, kw_only=True)
class WeightSetSummary:
    """One set for `modelc inspect`.

    `differs` has the distance of each other set of the same names and shapes, by key: the norm of
    the difference over the norm of this set.
    """

    key: str
    tensors: int
    parameters: int
    differs: dict[str, float] = field(default_factory=dict)


def find_states(found: object) -> dict[str, Mapping[str, object]]:
    """Return the state dicts in a loaded file by key, well-known keys first.

    A state dict is a dict with string keys and at least one tensor.
    """
    states = dict(_walk_states(found, (), _DEPTH))
    usual = [key for key in USUAL_KEYS if key in states]
    return {key: states[key] for key in (*usual, *(k for k in states if k not in usual))}


def _walk_states(
    found: object, path: tuple[str, ...], depth: int
) -> Iterator[tuple[str, Mapping[str, object]]]:
    import torch
    from torch import nn

    if isinstance(found, nn.Module) and path:
        found = found.state_dict()
    if not isinstance(found, Mapping):
        return
    if any(isinstance(value, torch.Tensor) for value in found.values()):
        yield ".".join(path) or TOP_KEY, found
    for key, value in found.items() if depth else ():
        if isinstance(key, str) and not _TRAINING_KEYS.search(key):
            yield from _walk_states(value, (*path, key), depth - 1)


def make_weight_set(key: str, state: Mapping[str, object]) -> WeightSet:
    """Return the set of a loaded state dict."""
    import torch

    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    # a nested tensor has no shape; loading it reports that
    shapes = {n: () if one.is_nested else tuple(one.shape) for n, one in tensors.items()}
    return WeightSet(key=key, shapes=shapes, read=tensors.__getitem__)


def choose_weight_set(
    sets: Sequence[WeightSet], module: torch.nn.Module, *, key: str | None, strict: bool, path: str
) -> tuple[WeightSet, tuple[str, ...]]:
    """Return the set to fill a module with, and notes on its key.

    Args:
        sets: at least one; the first is used if none fits.
        module: receives the weights.
        key: the set that the user chose.
        strict: require exactly the module's tensors.
        path: the path of the file.

    Raises:
        UsageError: there is no set of that key.
        CheckpointError: several sets fit, and they differ.
    """
    if key is not None:
        chosen = _find_by_key(key, sets)
        return chosen, _subkeys(chosen)
    wanted = _ModuleShapes.of(module)
    among = sets
    fits = [one for one in sets if wanted.takes(one)]
    if not fits:
        parts = [part for one in sets for part in one.parts()]
        if fits := [part for part in parts if wanted.takes(part)]:
            among = parts
    if not fits and not strict:
        fits = wanted.nearest(sets)
    chosen, *others = fits or sets[:1]
    differing = [one for one in others if _relative_difference(chosen, one) != 0]
    if differing:
        raise _ambiguous_error([chosen, *differing], path)
    return chosen, _subkeys(chosen, *(_note_unused(among, chosen, others, wanted) if fits else ()))


def _find_by_key(key: str, sets: Sequence[WeightSet]) -> WeightSet:
    """Return the set of a key, which may be a prefix of names in another set."""
    parts = [part for one in sets for part in one.parts()]
    by_key = {one.key: one for one in (*parts, *sets)}
    if key not in by_key:
        raise unknown_name_error(
            "--weights-key", key, [one.key for one in (*sets, *parts[:_LISTED])]
        )
    return by_key[key]


def _subkeys(chosen: WeightSet, *more: str) -> tuple[str, ...]:
    if chosen.key == TOP_KEY:
        return ("; ".join(("the weights at the top level were used", *more)),) if more else ()
    return ("; ".join((f"the weights have the key {chosen.key!r}", *more)),)


def _note_unused(
    sets: Sequence[WeightSet], chosen: WeightSet, equal: Sequence[WeightSet], wanted: _ModuleShapes
) -> Iterator[str]:
    """Yield notes on the sets that are not used."""
    for one in sets[:_SHOWN]:
        if one in equal:
            yield f"{one.key!r} is identical"
        elif one is not chosen:
            count, all_ = wanted.matches(one), len(wanted.shapes)
            yield f"of {one.key!r}, {count} of the module's {all_} tensors fit"


@dataclass(frozen=True, kw_only=True)
class _ModuleShapes:
    """The shapes of a module by name, None for any shape; `tied` names may be missing."""

    shapes: Mapping[str, tuple[int, ...] | None]
    tied: frozenset[str]

    @classmethod
    def of(cls, module: torch.nn.Module) -> _ModuleShapes:
        import torch
        from torch.nn.parameter import is_lazy

        shapes: dict[str, tuple[int, ...] | None] = {}
        seen: dict[int, str] = {}
        tied: set[str] = set()
        for name, value in module.state_dict(keep_vars=True).items():
            if not isinstance(value, torch.Tensor):
                continue
            shapes[name] = None if is_lazy(value) else tuple(value.shape)
            if id(value) in seen:
                tied |= {name, seen[id(value)]}
            seen[id(value)] = name
        return cls(shapes=shapes, tied=frozenset(tied))

    def _rename_keys(self, one: WeightSet) -> dict[str, tuple[int, ...]]:
        rename = find_renaming(one.shapes, self.shapes)
        return {rename(name): shape for name, shape in one.shapes.items()}

    def _fits(self, name: str, shape: tuple[int, ...]) -> bool:
        return name in self.shapes and self.shapes[name] in (None, shape)

    def takes(self, one: WeightSet) -> bool:
        """Whether the set has exactly the module's tensors."""
        names = self._rename_keys(one)
        missing = set(self.shapes) - set(names) - self.tied
        return not missing and all(self._fits(name, shape) for name, shape in names.items())

    def matches(self, one: WeightSet) -> int:
        """Return how many of the module's tensors the set has."""
        return sum(self._fits(name, shape) for name, shape in self._rename_keys(one).items())

    def nearest(self, sets: Iterable[WeightSet]) -> list[WeightSet]:
        """Return the sets with the most of the module's tensors; empty if none has any."""
        counted = [(self.matches(one), one) for one in sets]
        most = max((count for count, _ in counted), default=0)
        return [one for count, one in counted if count == most] if most else []


def _relative_difference(one: WeightSet, other: WeightSet) -> float | None:
    """Return the norm of the difference over the norm of `one`; None if names or shapes differ."""
    if dict(one.shapes) != dict(other.shapes):
        return None
    apart, norm = 0.0, 0.0
    for name in one.shapes:
        here, there = _as_floats(one.read(name)), _as_floats(other.read(name))
        apart += float((here - there).square().sum())
        norm += float(here.square().sum())
    return (apart / norm) ** 0.5 if norm else float(apart > 0)


def percent_text(share: float) -> str:
    """Format a share as `0.83%` or `120%`."""
    percent = 100 * share
    return f"{percent:,.0f}%" if percent >= 10 else f"{percent:.2g}%"  # noqa: PLR2004


def _as_floats(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    plain = tensor.dequantize() if tensor.is_quantized else tensor
    return (torch.view_as_real(plain) if plain.is_complex() else plain).double()


def _ambiguous_error(fits: Sequence[WeightSet], path: str) -> CheckpointError:
    keys = [repr(one.key) for one in fits[:_SHOWN]]
    sizes = [f"{len(one.shapes)} tensors, {one.parameters:,} parameters" for one in fits]
    size = f"each of {sizes[0]}" if len(set(sizes)) == 1 else f"of {' and '.join(sizes)}"
    apart = _relative_difference(*fits[:2])
    difference = "" if apart is None else f"; they differ by {percent_text(apart)} of their norm"
    return CheckpointError(
        f"{path} has {len(fits)} sets of weights that fit the module, {' and '.join(keys)}, "
        f"{size}{difference}",
        hint=Hint(
            "add ",
            Option("weights-key", ", or --weights-key ".join(one.key for one in fits[:_SHOWN])),
        ),
        option="weights-key",
        code=ErrorCode.AMBIGUOUS_WEIGHTS,
    )


def weights_kind(path: Path) -> str:
    """Return the kind of a checkpoint of weights only; empty for other files."""
    try:
        kind = sniff_kind(path)
    except (CheckpointError, OSError):
        return ""
    return kind if kind in (STATE_DICT, SAFETENSORS) else ""


def describe_weight_sets(path: Path) -> tuple[WeightSetSummary, ...]:
    """Describe the sets of weights in a file of torch.save or safetensors.

    Raises:
        CheckpointError: the file cannot be read, or contains pickled objects.
    """
    from .state_dict_checkpoint import read_weight_set

    if sniff_kind(path) == SAFETENSORS:
        sets = [read_weight_set([path])]
    else:
        sets = [
            make_weight_set(key, state) for key, state in find_states(read_torch_file(path)).items()
        ]
    if len(sets) == 1 and _are_whole_models(parts := list(sets[0].parts())):
        sets = parts
    apart: dict[str, dict[str, float]] = {one.key: {} for one in sets}
    for one, other in itertools.combinations(sets, 2):
        differs = _relative_difference(one, other)
        if differs is not None and isfinite(differs):
            apart[one.key][other.key] = differs
    return tuple(
        WeightSetSummary(
            key=one.key,
            tensors=len(one.shapes),
            parameters=one.parameters,
            differs=apart[one.key],
        )
        for one in sets
    )


def _are_whole_models(parts: Sequence[WeightSet]) -> bool:
    """Whether the parts of one set look like whole models, such as student and teacher."""
    same = all(dict(one.shapes) == dict(parts[0].shapes) for one in parts)
    return 1 < len(parts) <= _MAX_MODELS and same and len(parts[0].shapes) > 1
