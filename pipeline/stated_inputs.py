"""Facts that the user states: input specs, value ranges, static dims and custom operators."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from ..checkpoints.factory import import_object
from ..checkpoints.loaded_module import LoadedModule, merge_known_inputs
from ..checkpoints.sample_inputs import infer_specs
from ..core.contract import Array, Feed
from ..core.dims import bisect_boundary
from ..core.errors import ErrorCode, Hint, Option, UsageError, unknown_name_error
from ..core.grammar import check_typos, parse_input
from ..core.signature import FLOATS, InputSpec, Signature, merge_inputs
from ..validators.feeds import find_unranged
from .order import Source


class ValueProbing(Protocol):
    """Runs eager on trial values; `dim_constraints.EagerTrials` implements it."""

    signature: Signature

    def takes(self, arrays: Feed) -> bool:
        """Return whether eager accepts this feed."""

    def others(self, sizes: dict[str, int]) -> Iterator[Feed]:
        """Yield feeds of these sizes with other values."""


_MOST = 64  # runs of eager per input; a table of 2^24 rows takes about 40
_GROWS = 8  # growth factor of the distance from the least value until eager rejects


def find_narrower_input(trials: ValueProbing, sizes: Mapping[str, int]) -> InputSpec | None:
    """Find the first integer input whose stated range exceeds what eager accepts.

    The upper end must not depend on sizes, as the end of a table does not: it is searched at the
    smallest sizes and confirmed at `sizes` and at the largest. Each input has its own budget of
    runs.

    Returns:
        The input with its range narrowed, or None.
    """
    places = [trials.signature.low_sizes, dict(sizes), trials.signature.high_sizes]
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
    """Runs eager with one input filled with a value and the others as drawn, `_MOST` times."""

    def __init__(self, trials: ValueProbing, spec: InputSpec) -> None:
        self._trials, self._spec = trials, spec
        self._left = _MOST
        self._bases: dict[tuple[int, ...], Feed] = {}  # by sizes

    def largest(self, sizes: Mapping[str, int], low: int, high: int) -> int | None:
        """Return the largest value that eager accepts; None if there is none or runs ran out."""
        if not self._starts_at(sizes, low):
            return None
        if self._takes(sizes, high):
            return high
        good, bad, step = low, high, 1
        while low + step < bad:  # most tables are far smaller than the stated range
            if not self._takes(sizes, low + step):
                bad = low + step
                break
            good, step = low + step, step * _GROWS
        good = bisect_boundary(lambda value: self._takes(sizes, value), good, bad)
        return good if self._left > 0 else None

    def ends_at(self, sizes: Mapping[str, int], value: int) -> bool:
        """Return whether eager accepts the value at these sizes and rejects the next one."""
        return (
            self._starts_at(sizes, value) and not self._takes(sizes, value + 1) and self._left > 0
        )

    def _starts_at(self, sizes: Mapping[str, int], value: int) -> bool:
        """Return whether eager accepts the value within some draw, which becomes the base."""
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
    """Reject input specs that are wrong for any checkpoint: syntax and misspelt dim names.

    Names are checked only where all dims are written and a factory builds the model; a sample or
    a checkpoint with its own code may define more of them.

    Raises:
        UsageError: `--input` or `--static` is wrong.
    """
    patterns = [parse_input(text) for text in source.inputs]
    whole = all(pattern.whole for pattern in patterns)
    if source.model is None or source.samples is not None or not whole:
        return
    dims = [dim for pattern in patterns for dim in pattern.dims or () if dim is not None]
    check_typos(dims, ())
    names = [name for dim in dims if dim.dynamic for name in (*dim.bases, dim.name) if name]
    for name in source.static:
        if name not in names and difflib.get_close_matches(name, names, n=1):
            raise unknown_name_error("dim in --static:", name, names)


def describe_static_dims(signature: Signature, names: Iterable[str]) -> str:
    """Describe the dims fixed at their opt sizes, including those that follow them.

    Raises:
        UsageError: a name is not a dynamic dim.
    """
    left = signature.fix_at_opt(names).dynamic_dims
    fixed = {name: dim for name, dim in signature.dynamic_dims.items() if name not in left}
    dims = ", ".join(f"{name} at {dim.opt} (was {dim})" for name, dim in fixed.items())
    return f"fixed by --static: {dims}"


def import_callable(spec: str, option: str, hint: str) -> Callable[..., object]:
    """Import the function `package.module:function`; `option` is the user's option for it.

    Raises:
        UsageError: it does not exist or is not callable; then with the `hint`.
        CheckpointError: its module raises.
    """
    found = import_object(spec, option)
    if not callable(found):
        raise UsageError(
            f"{option} {spec} is of type {type(found).__name__}, which cannot be called",
            hint=hint,
            option=option.removeprefix("--"),
            code=ErrorCode.NOT_CALLABLE,
        )
    return found


def load_functions(custom_ops: Mapping[str, str]) -> dict[str, Callable[..., object]]:
    """Import the function that each `package.module:fn` names, by operator.

    Raises:
        UsageError: it does not exist or is not callable.
    """
    hint = "name a function that writes the operator: def fn(op, x): return op.Relu(x)"
    return {name: import_callable(spec, "--custom-op", hint) for name, spec in custom_ops.items()}


def settle_signature(
    source: Source, loaded: LoadedModule, samples: Mapping[str, Array] | None
) -> Signature:
    """Return the inputs that the user states, with what samples or the checkpoint know of them.

    Raises:
        UsageError: nothing says what the inputs are, or two statements contradict each other.
    """
    patterns = [parse_input(text) for text in source.inputs]
    known = merge_known_inputs(loaded, patterns) if samples is None else infer_specs(samples)
    if not source.inputs and not known:
        name = next(iter(loaded.parameters), "x")
        raise UsageError(
            f"the inputs of {source.name} are unknown",
            hint=Hint(
                "give ",
                Option("input", f'"{name}:float32[batch=1..8,3,224,224]"'),
                " or ",
                Option("samples", "SAMPLE"),
            ),
            option="input",
            code=ErrorCode.INPUTS_UNKNOWN,
        )
    written = [dim for one in patterns for dim in one.dims or () if dim is not None]
    named = (dim.name or "" for spec in known.values() for dim in spec.dims if dim.name)
    check_typos(written, named)
    return merge_inputs(patterns, known)


def warn_of_values(signature: Signature, samples: Mapping[str, Array] | None) -> tuple[str, ...]:
    """Warn about integer inputs whose values are unknown, fixed, or known only from a sample."""
    unknown = find_unranged(signature, samples)
    sampled = [name for name in find_unranged(signature, None) if name not in unknown]
    return (
        *(
            f"{name} is verified on 0 and 1 only: state its range, as in --input '{name}{{0..999}}'"
            for name in unknown
        ),
        *(
            f"{name} is verified on values as in the sample only: state more, as --input "
            f"'{name}{{0..999}}'"
            for name in sampled
        ),
        *(
            f"{spec.name} is verified at 1 value only: state more, as --input '{spec.name}{{0..9}}'"
            for spec in signature.inputs
            if spec.name == "position_ids" and spec.values and spec.values.low == spec.values.high
        ),
    )
