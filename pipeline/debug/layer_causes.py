"""Explain why a layer is wrong.

Causes are the precision, quantizer ranges, weights, frozen values and scaling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ...checkpoints.activation_tape import TracedCall, TracedTensor, state_of
from ...checkpoints.operation_variants import make_variants
from ...core.contract import Array
from ...core.kinds import QUANTIZED, Precision
from ...core.target_extensions import ProbeNode
from .layer_comparer import LayerComparer, finite_sqnr
from .refine_culprit import Culprit
from .weight_differences import find_differing_weight

_HALF_MOST, _HALF_LEAST = 65504.0, 2.0**-14

_MIN_GAIN_DB = 20.0  # dB that an explanation must be closer to the artifact than eager is
_SATURATED_SHARE = 0.001  # of the elements
_SCALE_TOLERANCE = 1e-4
_NAMED = 4  # nodes or modules that one message names
Explanation: TypeAlias = Callable[[Culprit, LayerComparer, Precision], str]


def user_function_cause(culprit: Culprit, layers: LayerComparer, written: Mapping[str, str]) -> str:
    """Blame the function of `--custom-op` if it implements the guilty operation.

    `written` maps each operator `ns::op` to its function. No other cause applies to such an
    operator. Return an empty string if the operation is not among them.
    """
    operation = _find_operation(culprit.value, layers) if written else None
    name = "" if operation is None else "::".join(str(operation.function).split(".")[:2])
    if name not in written:
        return ""
    return (
        f"the function of --custom-op {name}={written[name]} does not compute what {name} does: "
        "correct the function"
    )


def find_cause(culprit: Culprit, layers: LayerComparer, precision: Precision) -> str:
    """Return the first explanation that the values support; empty if there is none."""
    if culprit.body is not None:
        return _inside(
            culprit, layers, culprit.body, _first(_OF_BODIES, culprit, layers, precision)
        )
    return _first(_EXPLANATIONS, culprit, layers, precision)


def _first(
    explanations: Sequence[Explanation],
    culprit: Culprit,
    layers: LayerComparer,
    precision: Precision,
) -> str:
    for explain in explanations:
        if not layers.more():
            return ""
        explanation = explain(culprit, layers, precision)
        if explanation:
            return explanation
    return ""


def _inside(culprit: Culprit, layers: LayerComparer, body: ProbeNode, seen: str) -> str:
    """Locate the fault in a loop or branch, which runs as a unit; `seen` is the cause, if found."""
    kind = "branch" if body.operator == "If" else "loop"
    place = f"inside the {kind} {body.name}"
    if seen:
        return f"{place}: {seen}"
    rest = [
        node.name
        for node in culprit.nodes
        if node is not body
        and any(layers.forms[n].is_floating for n in node.outputs if n in layers.forms)
    ]
    if rest:
        place += f", or beside it ({', '.join(rest[:_NAMED])})"
    modules = ", ".join((body.inside or ())[:_NAMED])
    contents = f" ({modules})" if modules else ""
    return f"{place}, which runs as a unit{contents}"


def _explain_overflow(culprit: Culprit, layers: LayerComparer, precision: Precision) -> str:
    """Report overflow or underflow of float16."""
    import numpy as np

    if not _is_in_half(culprit, precision) or culprit.value.discrete:
        return ""
    inner = _inner_arrays(culprit, layers)
    lost = [name for name, array in inner.items() if not np.all(np.isfinite(array))]
    peak = float(np.abs(culprit.expected).max(initial=0.0))
    low = np.abs(culprit.expected[culprit.expected != 0])
    if lost and bool(np.all(np.isfinite(culprit.expected))):
        largest = max(
            (float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) for a in inner.values()), default=0.0
        )
        return (
            f"float16 overflow: {lost[0]} is not finite where eager's result stays within "
            f"{peak:.3g} (float16's maximum is {_HALF_MOST:g}; the largest finite value here is "
            f"{largest:.3g})"
        )
    if peak > _HALF_MOST:
        return f"float16 overflow: eager's maximum is {peak:.3g}, float16's is {_HALF_MOST:g}"
    gone = float(np.mean((culprit.made == 0) & (culprit.expected != 0))) if low.size else 0.0
    if low.size and peak < _HALF_LEAST:
        return (
            f"float16 underflow: eager's values are {low.min():.1e} to {peak:.1e}, below float16's "
            f"normal numbers ({_HALF_LEAST:.1e}); {gone:.0%} of them became 0"
        )
    return ""


def _is_in_half(culprit: Culprit, precision: Precision) -> bool:
    """Return whether the nodes round to half precision."""
    return precision is Precision.FP16 or any(node.half for node in culprit.nodes)


def _explain_lower_precision(culprit: Culprit, layers: LayerComparer, precision: Precision) -> str:  # noqa: ARG001 - one form
    """Report a part that computes in half precision in an FP32 model."""
    if precision is not Precision.FP32 or not _is_in_half(culprit, precision):
        return ""
    return f"computed in half precision ({culprit.node.name}) in a model of {precision}"


def _explain_saturation(culprit: Culprit, layers: LayerComparer, precision: Precision) -> str:  # noqa: ARG001 - one form
    """Report a quantizer whose range does not cover eager's values."""
    import numpy as np

    spans = [(node, span) for node in culprit.nodes if (span := layers.probe.range_of(node))]
    if not spans:
        return ""
    inner = {**culprit.given, **_inner_arrays(culprit, layers)}
    for node, span in spans:
        values = inner.get(span.tensor)
        if values is None:
            continue
        beyond = (values < span.low - span.scale) | (values > span.high + span.scale)
        share = float(np.mean(beyond))
        if share > _SATURATED_SHARE:
            return (
                f"the quantizer {node.name} saturates: {share:.1%} of its input is outside "
                f"{float(np.min(span.low)):.3g}..{float(np.max(span.high)):.3g} (scale "
                f"{float(span.scale.flat[0]):.3g}); the input ranges from {float(values.min()):.3g}"
                f" to {float(values.max()):.3g}"
            )
    return ""


