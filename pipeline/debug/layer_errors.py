"""Measure the error of each layer and find the layers that are wrong by themselves."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from ...core.contract import Array, Outputs
from .layer_anchors import Anchor
from .layer_comparer import (
    WORST_DB,
    LayerComparer,
    finite_sqnr,
    is_below,
    worse_sqnr,
)

_WORSE_FACTOR = 3.0  # dB
_MAX_SUSPECTS = 24  # looked at closely, in order of execution, in one round


@dataclass(kw_only=True)
class LayerErrors:
    """SQNR in dB by tensor (None: no error), and the wrong anchors in execution order."""

    local: dict[str, float | None] = field(default_factory=dict)
    accumulated: dict[str, float | None] = field(default_factory=dict)
    guilty: list[Anchor] = field(default_factory=list)
    ends: Outputs = field(default_factory=dict)  # of the last run with inner tensors read
    judged: dict[str, bool] = field(default_factory=dict)  # whether wrong, of those looked at
    changed: float | None = None  # dB that reading inner tensors left of the artifact's outputs
    plain: Outputs = field(default_factory=dict)  # the artifact's own, no inner tensor read


def measure_layers(layers: LayerComparer) -> LayerErrors:
    """Measure all layers and judge the suspects among them."""
    found = LayerErrors()
    plain = found.plain = layers.probe.tap(layers.feed, [])
    _measure_block(layers, layers.anchors, found, running=True)
    for name in layers.probe.outputs:
        if name in plain and name in found.ends:
            found.changed = worse_sqnr(found.changed, finite_sqnr(plain[name], found.ends[name]))
    while True:  # ends: each turn but the last drops an anchor
        wrong, unlike = _judge_suspects(layers, find_suspects(layers, found), found)
        if not unlike or not layers.more():
            found.guilty = wrong
            return found
        again = {one.tensor for a in unlike for one in layers.followers(a)}
        layers.drop({a.tensor for a in unlike})
        for anchor in unlike:
            found.local.pop(anchor.tensor)
            found.accumulated.pop(anchor.tensor)
        kept = [anchor for anchor in layers.anchors if anchor.tensor in again]
        found.judged = {k: v for k, v in found.judged.items() if k not in again}
        _measure_block(layers, kept, found, running=False)


def _measure_block(
    layers: LayerComparer, anchors: Iterable[Anchor], found: LayerErrors, *, running: bool
) -> None:
    """Run eager and the parts once per block, and the whole artifact if `running`."""
    for block in layers.blocks(anchors):
        if not layers.more():
            return
        names = [anchor.tensor for anchor in block]
        given = layers.inputs_of(block, also=block)
        made = layers.probe.part(given, names)
        run = layers.probe.tap(layers.feed, names) if running else {}
        differing = [a for a in block if _differs(a, given, made) or _differs(a, given, run)]
        layers.settle({anchor.value.order for anchor in differing})
        found.ends.update((n, run[n]) for n in layers.probe.outputs if n in run)
        layers.count(given.values(), made.values(), run.values())
        for anchor in block:
            name, value = anchor.tensor, anchor.value
            found.local[name] = layers.gap(value, given[name], made[name])
            if running:
                found.accumulated[name] = layers.gap(value, given[name], run[name])


def _differs(anchor: Anchor, given: Outputs, made: Outputs) -> bool:
    """Return whether a discrete tensor differs from eager."""
    import numpy as np

    name = anchor.tensor
    mine = anchor.value.discrete and name in made
    return mine and not np.array_equal(given[name], made[name])


def find_suspects(layers: LayerComparer, found: LayerErrors) -> list[Anchor]:
    """Return layers whose own error exceeds their precision or is far above the median.

    Any error of an integer or bool tensor counts.
    """
    floats = [anchor.tensor for anchor in layers.anchors if anchor.value.is_floating]
    known = [v for v in (found.local.get(name) for name in floats) if v is not None]
    usual = median(known) if known else 0.0
    limit = max(layers.scale.plain, min(usual - layers.scale.odd, 1.5 * layers.scale.plain))
    named = [
        anchor
        for anchor in layers.anchors
        if is_below(found.local.get(anchor.tensor), math.inf if anchor.value.discrete else limit)
    ]
    return named[:_MAX_SUSPECTS]


def _judge_suspects(
    layers: LayerComparer, doubtful: list[Anchor], found: LayerErrors
) -> tuple[list[Anchor], list[Anchor]]:
    """Split suspects into wrong layers and anchors that do not match eager's value."""
    wrong: list[Anchor] = []
    unlike: list[Anchor] = []
    for anchor in doubtful:
        if not layers.more():
            break
        if anchor.tensor in found.judged:
            wrong += [anchor] if found.judged[anchor.tensor] else []
            continue
        given = layers.inputs_of([anchor], also=[anchor])
        made = layers.probe.part(given, [anchor.tensor])[anchor.tensor]
        if not exceeds_rounding(layers, anchor, given, made, found.local[anchor.tensor]):
            found.judged[anchor.tensor] = False
        elif _has_consequences(layers, anchor, made, found):
            found.judged[anchor.tensor] = True
            wrong.append(anchor)
        else:
            unlike.append(anchor)
            break  # what follows was measured from it
    return wrong, unlike


def exceeds_rounding(
    layers: LayerComparer, anchor: Anchor, given: dict[str, Array], made: Array, local: float | None
) -> bool:
    """Return whether a part's own error exceeds the effect of rounding its inputs."""
    import numpy as np

    if local is None:
        return False
    if local <= WORST_DB:
        return True
    if anchor.value.discrete:  # what a rounding step changes is a tie
        expected = given[anchor.tensor]
        settled = np.where(layers.perturbed(anchor, given) == made, made, expected)
        return layers.gap(anchor.value, expected, settled) is not None
    floor = finite_sqnr(made, layers.perturbed(anchor, given))
    return floor is None or local < floor - layers.scale.margin


def _has_consequences(
    layers: LayerComparer, anchor: Anchor, made: Array, found: LayerErrors
) -> bool:
    """Return whether feeding the artifact's tensor to the following parts increases their error.

    If it does not, the anchor pairs the tensor with the wrong eager value.
    """
    if anchor.tensor in layers.probe.outputs:
        return True
    for follower in layers.followers(anchor):
        given = layers.inputs_of([follower], also=[follower])
        eager = given[follower.tensor]
        given[anchor.tensor] = layers.cast(anchor.tensor, made)
        made_after = layers.probe.part(given, [follower.tensor])[follower.tensor]
        released = layers.gap(follower.value, eager, made_after)
        known = found.local.get(follower.tensor)
        usual = math.inf if known is None else known - _WORSE_FACTOR
        quiet = math.inf if follower.value.discrete else layers.scale.quiet
        if is_below(released, min(usual, quiet)):
            return True
    return False
