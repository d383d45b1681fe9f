"""What the user states: input specs, value ranges, static dims and custom operators."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from ..checkpoints.factory import import_object
from ..core.contract import Feed
from ..core.dims import check_typos
from ..core.errors import ErrorCode, UsageError, unknown_name_error
from ..core.grammar import parse_input
from ..core.signature import FLOATS, InputSpec, Signature
from .order import Source


class ValueProbing(Protocol):
    """What runs eager on values, as `relating.Trials` does."""

    signature: Signature

    def takes(self, arrays: Feed) -> bool:
        """Whether eager takes this feed."""

    def others(self, sizes: dict[str, int]) -> Iterator[Feed]:
        """Feeds of these sizes with other values."""


_MOST = 64  # runs of eager, for one input: a table of 2^24 rows takes some 40
_GROWS = 8  # times that the distance from the least value grows until eager rejects


def find_narrower_input(trials: ValueProbing, sizes: Mapping[str, int]) -> InputSpec | None:
    """The first integer input whose stated range goes beyond what eager takes, with less.

    The end is one for all sizes, as a table's is: it is found at the least, and is the same at
    these and the largest sizes. Each input has its share of runs.
    """
    free = trials.signature.free_dims
    places = [
        {name: dim.low for name, dim in free.items()},
        dict(sizes),
        {name: dim.high for name, dim in free.items()},
    ]
    first, *others = [at for number, at in enumerate(places) if at not in places[:number]]
    for spec in trials.signature.inputs:
        values = spec.values
        if spec.dtype in FLOATS or values is None or values.chosen or values.follows:
            continue
        search = _Search(trials, spec)
        low, high = int(values.low), int(values.high)
        end = search.largest(first, low, high)
        if end is not None and end < high and all(search.ends_at(at, end) for at in others):
            dims = tuple(replace(dim, bounded=not dim.chosen) for dim in spec.dims)
            return replace(spec, dims=dims, values=replace(values, high=end))
    return None


class _Search:
    """Runs eager with one input full of a value, the others as they are drawn, `_MOST` times."""

    def __init__(self, trials: ValueProbing, spec: InputSpec) -> None:
        self._trials, self._spec = trials, spec
        self._left = _MOST
        self._bases: dict[tuple[int, ...], Feed] = {}  # by sizes

    def largest(self, sizes: Mapping[str, int], low: int, high: int) -> int | None:
        """The largest value that eager takes; None where it takes none, or the runs are over."""
        if not self._starts_at(sizes, low):
            return None
        if self._takes(sizes, high):
            return high
        good, bad, step = low, high, 1
        while low + step < bad:  # most tables are far smaller than what was stated
            if not self._takes(sizes, low + step):
                bad = low + step
                break
            good, step = low + step, step * _GROWS
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if self._takes(sizes, middle) else (good, middle)
        return good if self._left > 0 else None

    def ends_at(self, sizes: Mapping[str, int], value: int) -> bool:
        """Whether eager takes the value at these sizes too, and not the next."""
        return (
            self._starts_at(sizes, value) and not self._takes(sizes, value + 1) and self._left > 0
        )

    def _starts_at(self, sizes: Mapping[str, int], value: int) -> bool:
        """Whether eager takes the value with one of the draws, which is the base from then on."""
        for base in self._trials.others(dict(sizes)):
            self._bases[tuple(sizes.values())] = base
            if self._takes(sizes, value):
                return True
        return False

    def _takes(self, sizes: Mapping[str, int], value: int) -> bool:
        import numpy as np

        self._left -= 1
        if self._left < 0:
            return False
        base = self._bases[tuple(sizes.values())]
        name = self._spec.name
        return self._trials.takes({**base, name: np.full_like(base[name], value)})


def check_input_specs(source: Source) -> None:
    """Refuse what is wrong whatever the checkpoint holds: syntax, and misspelt names of dims.

    Names are looked at where all dims are written and a factory builds the model: a sample or a
    checkpoint with its own code may name more of them.

    Raises:
        UsageError: `--input` or `--static` is wrong.
    """
    patterns = [parse_input(text) for text in source.inputs]
    whole = all(pattern.whole for pattern in patterns)
    if source.model is None or source.samples is not None or not whole:
        return
    dims = [dim for pattern in patterns for dim in pattern.dims or () if dim is not None]
    check_typos(dims, ())
    names = [name for dim in dims if dim.dynamic for name in (dim.free.name, dim.name) if name]
    for name in source.static:
        if name not in names and difflib.get_close_matches(name, names, n=1):
            raise unknown_name_error("dim in --static:", name, names)


def describe_static_dims(signature: Signature, names: Iterable[str]) -> str:
    """A note on the dims that are fixed at their opt sizes, those that follow from them too.

    Raises:
        UsageError: a name is no dim that varies.
    """
    left = signature.fix_at_opt(names).dynamic_dims
    fixed = {name: dim for name, dim in signature.dynamic_dims.items() if name not in left}
    told = ", ".join(f"{name} at {dim.opt} (was {dim})" for name, dim in fixed.items())
    return f"fixed by --static: {told}"


def load_functions(custom_ops: Mapping[str, str]) -> dict[str, Callable[..., object]]:
    """The function that each `package.module:fn` names, by operator.

    Raises:
        UsageError: there is none, or it cannot be called.
    """
    return {name: _load_function(spec) for name, spec in custom_ops.items()}


def _load_function(spec: str) -> Callable[..., object]:
    found = import_object(spec, "--custom-op")
    if not callable(found):
        raise UsageError(
            f"--custom-op {spec} is of type {type(found).__name__}, which cannot be called",
            hint="name a function that writes the operator: def fn(op, x): return op.Relu(x)",
            option="custom-op",
            code=ErrorCode.NOT_CALLABLE,
        )
    return found
