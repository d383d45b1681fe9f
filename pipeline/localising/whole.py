"""An artifact that is wrong although each of its layers alone is right."""

from __future__ import annotations

from ...core.contract import Outputs
from ...core.precision import Precision
from ...validators.tolerance import tolerance_for
from .bench import Bench
from .layer_errors import LayerErrors
from .measure import WORST, below, lower, sqnr

_TRIALS = 24  # runs of the whole artifact
_GAIN = 6.0  # dB: half of the error
_NAMED = 3


def whole_fault(
    bench: Bench, found: LayerErrors, precision: Precision, *, passed: bool | None
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
    plain = _error(bench, found.plain)
    if passed or (passed is None and not below(plain, tolerance_for(precision).min_sqnr)):
        return ""
    told = "every layer alone agrees with eager, the artifact as a whole does not"
    if plain is not None:
        told += f" (its outputs have an SQNR of {plain:.1f} dB on this feed)"
    read = _error(bench, found.ends) if found.ends else plain
    if plain is None or (read is not None and read < plain + _GAIN):
        return f"{told}: errors of its layers add up, or they show on other feeds"
    fused = _fused(bench, plain)
    where = f" (reading {', '.join(fused)} alone does)" if fused else ""
    return (
        f"{told}: the runtime fuses layers wrongly, as reading inner tensors sets it right{where}"
    )


def _error(bench: Bench, outputs: Outputs) -> float | None:
    """The worst SQNR of the artifact's outputs beside eager's, None for no error."""
    worst: float | None = None
    for name, eager in bench.outputs.items():
        tensor = bench.probe.ends.get(name, name)
        if tensor in outputs:
            worst = lower(worst, sqnr(eager, outputs[tensor]))
    return WORST if not outputs else worst


def _fused(bench: Bench, plain: float) -> list[str]:
    """The modules whose tensor, read alone, makes the outputs right, the first few."""
    found: dict[str, None] = {}
    inner = [anchor for anchor in bench.anchors if anchor.tensor not in bench.probe.outputs]
    for anchor in inner[:_TRIALS]:
        if len(found) >= _NAMED or not bench.more():
            break
        error = _error(bench, bench.probe.tap(bench.feed, [anchor.tensor]))
        if error is None or error >= plain + _GAIN:
            found[f"{anchor.value.module or 'the model'} ({anchor.node.name})"] = None
    return list(found)
