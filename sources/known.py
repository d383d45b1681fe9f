"""What a checkpoint says of its inputs, beside what the user says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.signature import InputPattern, InputSpec, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..core.dims import Dim
    from .loaded import LoadedModule

# What a checkpoint says of its inputs, beside what the user says.


def merge_known_inputs(
    loaded: LoadedModule, patterns: Sequence[InputPattern]
) -> dict[str, InputSpec]:
    """What is known, where that is only assumed in the form that the user gives it.

    An input that the user states whole (dtype and every dim) then stands in for the known one, or
    beside it; its values stay as they are known unless others are given. A range that is given to a
    dim once holds in all known inputs. What the checkpoint's own program says is left as it is: the
    user cannot change it.

    Raises:
        UsageError: two inputs contradict each other.
    """
    if not loaded.assumed:
        return loaded.known
    ranges = {dim.name: dim for one in patterns for dim in one.dims or () if dim and dim.bounded}
    known = {name: _with_ranges(spec, ranges) for name, spec in loaded.known.items()}
    whole = [p for p in patterns if p.whole]
    # What follows a dim may follow one that is known alone: it is settled with all the others.
    plain = [replace(p, values=None) if p.values and p.values.follows else p for p in whole]
    stated = {spec.name: spec for spec in resolve(plain, {}).inputs} if whole and known else {}
    for name, spec in stated.items():
        usual = known.get(name)
        values = spec.values or (usual.values if usual else None)
        known[name] = replace(spec, values=values)
    return known


def _with_ranges(spec: InputSpec, ranges: Mapping[str | None, Dim]) -> InputSpec:
    """The input with the ranges that are given to its named dims."""
    dims = (dim if dim.name is None else ranges.get(dim.name, dim) for dim in spec.dims)
    return replace(spec, dims=tuple(dims))
