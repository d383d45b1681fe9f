"""What lies beyond ranges that modelc chose, and the `--input` that states more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..core.dims import Dim, default_opt
from ..core.domain import Domain
from ..core.records import Artifact
from ..core.signature import InputSpec, Signature
from ..validators.edge_case_feeds import find_batch_dim
from .size_probe import SIZE_FACTOR

_INT32 = 2**31 - 1
_TIMES_AS_LARGE = 10  # times the largest size that was tried: an example of what a user may state


def describe_unverified_dims(signature: Signature) -> str:
    """The dims that modelc chose, with what is not verified and how to state it.

    `dims: samples 201..896 (chosen; ...)`. The example is a dim whose end is that of the search:
    where eager ends earlier, there is nothing to state.
    """
    dims = Domain(inputs=signature.inputs).describe_chosen()
    wider = _widen_input(signature)
    if wider is None:
        return f"dims: {dims} (chosen; state others with --input)"
    return f"dims: {dims} (chosen; larger are not verified, state them: --input '{wider}')"


def _widen_input(signature: Signature) -> InputSpec | None:
    """The first input with a dim that was not tried at larger sizes, with ten times as large."""
    batch = find_batch_dim(signature)
    for spec in signature.inputs:
        for dim in spec.dims:
            if (
                dim.chosen
                and dim.relation is None
                and dim.high == SIZE_FACTOR * dim.opt
                and dim != batch
            ):
                return replace(spec, dims=tuple(_format_dim(one, dim) for one in spec.dims))
    return None


def _format_dim(dim: Dim, widened: Dim) -> Dim:
    """The widened dim with its new end; other chosen ones by name alone, to be chosen again."""
    if dim != widened:
        return replace(dim, bounded=not dim.chosen)
    high = _TIMES_AS_LARGE * dim.high
    return Dim(name=dim.name, low=dim.low, opt=default_opt(dim.low, high), high=high)


def describe_narrowed_values(artifacts: Iterable[Artifact], asked: Signature) -> list[str]:
    """A line for each input whose chosen values an artifact holds in a part of, and not in int32.

    A format that computes in 32 bits has no more to give.
    """
    lines: dict[str, list[str]] = {}
    whole = {spec.name: spec for spec in asked.inputs}
    for artifact in artifacts:
        for spec in () if artifact.domain is None else artifact.domain.inputs:
            values, wide = spec.values, whole.get(spec.name, spec).values
            if values is None or wide is None or not (values.chosen and wide.chosen):
                continue
            if values.high < min(wide.high, _INT32):
                stated = replace(spec, values=replace(values, low=0, high=_INT32, usual=None))
                text = (
                    f"{spec.name} holds within {str(values)[1:-1]} only, of the values that eager "
                    f"takes: state larger ones to try other captures, --input '{stated}'"
                )
                lines.setdefault(text, []).append(artifact.name)
    return [f"{', '.join(names)}: {text}" for text, names in lines.items()]
