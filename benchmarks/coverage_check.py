"""The independent check of coverage.py: modelc's own judge takes no part in it.

Eager's outputs are taken apart under the documented names, and compared by shape, dtype and
allclose. The one thing that it shares with modelc is what `--input` texts mean.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from modelc.benchmarks.coverage_feeds import Arrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

Run = Callable[[Arrays], Arrays]
CLOSE = 1e-3  # rtol, and atol as a share of eager's largest
_STATES = {
    "keys": "key", "values": "value", "conv_states": "conv_state",
    "recurrent_states": "recurrent_state",
}  # fmt: skip
_FILL = 1e30  # masked values, as float32's lowest: no measure of what the others may be off by


@dataclass(kw_only=True)
class Truth:
    """What eager gives: the feeds that it takes, its outputs, what it returns that is no tensor.

    `close` is how far off an artifact may be: relative, and absolute as a share of the largest.
    """

    feeds: list[Arrays] = field(default_factory=list)
    outputs: list[Arrays] = field(default_factory=list)
    left_out: tuple[str, ...] = ()
    rejected: list[str] = field(default_factory=list)
    close: float = CLOSE


def truth(
    module: nn.Module, feeds: Sequence[Arrays], *, close: float = CLOSE, caches: bool = True
) -> Truth:
    """Run eager on each feed, in order, on one module: a state moves on as artifacts' must.

    Without `caches` these count as no tensors.
    """
    found = Truth(close=close)
    for feed in feeds:
        try:
            with torch.no_grad():
                value = call(module, {name: torch.from_numpy(a.copy()) for name, a in feed.items()})
        except Exception as error:  # noqa: BLE001 - a feed that the case's own model does not take
            found.rejected.append(f"{type(error).__name__}: {str(error)[:160]}")
            continue
        found.feeds.append(feed)
        named, left_out = name_outputs(value, taken=list(feed), caches=caches)
        found.outputs.append(named)
        found.left_out = left_out
    return found


def call(module: Callable[..., object], given: Mapping[str, Tensor]) -> object:
    """By keyword where forward has the names, else by position; dotted names are nested."""
    takes = inspect.signature(getattr(module, "forward", module)).parameters
    nested = nest(given)
    by_name = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    named = {name for name, p in takes.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    only_position = any(p.kind is p.POSITIONAL_ONLY for name, p in takes.items() if name in nested)
    if not only_position and (set(nested) <= named or (by_name and set(nested) & named)):
        return module(**nested)
    return module(*nested.values())


def nest(given: Mapping[str, Tensor]) -> dict[str, object]:
    """`{"pair.0": a, "pair.1": b}` becomes `{"pair": (a, b)}`; other keys make a dict."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in given.items():
        head, _, rest = name.partition(".")
        groups.setdefault(head, {})[rest] = tensor
    found: dict[str, object] = {}
    for head, parts in groups.items():
        inner: object = parts[""] if set(parts) == {""} else nest(parts)
        if isinstance(inner, dict) and all(key.isdigit() for key in inner):
            inner = tuple(inner[key] for key in sorted(inner, key=int))
        found[head] = inner
    return found


def name_outputs(
    value: object, taken: Sequence[str], *, caches: bool = True
) -> tuple[Arrays, tuple[str, ...]]:
    """Arrays by their documented names (docs/inputs.md), and the types of what is no tensor."""
    tensors, left_out = tensors_of(value, taken, caches=caches)
    return {name: array_of(tensor) for name, tensor in tensors.items()}, left_out


