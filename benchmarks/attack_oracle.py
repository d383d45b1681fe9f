"""Right or wrong, said without modelc's judge: artifacts beside eager over the whole domain.

Eager is the net built anew, in float32, as its user calls it. A feed counts where eager takes it.
A value may be off by 1e-3 of the largest, of the whole output and of its index in the last axis;
what is off by more is excused only where eager itself moves nearly as far when its inputs and
weights are off by one part in four million.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from modelc.benchmarks.coverage_check import array_of, call
from modelc.benchmarks.open_artifacts import Run, leaves

Array = NDArray[Any]
Feed = Mapping[str, Array]
CLOSE = 1e-3
_SMALL = 2e-6  # of the whole output's peak: what roundoff leaves in a small channel
_NOISE = 2.0**-22
_ALLOWED = 50.0
_DRAWS = 8
_CHANNELS = 4096
_TINY = 1e-7
_FILL = 1e30  # masked values, as float32's lowest: no measure for the others
_DEAD = 1e-3  # of the spread that a channel has in eager
_SHARE = 0.2  # of the channels may be below the least


@dataclass(kw_only=True)
class Finding:
    """What came of one artifact: feeds that agree, and those that do not by kind."""

    feeds: int = 0
    wrong: list[str] = field(default_factory=list)
    raises: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        """`WRONG` is silent; `RAISES` says so itself, in a domain that it claims to hold for."""
        return "WRONG" if self.wrong else "RAISES" if self.raises else "right"

    @property
    def summary(self) -> str:
        """The first of the worst, and how many."""
        worst = self.wrong or self.raises
        return f"{worst[0]} ({len(worst)} of {self.feeds} feeds)" if worst else ""


class Eager:
    """The net as its user runs it, and how far it moves by roundoff."""

    def __init__(self, build: Callable[[], nn.Module], *, method: str = "") -> None:
        self._build = build
        self._method = method

    def run(self, feed: Feed, net: nn.Module | None = None) -> list[Array]:
        """The tensors that it returns, in order; a net of its own for each feed."""
        module = net or self._build()
        taken = getattr(module, self._method) if self._method else module
        given = {name: torch.from_numpy(array.copy()) for name, array in feed.items()}
        with torch.no_grad():
            return [array_of(leaf) for leaf in leaves(call(taken, given))]

    def is_undefined(self, feed: Feed) -> bool:
        """Whether a float is cast to an integer that cannot hold it: C++ leaves that open."""
        watch: Any = _Casts()  # type: ignore[no-untyped-call]  # torch's own
        with watch:
            self.run(feed)
        return bool(watch.undefined)

    def plain(self, feed: Feed) -> list[Array]:
        """What it returns without fast paths of attention; nothing where it does not run so."""
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                return self.run(feed)
        except Exception:  # noqa: BLE001 - whatever the net raises
            return []
        finally:
            torch.backends.mha.set_fastpath_enabled(before)

    def run_perturbed(self, feed: Feed, seed: int) -> Iterator[list[Array]]:
        """Runs with inputs and weights off by a hair."""
        rng = np.random.default_rng(seed)
        for _ in range(_DRAWS):
            net = self._build()
            with torch.no_grad():
                for weight in net.parameters():
                    if weight.is_floating_point():
                        weight.add_(torch.randn_like(weight) * weight.abs() * _NOISE)
            try:
                yield self.run({n: _off(a, rng) for n, a in feed.items()}, net)
            except Exception:  # noqa: BLE001 - what it does not take says nothing
                continue


class _Casts(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Watches casts of floats to integers."""

    undefined = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # the base class has it so
        wanted = (kwargs or {}).get("dtype")
        given = args[0] if args else None
        if (
            isinstance(given, torch.Tensor)
            and isinstance(wanted, torch.dtype)
            and given.is_floating_point()
            and not (wanted.is_floating_point or wanted.is_complex or wanted is torch.bool)
        ):
            ends = torch.iinfo(wanted)
            inside = (given >= ends.min) & (given < float(ends.max) + 1)
            self.undefined |= not bool(inside.all())
        return func(*args, **(kwargs or {}))


