"""State that a module keeps between runs, and whether two runs of one feed agree."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from ..core.contract import Array

_SMALL_TENSOR_BYTES = 1 << 20  # larger tensors are not copied: weights stay in memory once


class ModuleSnapshot:
    """A module's state before its first run: attributes, their entries, and small tensors."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._names = {id(part): name for name, part in module.named_modules()}
        self._parts = list(_plain_parts(module))
        self._now = _ModuleState(self._parts)

    def list_changes(self) -> tuple[str, ...]:
        """Return the names of attributes and buffers that changed."""
        now = {id(part): vars(part) for part in self._parts}
        names = [
            ".".join(filter(None, (self._names[part], name)))
            for part, name in self._now.compare(now)
        ]
        return tuple(dict.fromkeys(names))

    def restore(self) -> None:
        """Restore the module's state before its first run."""
        self._now.restore()

    @contextmanager
    def use_initial_state(self) -> Iterator[None]:
        """Restore the initial state within the context, and the current one afterwards."""
        after = _ModuleState(self._parts)
        self._now.restore()
        try:
            yield
        finally:
            after.restore()


class _ModuleState:
    """Every attribute of the modules, the entries of dicts and lists in them, and small tensors.

    Large tensors are not copied, except tables that forward writes into (`max_norm`).
    """

    def __init__(self, parts: list[torch.nn.Module]) -> None:
        import torch

        self._held = [(part, dict(vars(part))) for part in parts]
        inner = [value for _, held in self._held for value in held.values()]
        self._entries: list[tuple[Any, Any]] = [
            (value, value.copy()) for value in inner if type(value) in (dict, list, OrderedDict)
        ]
        kept = [value for _, copied in self._entries for value in _entries_by_key(copied).values()]
        tensors = {id(one): one for one in (*inner, *kept) if isinstance(one, torch.Tensor)}
        self._versions = {key: _write_count(one) for key, one in tensors.items()}
        written = {id(part.weight) for part in parts if getattr(part, "max_norm", None) is not None}
        self._copies = [
            (one, one.detach().clone())
            for key, one in tensors.items()
            if one.layout is torch.strided and (one.nbytes <= _SMALL_TENSOR_BYTES or key in written)
        ]

    def compare(self, now: dict[int, dict[str, Any]]) -> Iterator[tuple[int, str]]:
        """Yield the module's id and name of each attribute, buffer or entry that changed."""
        copies = {id(value): copied for value, copied in self._entries}
        for part, held in self._held:
            mine = now[id(part)]
            for name in {**held, **mine}:
                before, after = held.get(name), mine.get(name)
                if before is not after or (name in held) != (name in mine):
                    yield id(part), name
                elif id(before) in copies:
                    yield from (
                        (id(part), key) for key in self._compare_entries(copies[id(before)], after)
                    )
                elif self._is_written(after):
                    yield id(part), name

    def _compare_entries(self, before: Any, after: Any) -> Iterator[str]:
        """Yield the keys of a dict or list, such as `_buffers`, whose entries changed."""
        old, new = _entries_by_key(before), _entries_by_key(after)
        for key in {**old, **new}:
            if old.get(key) is not new.get(key) or self._is_written(new.get(key)):
                yield str(key)

    def _is_written(self, value: object) -> bool:
        version = _write_count(value)
        return version != self._versions.get(id(value), version)

    def restore(self) -> None:
        """Restore everything."""
        import torch

        for part, held in self._held:
            vars(part).clear()
            vars(part).update(held)
        for value, before in self._entries:
            value.clear()
            value.extend(before) if isinstance(value, list) else value.update(before)
        with torch.no_grad():
            for tensor, values in self._copies:
                if not torch.equal(tensor, values):
                    tensor.copy_(values)


def _plain_parts(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    import torch

    for part in module.modules():
        if not isinstance(part, torch.jit.ScriptModule):
            yield part


def _write_count(value: object) -> int:
    """Return how often a tensor was written to; 0 if it is not a tensor or does not count."""
    import torch

    if not isinstance(value, torch.Tensor):
        return 0
    try:
        return int(value._version)
    except RuntimeError:
        return 0


def _entries_by_key(value: Any) -> dict[object, object]:
    return dict(enumerate(value)) if isinstance(value, list) else dict(value)


# Whether two runs of one feed gave the same outputs.


# of the peak: threads and alignment may reorder float sums; dropout changes more
SAME_TOLERANCE = 1e-5


def list_embeddings(module: torch.nn.Module) -> frozenset[str]:
    """Return the names of the parameters that are tables of embeddings."""
    from torch import nn

    tables = {id(one.weight) for one in module.modules() if isinstance(one, nn.Embedding)}
    return frozenset(name for name, one in module.named_parameters() if id(one) in tables)


def find_unstable_outputs(
    first: Mapping[str, Array], second: Mapping[str, Array]
) -> tuple[str, ...]:
    """Return outputs that are not in both runs, or differ by over SAME_TOLERANCE of the peak."""
    names = dict.fromkeys([*first, *second])
    return tuple(
        name
        for name in names
        if name not in first or name not in second or not _is_same(first[name], second[name])
    )


def explain_instability(training: Sequence[str]) -> str:
    """Return the likely cause of different outputs."""
    if training:
        return f"in training mode: {', '.join(training)}"
    return "possibly functional dropout, random numbers or state in forward"


def _is_same(first: Array, second: Array) -> bool:
    import numpy as np

    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.dtype.kind not in "fc":
        return bool(np.array_equal(first, second))
    finite = np.isfinite(first)
    peak = float(np.abs(first[finite]).max(initial=0.0))
    return bool(np.allclose(first, second, rtol=0.0, atol=SAME_TOLERANCE * peak, equal_nan=True))
