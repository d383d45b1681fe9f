"""The `gates` of a model, as records, and whether each of them can hold."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from .faults import Faults
from .keys import GATES
from .records import ALL_ARTIFACTS, Gate, KeyPath, Setting

_PATTERN_DEPTH = 3  # parts of a path with a pattern


def read_gates(said: Mapping[KeyPath, Setting]) -> tuple[Gate, ...]:
    """The gates that settings say, those of all artifacts first."""
    found: dict[str, dict[str, Setting]] = {}
    for path, one in said.items():
        if path[0] == GATES:
            pattern = path[1] if len(path) == _PATTERN_DEPTH else ALL_ARTIFACTS
            found.setdefault(pattern, {})[path[-1]] = one
    gates = (_make_gate(pattern, limits) for pattern, limits in found.items())
    return tuple(sorted(gates, key=lambda gate: gate.pattern != ALL_ARTIFACTS))


def _make_gate(pattern: str, limits: Mapping[str, Setting]) -> Gate:
    from ..pipeline.limit_text import parse_drop

    drop, size, ratio = (limits.get(n) for n in ("max-drop", "max-size", "max-latency-ratio"))
    return Gate(
        pattern=pattern,
        max_drop=None if drop is None else parse_drop(str(drop.value)),
        max_size=None if size is None else int(str(size.value)),
        max_latency_ratio=None if ratio is None else float(str(ratio.value)),
        told={name.replace("-", "_"): one.told for name, one in limits.items()},
    )


def check_gates(
    said: Iterable[Setting], artifacts: Sequence[str], faults: Faults, *, measures: bool
) -> None:
    """Keep gates in `faults` that would hold nothing: no artifact, or no data to measure on."""
    for one in said:
        if one.path[0] != GATES:
            continue
        place = one.told.of(one.name)
        if one.path[-1] == "max-drop" and not measures:
            faults.add(
                "nothing is measured without data", hint="add data, or leave it out", place=place
            )
        if not one.shared:
            _check_pattern(one, artifacts, faults)


def check_shared_gates(said: Iterable[Setting], artifacts: Sequence[str], faults: Faults) -> None:
    """Keep gates for all models in `faults` that are for no artifact of any of them."""
    for one in dict.fromkeys(said):
        if one.path[0] == GATES and one.shared:
            _check_pattern(one, artifacts, faults)


def _check_pattern(one: Setting, artifacts: Sequence[str], faults: Faults) -> None:
    pattern = one.path[1] if len(one.path) == _PATTERN_DEPTH else ALL_ARTIFACTS
    if any(fnmatchcase(name, pattern) or name == pattern for name in artifacts):
        return
    near = difflib.get_close_matches(pattern, artifacts, n=1)
    faults.add(
        f"it is for none of {', '.join(artifacts)}",
        place=one.told.of(one.name),
        hint=f"did you mean {near[0]!r}?"
        if near
        else "write an artifact's name or a pattern, as *-int8",
    )
