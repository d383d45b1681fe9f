"""What a checkpoint says of its inputs, beside what the user says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.signature import InputPattern, InputSpec, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .loaded import Loaded


def known_beside(loaded: Loaded, patterns: Sequence[InputPattern]) -> dict[str, InputSpec]:
    """What is known, where that is only assumed in the form that the user gives it.

    An input that the user states whole (dtype and every dim) then stands in for the known one, or
    beside it; its values stay as they are known unless others are given. What the checkpoint's own
    program says is left as it is: the user cannot change it.

    Raises:
        UsageError: two inputs contradict each other.
    """
    if not loaded.assumed:
        return loaded.known
    known = dict(loaded.known)
    whole = [p for p in patterns if p.dtype and p.dims is not None and None not in p.dims]
    # What follows a dim may follow one that is known alone: it is settled with all the others.
    plain = [replace(p, values=None) if p.values and p.values.follows else p for p in whole]
    stated = {spec.name: spec for spec in resolve(plain, {}).inputs} if whole and known else {}
    for name, spec in stated.items():
        usual = known.get(name)
        values = spec.values or (usual.values if usual else None)
        known[name] = replace(spec, values=values)
    return known