def _inner_arrays(culprit: Culprit, layers: LayerComparer) -> Mapping[str, Array]:
    """Run the culprit's nodes on eager's values and return their floating-point tensors."""
    made = [
        out
        for node in culprit.nodes
        for out in node.outputs
        if out in layers.forms and layers.forms[out].is_floating
    ]
    return layers.probe.part(culprit.given, made) if made else {}


def _explain_weights(culprit: Culprit, layers: LayerComparer, precision: Precision) -> str:
    if precision in QUANTIZED:
        return ""
    half = precision is not Precision.FP32 or _is_in_half(culprit, precision)
    return find_differing_weight(culprit, layers.probe, state_of(layers.eager), half=half)


def _explain_variant(culprit: Culprit, layers: LayerComparer, precision: Precision) -> str:  # noqa: ARG001 - one form
    """Find a variant of eager's operation whose result is close to the artifact's."""
    operation = _find_operation(culprit.value, layers)
    if operation is None or culprit.local is None:
        return ""
    best, closest = culprit.local + _MIN_GAIN_DB, ""
    if culprit.value.discrete:
        best = math.inf  # integers are equal or not
    for description, array in make_variants(operation):
        if array.shape != culprit.made.shape:
            continue
        near = finite_sqnr(array, culprit.made)
        if near is None:
            return description
        if near > best:
            best, closest = near, description
    return closest


def _find_operation(value: TracedTensor, layers: LayerComparer) -> TracedCall | None:
    """Return the operation that computes a value; for a module's output, its last operation."""
    order = value.order
    if not value.operation:
        inside = [
            one.order
            for one in layers.values
            if one.operation
            and (one.module, one.call) == (value.module, value.call)
            and one.order < order
            and one.shape == value.shape
        ]
        if not inside:
            return None
        order = inside[-1]
    return layers.tape(operations=[order]).operations.get(order)


def _explain_frozen(culprit: Culprit, layers: LayerComparer, precision: Precision) -> str:  # noqa: ARG001 - one form
    """Report a value that is constant in the artifact but depends on the input in eager."""
    if any(node.inputs for node in culprit.nodes):
        return ""
    return (
        f"{culprit.tensor} is a constant in the artifact, folded from the sample input; "
        "eager computes it from the input"
    )


def _explain_scaling(culprit: Culprit, layers: LayerComparer, precision: Precision) -> str:  # noqa: ARG001 - one form
    """Report a result that is a multiple of eager's, or is wrong in a single slice."""
    import numpy as np

    if culprit.value.discrete:
        return _counted(culprit.made, culprit.expected)
    made, expected = culprit.made.astype(np.float64), culprit.expected.astype(np.float64)
    if made.shape != expected.shape or not np.all(np.isfinite(made)):
        return ""
    power = float(np.sum(expected**2))
    if power and culprit.local is not None:
        ratio = float(np.sum(made * expected)) / power
        near = finite_sqnr(expected * ratio, made)
        if abs(ratio - 1) > _SCALE_TOLERANCE and (
            near is None or near > culprit.local + _MIN_GAIN_DB
        ):
            return f"the result is {ratio:.4g} times eager's"
    return next(_wrong_slices(made, expected), "")


def _counted(made: Array, expected: Array) -> str:
    """Count the integers or bools that differ from eager's, and show the first one."""
    import numpy as np

    if made.shape != expected.shape:
        return ""
    places = np.argwhere(made != expected)
    if not len(places):
        return ""
    first = tuple(int(place) for place in places[0])
    return (
        f"{len(places)} of {made.size} values of {expected.dtype} differ: {made[first]} instead of"
        f" {expected[first]} at {list(first)}"
    )


def _wrong_slices(made: Array, expected: Array) -> Iterator[str]:
    """Describe the single wrong slice of an axis, for each axis that has one."""
    import numpy as np

    gap = (made - expected) ** 2
    for axis in range(made.ndim):
        if made.shape[axis] < 2:  # noqa: PLR2004 - one slice is the whole
            continue
        others = tuple(one for one in range(made.ndim) if one != axis)
        share = gap.sum(axis=others) / max(float(gap.sum()), 1e-300)
        worst = int(share.argmax())
        if share[worst] > 0.9999:  # noqa: PLR2004 - rounding errors lie in the other slices
            yield (
                f"only index {worst} of axis {axis} (of {made.shape[axis]}) is wrong: "
                f"norm {np.sqrt((made.take(worst, axis) ** 2).sum()):.4g} instead of "
                f"{np.sqrt((expected.take(worst, axis) ** 2).sum()):.4g}"
            )


_OF_BODIES: Sequence[Explanation] = (
    _explain_overflow,
    _explain_weights,
)  # these do not look inside
_EXPLANATIONS: Sequence[Explanation] = (
    _explain_overflow,
    _explain_saturation,
    _explain_frozen,
    _explain_weights,
    _explain_variant,
    _explain_lower_precision,
    _explain_scaling,
)