def _off(array: Array, rng: np.random.Generator) -> Array:
    if array.dtype.kind != "f" or not array.size:
        return array
    finite = np.abs(array[np.isfinite(array)])
    scale = float(finite.max()) if finite.size else 1.0
    noise = rng.uniform(-1, 1, array.shape) * _NOISE * (scale or 1.0)
    return np.asarray(array + noise).astype(array.dtype)


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Feeds that eager takes, with what it gives."""

    eager: Eager
    feeds: list[tuple[str, dict[str, Array], list[Array]]]
    rejected: list[str]


def truth(eager: Eager, feeds: Iterator[tuple[str, dict[str, Array]]]) -> Truth:
    """Run eager on all feeds."""
    taken, rejected = [], []
    for summary, feed in feeds:
        try:
            taken.append((summary, feed, eager.run(feed)))
        except Exception as error:  # noqa: BLE001 - whatever the net raises
            rejected.append(f"{summary}: {type(error).__name__}: {str(error)[:120]}")
    return Truth(eager=eager, feeds=taken, rejected=rejected)


def judge(run: Run, outputs: Sequence[str], wanted: Truth, *, rough: bool = False) -> Finding:
    """All feeds through one artifact; `rough` is for lower precision: by groups, in dB."""
    found = Finding()
    pooled: list[tuple[list[Array], list[Array]]] = []
    for at, (summary, feed, eager) in enumerate(wanted.feeds):
        found.feeds += 1
        try:
            named = run(feed)
        except Exception as error:  # noqa: BLE001 - the runtime's own
            lines = str(error).strip().splitlines() or [""]
            found.raises.append(f"{summary}: {type(error).__name__}: {lines[-1][:160]}")
            continue
        if len(outputs) != len(eager):
            found.wrong.append(f"{len(outputs)} outputs where eager returns {len(eager)} tensors")
            break
        given = [named[name] for name in outputs]
        if rough:
            pooled.append((eager, given))
            wrong = next(filter(None, map(_form, eager, given)), "")
        else:
            wrong = _differs(eager, given, outputs)
            wrong = (wrong and _explain_excuse(wanted.eager, feed, eager, given, at)) or wrong
            wrong = "" if wrong == _IS_EXCUSED else wrong
        if wrong:
            found.wrong.append(f"{summary}: {wrong}")
    if rough and not found.wrong:
        found.wrong.extend(_rough(pooled, outputs))
    return found


def _form(eager: Array, given: Array) -> str:
    if eager.shape != given.shape:
        return f"shape {list(given.shape)} where eager has {list(eager.shape)}"
    if eager.dtype != given.dtype:
        return f"dtype {given.dtype} where eager has {eager.dtype}"
    return ""


def _differs(eager: Sequence[Array], given: Sequence[Array], names: Sequence[str]) -> str:
    for name, one, other in zip(names, eager, given, strict=True):
        summary = _form(one, other)
        if summary:
            return f"{name}: {summary}"
        off, limit = _off_by(one, other)
        if (off > limit).any():
            worst = np.unravel_index(np.argmax(np.where(off > limit, off, -1)), off.shape)
            where = f"{list(map(int, worst))}" if off.ndim else ""
            return (
                f"{name}{where}: {other[worst]} where eager has {one[worst]}"
                f" ({int((off > limit).sum())} of {off.size})"
            )
    return ""


def _off_by(eager: Array, given: Array) -> tuple[Array, Array]:
    """How far off each element is, and how far it may be; NaN and infinities must be the same."""
    if eager.dtype.kind not in "fc":
        return (eager != given).astype(float), np.zeros(eager.shape)
    wide = np.complex128 if eager.dtype.kind == "c" else np.float64
    one, other = eager.astype(wide), given.astype(wide)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.where(same, 0.0, np.abs(other - one))
    off = np.where(np.isnan(off), np.inf, off)
    size = np.where(np.isfinite(one), np.abs(one), 0.0)
    size = np.where(size < _FILL, size, 0.0)
    peak = float(size.max()) if size.size else 0.0
    limit = np.full(one.shape, CLOSE * peak + _TINY)
    if one.ndim > 1 and 1 < one.shape[-1] <= _CHANNELS:
        group = size.max(axis=tuple(range(one.ndim - 1)), initial=0.0)
        limit = np.minimum(limit, CLOSE * group + _SMALL * peak + _TINY)
    return off, np.where(np.abs(one) < _FILL, limit, CLOSE * np.abs(one))


_IS_EXCUSED = "excused"


def _explain_excuse(
    eager: Eager, feed: Feed, wanted: Sequence[Array], given: Sequence[Array], seed: int
) -> str:
    """Whether eager itself moves so far; empty where it does not."""
    if eager.is_undefined(feed):
        return _IS_EXCUSED
    draws = list(eager.run_perturbed(feed, seed))
    plain = eager.plain(feed)
    for at, (one, other) in enumerate(zip(wanted, given, strict=True)):
        if one.dtype != other.dtype:
            return ""
        same = [draw[at] for draw in draws if draw[at].shape == one.shape]
        if one.shape != other.shape:
            if not any(draw[at].shape == other.shape for draw in draws):
                return ""
            continue
        off, limit = _off_by(one, other)
        allowed = np.maximum(limit, _movement(one, same))
        if (~_accept_fast_path_zeros(one, other, plain[at : at + 1]) & (off > allowed)).any():
            return ""
    return _IS_EXCUSED


def _accept_fast_path_zeros(wanted: Array, given: Array, plain: Sequence[Array]) -> Array:
    """Where eager's fast path fills zeros in, and the artifact is what its plain path computes."""
    if not plain or plain[0].shape != wanted.shape or wanted.dtype.kind != "f":
        return np.zeros(wanted.shape, bool)
    off, limit = _off_by(plain[0], given)
    return np.asarray((wanted == 0) & (off <= limit))


