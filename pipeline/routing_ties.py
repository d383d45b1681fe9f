"""Tokens that rounding sends to other experts: judged by what another expert makes of them.

A router of a mixture of experts takes the experts with the largest scores. Where two are nearly
equal, the rounding of a precision exchanges them, and the token's rows differ by far more than
rounding does, in eager too. Eager alone says which tokens these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..checkpoints.router_choices import RouterScores, count_moved, find_near_tokens
from ..core.errors import CheckpointError
from ..core.generation import DecoderLoop
from ..core.kinds import Precision
from ..validators.ruling import Ruling
from .eager_reference import EagerReference
from .float64_reference import SHARES
from .reply_evidence import Evidence, FeedPair, JudgedEvidence, find_failed_feeds

if TYPE_CHECKING:
    from ..core.contract import Array, Outputs
    from ..core.verdict import Tolerance

_PAIRS = 2  # of perturbed runs with opposite signs
# Of the weights' and inputs' rounding, which SHARES exaggerates for the ties of integers
_SHARES = {**SHARES, Precision.INT8: 0.02, Precision.FP8: 0.04, Precision.INT4: 0.08}
_TIMES = 2.0  # the movement by the next expert: a token may lose another one, or several
_MOST_TIMES, _SPARE = 2.0, 2  # tokens that change experts: times the draws' mean, and more of few
_ROUNDS = 3  # once feeds pass, channels over all feeds may show others


def settle_routing(judged: JudgedEvidence, eager: EagerReference) -> JudgedEvidence:
    """Judge again without tokens that only rounding sends to other experts.

    Such a token is close to another expert in eager, whose perturbed runs show how far rounding
    moves the margin. Its rows may differ from eager's by twice as much as eager's with the next
    expert do, and no more tokens may be left out than eager's own perturbed runs exchange, twice.
    All other tokens are judged as always, and the judge over tokens sees all of them.
    """
    evidence, verdict = judged.evidence, judged.verdict
    lowered = evidence.precision is not Precision.FP32
    if judged.passed or verdict.faults or not lowered or not eager.model.has_module:
        return judged
    loop = DecoderLoop.find([one.name for one in eager.signature.inputs], eager.signature.outputs)
    if loop is None:
        return judged
    found: dict[str, _LeftOut] = {}
    now = judged
    for _ in range(_ROUNDS):
        names = find_failed_feeds(now.measured) or {one.feed.name for one in evidence.references}
        fresh = {
            pair[0].feed.name: left
            for pair in evidence.pairs
            if pair[0].feed.name in names - found.keys()
            and (left := _leave_out(pair, _Routing(eager=eager, loop=loop, evidence=evidence)))
        }
        if not fresh:
            return judged
        found |= fresh
        pairs = [
            found[pair[0].feed.name].pair if pair[0].feed.name in found else pair
            for pair in evidence.pairs
        ]
        now = JudgedEvidence.of(evidence.of(pairs))
        if now.passed:
            # the evidence keeps all tokens, as other outputs are compared with eager's too
            settled = replace(
                judged, measured=now.measured, rulings=(*judged.rulings, *now.rulings)
            )
            return settled.plus(Ruling(notes=(_note(found, evidence, loop),)))
    return judged


@dataclass(frozen=True, kw_only=True)
class _LeftOut:
    """A feed without the tokens that went to other experts, and how many these are."""

    pair: FeedPair
    count: int


def _note(found: Mapping[str, _LeftOut], evidence: Evidence, loop: DecoderLoop) -> str:
    count = sum(one.count for one in found.values())
    feeds = {one.feed.name: one for one in evidence.references}
    tokens = sum(feeds[name].feed.arrays[loop.ids].size for name in found)
    return (
        f"{count} of {tokens:,} tokens on {', '.join(found)} went to other experts: eager's "
        f"routers prefer their own by less than {evidence.precision} rounds, and eager with the "
        "next expert differs as much; the other tokens are within the limits"
    )


@dataclass(frozen=True, kw_only=True)
class _Routing:
    """What eager's routers do with the tokens of a feed."""

    eager: EagerReference
    loop: DecoderLoop
    evidence: Evidence

    def find_near(self, pair: FeedPair) -> tuple[list[Array], int]:
        """Return the tokens near another expert by router, and how many may be left out."""
        import numpy as np

        feed, model = pair[0].feed.arrays, self.eager.model
        tokens, share = feed[self.loop.ids].size, _SHARES[self.evidence.precision]
        routers = model.record_routers(feed, tokens)
        draws: list[Sequence[RouterScores]] = [
            model.record_routers(feed, tokens, sign * share, seed)
            for seed in range(_PAIRS if routers else 0)
            for sign in (1, -1)
        ]
        if not routers or any(len(one) != len(routers) for one in draws):
            return [], 0
        moved = float(np.mean([count_moved(routers, one) for one in draws]))
        near = [
            find_near_tokens(router, [draw[index] for draw in draws])
            for index, router in enumerate(routers)
        ]
        return near, int(_MOST_TIMES * moved) + _SPARE

    def rows_of(self, outputs: Outputs, name: str, shape: tuple[int, ...]) -> Array | None:
        """Return an output as [batch, new tokens, elements]; None if it has no tokens."""
        import numpy as np

        axis = self.token_axis(name)
        if axis is None or outputs[name].dtype.kind != "f":
            return None
        array = np.moveaxis(outputs[name], axis, 1)[:, -shape[1] :]
        return array.reshape(*shape, -1).astype(np.float64) if array.shape[:2] == shape else None

    def token_axis(self, name: str) -> int | None:
        """Return the axis of an output that has the new tokens last; None if there is none."""
        if name == self.loop.logits:
            return 1
        specs = {spec.name: spec for spec in self.eager.signature.inputs}
        past = next((one.past for one in self.loop.cache if one.present == name), None)
        batch = specs[self.loop.ids].dims[0].name
        return None if past is None else self.loop.position_axis(specs[past], batch)


