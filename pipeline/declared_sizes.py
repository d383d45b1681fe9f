"""The sizes that a model file declares, where it is compared with another file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..converters.registry import TARGETS
from ..core.dims import Dim, default_opt
from ..core.errors import UsageError
from ..core.grammar import parse_input
from ..core.signature import InputSpec
from .recorded_run import is_foreign_program
from .runtime_reference import load_model

if TYPE_CHECKING:
    from ..core.contract import TensorInfo
    from ..core.records import Checkpoint
    from .judge_case import Candidate
    from .order import Source
    from .run_progress import Progress

_SIZES = re.compile(r"(?:(\d*)\.\.)?(\d+)", re.ASCII)  # as in 3, 1..4 and ..64


def narrow_to_declared(
    source: Source, checkpoint: Checkpoint, candidate: Candidate, progress: Progress
) -> Source:
    """State the sizes that the candidate declares, where the reference is a file without any.

    Sizes that modelc chooses for the reference would reject a file for its bounds alone. What the
    user states stays: a file must take these sizes.
    """
    artifact = checkpoint.kind in [one.NAME for one in TARGETS]
    if source.inputs or source.samples or not artifact or is_foreign_program(checkpoint.kind):
        return source
    known = load_model(checkpoint, trust=source.trust).known
    infos = candidate.target.inspect(candidate.path).inputs
    ranges = _find_ranges(known, infos)
    if not ranges:
        return source
    patterns = tuple(filter(None, (_state_ranges(spec, ranges) for spec in known.values())))
    progress.note(f"sizes that {candidate.name} declares: {', '.join(map(str, ranges.values()))}")
    return replace(source, inputs=patterns)


def _find_ranges(known: Mapping[str, InputSpec], infos: Sequence[TensorInfo]) -> dict[str, Dim]:
    """Return the declared ranges by the name of the reference's free dim."""
    named = {info.name: info for info in infos}
    pairs = list(zip(known.values(), infos, strict=False))
    if any(name in named for name in known):
        pairs = [(spec, named[name]) for name, spec in known.items() if name in named]
    ends: dict[str, tuple[int, int]] = {}
    for spec, info in pairs:
        for dim, text in zip(spec.dims, info.dims, strict=False):
            found = _SIZES.fullmatch(text)
            if dim.name is None or dim.bounded or dim.relation is not None or not found:
                continue
            high = int(found[2])
            low = high if found[1] is None else int(found[1] or 0)
            least, most = ends.get(dim.name, (dim.low, high))
            ends[dim.name] = max(least, low), min(most, high)
    return {
        name: Dim(name=name, low=low, opt=default_opt(low, high), high=high)
        for name, (low, high) in ends.items()
        if low <= high
    }


def _state_ranges(spec: InputSpec, ranges: Mapping[str, Dim]) -> str:
    """Return the input with these ranges as for `--input`; empty without any."""
    dims = [ranges.get(dim.name or "") if dim.relation is None else None for dim in spec.dims]
    text = f"{spec.name}[{','.join(str(dim or '_') for dim in dims)}]"
    try:
        parse_input(text)
    except UsageError:
        return ""  # a name that --input cannot write
    return text if any(dims) else ""