def tensors_of(
    value: object, taken: Sequence[str], *, caches: bool = True
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The same before they are arrays; a cache of transformers gives its states, unless it may not.

    The states of the only cache are below `present`, those of one of several below its place.
    """
    found: dict[str, Tensor] = {}
    left_out: list[str] = []
    leaves = list(_leaves(value, ()))
    alone = sum(is_cache(leaf) for _, leaf in leaves) == 1
    parts: list[tuple[tuple[str, ...], object]] = []
    for path, leaf in leaves:
        if caches and is_cache(leaf):
            parts += _leaves(states_of(leaf), ("present",) if alone else path)
        else:
            parts.append((path, leaf))
    for path, leaf in parts:
        name = ".".join(path if path and not path[0].isdigit() else ("output", *path))
        if not isinstance(leaf, Tensor):
            left_out.append(f"{name} ({type(leaf).__name__})")
            continue
        name = f"{name}_out" if name in taken else name
        while name in found or name in taken:
            name += "_"
        found[name] = leaf
    return found, tuple(left_out)


def is_cache(value: object) -> bool:
    """Whether transformers, where it is loaded, counts it as one of its caches."""
    library = sys.modules.get("transformers.cache_utils")
    return library is not None and isinstance(value, library.Cache)


def states_of(cache: Any) -> dict[str, object]:
    """What the layers of a cache keep, by the layer's number; both sides of an encoder-decoder."""
    if hasattr(cache, "cross_attention_cache"):
        own, cross = (
            states_of(one) for one in (cache.self_attention_cache, cache.cross_attention_cache)
        )
        return {
            layer: {"decoder": own.get(layer), "encoder": cross.get(layer)}
            for layer in dict.fromkeys((*own, *cross))
        }
    found: dict[str, object] = {}
    for number, layer in enumerate(cache.layers):
        states = {_STATES[name]: value for name, value in vars(layer).items() if name in _STATES}
        found[str(number)] = {
            name: next(iter(value.values())) if isinstance(value, dict) and len(value) == 1
            else value
            for name, value in states.items()
        }  # fmt: skip
    return found


def array_of(tensor: Tensor) -> NDArray[np.generic]:
    """A copy: what a model keeps may change with its next call. bfloat16 is read as float32."""
    plain = tensor.detach().cpu()
    plain = plain.float() if plain.dtype is torch.bfloat16 else plain
    array: NDArray[np.generic] = plain.clone().resolve_conj().resolve_neg().numpy()
    return array


def _leaves(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    if value is None:
        return
    if isinstance(value, Mapping):
        parts = [(str(key), part) for key, part in value.items()]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = list(zip(value._fields, value, strict=True))
    elif isinstance(value, list | tuple):
        parts = [(str(index), part) for index, part in enumerate(value)]
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [(one.name, getattr(value, one.name)) for one in fields(value)]
    else:
        yield path, value
        return
    for key, part in parts:
        yield from _leaves(part, (*path, key))


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """What is wrong with an artifact, none where `said` is empty; whether it gives no sign of it.

    One that rejects feeds which eager takes is not silent: its user sees an error.
    """

    said: str = ""
    silent: bool = False


def disagreement(run: Run, wanted: Truth) -> Disagreement:
    """How the first feed that disagrees does so, a silent one before others, and how many do."""
    silent: list[str] = []
    rejected: list[str] = []
    for feed, outputs in zip(wanted.feeds, wanted.outputs, strict=True):
        try:
            found = run({name: array.copy() for name, array in feed.items()})
        except Exception as error:  # noqa: BLE001 - the runtime's own: it rejects the feed
            lines = str(error).strip().splitlines() or [""]
            said = f"rejects the feed: {type(error).__name__}: {lines[-1][:200]}"
            rejected.append(f"at {_sizes(feed)}: {said}")
            continue
        difference = differs(outputs, found, close=wanted.close)
        if difference:
            silent.append(f"at {_sizes(feed)}: {difference}")
    wrong = [*silent, *rejected]
    if not wrong:
        return Disagreement()
    counted = f"{wrong[0]} ({len(wrong)} of {len(wanted.feeds)} feeds)"
    return Disagreement(said=counted, silent=bool(silent))


def differs(wanted: Arrays, found: Arrays, *, close: float = CLOSE) -> str:
    """What is wrong with the outputs of one feed; empty where nothing is.

    Each of eager's is looked for by its name; further ones are no fault.
    """
    for name, array in wanted.items():
        if name not in found:
            return f"no output {name} among {', '.join(found) or 'none'}"
        difference = _differs(array, found[name], close)
        if difference:
            return f"{name}: {difference}"
    return ""


def _differs(wanted: NDArray[np.generic], found: NDArray[np.generic], close: float) -> str:
    if wanted.shape != found.shape:
        return f"shape {list(found.shape)} where eager has {list(wanted.shape)}"
    if wanted.dtype != found.dtype:
        return f"dtype {found.dtype} where eager has {wanted.dtype}"
    if not np.issubdtype(wanted.dtype, np.inexact):
        wrong = int((wanted != found).sum())
        return f"{wrong} of {wanted.size} {wanted.dtype} values differ" if wrong else ""
    finite = wanted[np.isfinite(wanted) & (np.abs(wanted) < _FILL)]
    peak = float(np.abs(finite).max()) if finite.size else 0.0
    if np.allclose(found, wanted, rtol=close, atol=close * peak, equal_nan=True):
        return ""
    with np.errstate(invalid="ignore"):
        error = np.abs(np.subtract(found, wanted, dtype=np.result_type(wanted, np.float64)))
    if np.isnan(error).all():
        return "NaN where eager has none, or none where it has"
    return f"off by {np.nanmax(error):.3g} of {peak:.3g}"


def _sizes(feed: Arrays) -> str:
    return " ".join(f"{name}[{','.join(map(str, a.shape))}]" for name, a in feed.items())
