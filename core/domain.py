"""The domain of an artifact: what its verdict is a statement about, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

    @property
    def has_chosen(self) -> bool:
        """Whether any bound was found by modelc."""
        dims = any(dim.chosen for spec in self.inputs for dim in spec.dims)
        return dims or any(spec.values is not None and spec.values.chosen for spec in self.inputs)

    def contains(self, sizes: Mapping[str, int]) -> bool:
        """Whether free dims of these sizes lie in it; names that it does not have are ignored."""
        return all(
            dim.low <= sizes[name] <= dim.high
            for name, dim in self.free_dims.items()
            if name in sizes
        )

    def describe(self) -> str:
        """The dims that vary and the integer ranges: `batch 1..8, height 32..256 step 32`."""
        dims = self.describe_dims()
        return ", ".join([*([dims] if dims else []), *self._values_text()]) or "fixed shapes"

    def describe_dims(self, *, chosen: bool = False) -> str:
        """Each dim with its interval; one that follows from another that is listed, as `n=seq+1`.

        Args:
            chosen: only the dims whose bounds modelc found; those that it fixed are `height 224`.
        """
        return ", ".join(_dims_text(self.inputs, chosen=chosen))

    def as_input(self) -> str:
        """The inputs as `--input` reads them, one after another: what artifacts carry inside."""
        return " ".join(str(spec) for spec in self.inputs)

    def _values_text(self) -> Iterable[str]:
        for spec in self.inputs:
            if spec.values is not None and not spec.dtype.startswith("float"):
                yield f"{spec.name} {str(spec.values)[1:-1]}"


def _dims_text(inputs: Iterable[InputSpec], *, chosen: bool) -> Iterable[str]:
    known = {dim.name: dim for spec in inputs for dim in spec.dims if dim.name is not None}
    for dim in known.values():
        if not dim.dynamic and not dim.chosen:
            continue
        if chosen and not dim.chosen:
            continue
        relation = dim.relation
        if dim.low == dim.high:
            yield f"{dim.name} {dim.low}"
        elif relation is not None and relation.base in known:
            yield str(relation) if dim.name == str(relation) else f"{dim.name}={relation}"
        else:
            step = f" step {relation.times}" if relation is not None and relation.times > 1 else ""
            yield f"{dim.name} {dim.low}..{dim.high}{step}"