def _movement(wanted: Array, draws: Sequence[Array]) -> Array:
    """How far each element may be off by what eager itself moves in the draws."""
    moves = np.zeros(wanted.shape)
    for draw in draws:
        moves = np.maximum(moves, _off_by(wanted, draw)[0])
    if wanted.dtype.kind not in "fc" or not wanted.size:
        return moves
    rms = float(np.sqrt(np.mean(np.where(np.isfinite(moves), moves, 0.0) ** 2)))
    return np.maximum(_ALLOWED * moves, 10 * rms)


_LEAST_DB = 5.0


def _rough(
    pooled: Sequence[tuple[list[Array], list[Array]]], names: Sequence[str]
) -> Iterator[str]:
    """Lower precision: each index of the last axis and of axis 1 has 5 dB, and varies."""
    for at, name in enumerate(names):
        pairs = [(one[at], other[at]) for one, other in pooled]
        if not pairs or pairs[0][0].dtype.kind != "f" or pairs[0][0].ndim == 1:
            continue
        for axis in {1, pairs[0][0].ndim - 1}:
            count = {one.shape[axis] for one, _ in pairs}
            if len(count) > 1 or max(count) > _CHANNELS:
                continue
            yield from _groups(name, axis, pairs)


def _groups(name: str, axis: int, pairs: Sequence[tuple[Array, Array]]) -> Iterator[str]:
    def flat(which: int) -> Array:
        parts = [np.moveaxis(p[which], axis, -1).reshape(-1, p[which].shape[axis]) for p in pairs]
        return np.concatenate(parts).astype(np.float64)

    eager, given = flat(0), flat(1)
    power = ((eager - eager.mean(axis=0)) ** 2).sum(axis=0)
    error = ((given - eager) ** 2).sum(axis=0)
    decibels = 10 * np.log10((power + 1e-30) / (error + 1e-30))
    dead = (given.std(axis=0) < _DEAD * eager.std(axis=0)) & (eager.std(axis=0) > 0)
    if dead.any():
        yield f"{name}: {int(dead.sum())} of {dead.size} on axis {axis} are constant"
    elif (decibels < _LEAST_DB).mean() > _SHARE:
        median = np.median(decibels)
        yield f"{name}: axis {axis} has {decibels.min():.1f} dB at worst, {median:.1f} usually"
