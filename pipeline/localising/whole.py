"""An artifact that is wrong although each of its layers alone is right."""

from __future__ import annotations

from ...core.contract import Outputs
from ...core.precision import Precision
from ...validators.tolerance import tolerance_for
from .bench import LayerComparer
from .layer_errors import LayerErrors
from .measure import WORST_DB, finite_sqnr, is_below, worse_sqnr

_MAX_WHOLE_RUNS = 24  # runs of the whole artifact
_MIN_WHOLE_GAIN = 6.0  # dB: half of the error
_MAX_FUSED_NAMED = 3


def describe_whole_fault(
    bench: LayerComparer, found: LayerErrors, precision: Precision, *, passed: bool | None
) -> str:
    """What is wrong with the artifact as a whole; empty where nothing is known to be.

    It is wrong where its verdict on record says so, and without one where its outputs are below
    the least SQNR of its precision. Where it is right again once inner tensors are read, the
    runtime's fusion makes it wrong, and the layers are named whose tensors alone set it right.

    Args:
        bench: both sides.
        found: the layers' own errors, none of them guilty.
        precision: of the artifact.
        passed: the verdict on record, None for none.
    """
    plain = _whole_error(bench, found.plain)
    if passed or (passed is None and not is_below(plain, tolerance_for(precision).min_sqnr)):
        return ""
    told = "every layer alone agrees with eager, the artifact as a whole does not"
    if plain is not None:
        told += f" (its outputs have an SQNR of {plain:.1f} dB on this feed)"
    read = _whole_error(bench, found.ends) if found.ends else plain
    if plain is None or (read is not None and read < plain + _MIN_WHOLE_GAIN):
        return f"{told}: errors of its layers add up, or they show on other feeds"
    fused = _find_fused(bench, plain)
    where = f" (reading {', '.join(fused)} alone does)" if fused else ""
    return (
        f"{told}: the runtime fuses layers wrongly, as reading inner tensors sets it right{where}"
    )


def _whole_error(bench: LayerComparer, outputs: Outputs) -> float | None:
    """The worst SQNR of the artifact's outputs beside eager's, None for no error."""
    worst: float | None = None
    for name, eager in bench.outputs.items():
        tensor = bench.probe.ends.get(name, name)
        if tensor in outputs:
            worst = worse_sqnr(worst, finite_sqnr(eager, outputs[tensor]))
    return WORST_DB if not outputs else worst


def _find_fused(bench: LayerComparer, plain: float) -> list[str]:
    """The modules whose tensor, read alone, makes the outputs right, the first few."""
    found: dict[str, None] = {}
    inner = [anchor for anchor in bench.anchors if anchor.tensor not in bench.probe.outputs]
    for anchor in inner[:_MAX_WHOLE_RUNS]:
        if len(found) >= _MAX_FUSED_NAMED or not bench.more():
            break
        error = _whole_error(bench, bench.probe.tap(bench.feed, [anchor.tensor]))
        if error is None or error >= plain + _MIN_WHOLE_GAIN:
            found[f"{anchor.value.module or 'the model'} ({anchor.node.name})"] = None
    return list(found)