def _leave_out(pair: FeedPair, routing: _Routing) -> _LeftOut | None:
    """Return the feed without tokens of other experts; None if these explain no error of it."""
    import numpy as np

    reference, reply = pair
    shape = reference.feed.arrays[routing.loop.ids].shape
    given = {name: array.shape for name, array in (reply.outputs or {}).items()}
    if given != {name: array.shape for name, array in reference.outputs.items()}:
        return None
    try:
        near, most = routing.find_near(pair)
        if not near:
            return None
        other = routing.eager.model.run_with_next_experts(
            reference.feed.arrays, int(np.prod(shape)), near
        )
    except CheckpointError:
        return None
    doubtful, beyond = np.any(near, axis=0).reshape(shape), np.zeros(shape, bool)
    sides = reference.outputs, reply.outputs or {}, other
    for name in reference.outputs:
        rows = [array for one in sides if (array := routing.rows_of(one, name, shape)) is not None]
        if len(rows) == len(sides):
            limits = routing.evidence.verdict.tolerance.of(name)
            off, explained = _compare_rows(rows, limits)
            doubtful &= explained | ~off
            beyond |= off
    left = beyond & doubtful
    if not left.any() or int(left.sum()) > most:
        return None
    return _LeftOut(pair=_without(pair, routing, left), count=int(left.sum()))


def _compare_rows(rows: Sequence[Array], limits: Tolerance) -> tuple[Array, Array]:
    """Return which tokens are beyond the limits, and for which another expert explains it.

    Args:
        rows: eager's, the artifact's, and eager's with the next experts.
        limits: of the output.
    """
    import numpy as np

    eager, artifact, other = rows
    error = np.abs(artifact - eager)
    noise, moved = ((one**2).sum(-1) for one in (error, other - eager))
    usual = (eager**2).sum(-1).mean() * 10 ** (-limits.min_sqnr / 10)
    peak = limits.atol + limits.rtol * np.abs(eager).max(initial=0.0)
    off = (noise > usual) | (error.max(-1, initial=0.0) > peak)
    return off, np.sqrt(noise) <= _TIMES * np.sqrt(moved) + np.sqrt(usual)


def _without(pair: FeedPair, routing: _Routing, left: Array) -> FeedPair:
    """Return both sides with zeros in the rows of these tokens."""
    reference, reply = pair
    shown = dict(_blank(reference.outputs, routing, left))
    return replace(reference, outputs=shown), replace(
        reply, outputs=dict(_blank(reply.outputs or {}, routing, left))
    )


def _blank(outputs: Outputs, routing: _Routing, left: Array) -> Iterator[tuple[str, Array]]:
    """Yield the outputs, with zeros in the rows of these tokens."""
    import numpy as np

    for name, array in outputs.items():
        axis = routing.token_axis(name)
        if axis is None or array.dtype.kind != "f":
            yield name, array
            continue
        copy = array.copy()
        np.moveaxis(copy, axis, 1)[:, -left.shape[1] :][left] = 0
        yield name, copy
