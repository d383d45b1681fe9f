"""The domain of an artifact: what its verdict is a statement about, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .dims import Dim
from .signature import InputSpec, Signature


@dataclass(frozen=True, kw_only=True)
class Domain:
    """The inputs for which an artifact was judged, and the settings under which it was run.

    `inputs` have an interval or a relation for each dim, a dtype, and for integers the range of
    values; a dim or range with `chosen` set was found by modelc, the others were stated. `compute`
    is the share of the artifact's work by the dtype it is done in, 0 to 1; empty where the format
    has one precision. `settings` are those of the runtime that judged it, by their own names.
    """

    inputs: tuple[InputSpec, ...]
    compute: dict[str, float] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def free_dims(self) -> dict[str, Dim]:
        """The dims whose sizes may be chosen, by name."""
        return Signature(inputs=self.inputs).free_dims

    def contains(self, sizes: Mapping[str, int]) -> bool:
        """Whether free dims of these sizes lie in it; names that it does not have are ignored."""
        return all(
            dim.low <= sizes[name] <= dim.high
            for name, dim in self.free_dims.items()
            if name in sizes
        )

    def describe(self) -> str:
        """What varies: `batch 1..8, ids 0..99; chosen: height 32..256 step 32`."""
        stated, chosen = ([*self._texts(chosen=of)] for of in (False, True))
        parts = [", ".join(stated)] if stated else []
        if chosen:
            text = ", ".join(chosen)
            parts.append(f"chosen: {text}" if stated else f"{text} (chosen)")
        return "; ".join(parts) or "fixed shapes"

    def describe_chosen(self) -> str:
        """The dims and integer ranges that modelc found; a dim with one size as `height 224`."""
        return ", ".join(self._texts(chosen=True))

    def as_input(self) -> str:
        """The inputs as `--input` reads them, one after another: what artifacts carry inside."""
        return " ".join(str(spec) for spec in self.inputs)

    def _texts(self, *, chosen: bool) -> Iterator[str]:
        """Each dim with its interval, then each integer input with its values."""
        known: dict[str | None, Dim] = {
            dim.name: dim for spec in self.inputs for dim in spec.dims if dim.name is not None
        }
        for dim in known.values():
            if dim.chosen is chosen and (dim.dynamic or chosen):
                yield _describe_dim(dim, known)
        for spec in self.inputs:
            values = spec.values
            if (
                values is not None
                and values.chosen is chosen
                and not spec.dtype.startswith("float")
            ):
                yield f"{spec.name} {str(values)[1:-1]}"


def _describe_dim(dim: Dim, known: Mapping[str | None, Dim]) -> str:
    """`batch 1..8`, `height 32..256 step 32`, `height 224`; `n=seq+1` where `seq` is known."""
    relation = dim.relation
    if dim.low == dim.high:
        return f"{dim.name} {dim.low}"
    if relation is not None and relation.base in known:
        return str(relation) if dim.name == str(relation) else f"{dim.name}={relation}"
    step = f" step {relation.times}" if relation is not None and relation.times > 1 else ""
    return f"{dim.name} {dim.low}..{dim.high}{step}"
