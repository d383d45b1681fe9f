"""Tokens that rounding sends to other experts: judged by eager with these experts.

A router of a mixture of experts takes the experts with the largest scores. Where two are nearly
equal, the rounding of a precision exchanges them, and the token's rows differ by far more than
rounding does, as do later tokens that attend to it. Eager with the same choice shows all of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from ..checkpoints.router_choices import OtherExperts, RouterScores, count_moved, list_others
from ..core.contract import Array, Feed, Outputs
from ..core.errors import CheckpointError
from ..core.generation import DecoderLoop
from ..core.kinds import Precision, ReasonCode
from ..validators.edge_case_values import EMPTY_MASK
from ..validators.output_pairs import ReferenceOutputs
from ..validators.ruling import Ruling
from .eager_reference import EagerReference
from .float64_reference import SHARES
from .reply_evidence import Evidence, FeedPair, JudgedEvidence

_PAIRS = 2  # of perturbed runs with opposite signs
# Of the weights' and inputs' rounding in a layer, which SHARES exaggerates for ties of integers
_SHARES = {
    **SHARES,
    Precision.INT8_DYNAMIC: 0.01,
    Precision.INT8: 0.02,
    Precision.FP8: 0.04,
    Precision.INT4: 0.08,
}
_MOST_TIMES, _SPARE = 2.0, 2  # tokens that change experts: times the draws' mean, and more of few
_UNSURE = 0.5  # share of tokens that rounding sends elsewhere, beyond which a choice says little
_MOST_RUNS = 100  # of a search on one feed; 1 to 40 are usual
_ROUNDS = 3  # once feeds pass, channels over all feeds may show others
_CHANGED, _CLOSER = 0.01, 0.5  # share of an error that is another one, and one that is explained


def settle_routing(judged: JudgedEvidence, eager: EagerReference) -> JudgedEvidence:
    """Judge again by eager with the experts that rounding chose for tokens between two.

    Which tokens these are is searched (see `_ExpertSearch`). With these experts all rows, later
    tokens' too, are within the usual limits. The judge over tokens sees eager's own choice.
    """
    evidence, lowered = judged.evidence, judged.evidence.precision is not Precision.FP32
    others = [one for one in judged.verdict.faults if one.code is not ReasonCode.BESIDE_MASK]
    if judged.passed or others or not lowered or not eager.model.has_module:
        return judged
    loop = DecoderLoop.find([one.name for one in eager.signature.inputs], eager.signature.outputs)
    if loop is None:
        return judged
    found: dict[str, _Routed] = {}
    now = judged
    for _ in range(_ROUNDS):
        fresh = _route_feeds(now.evidence, found.keys(), eager, loop)
        if not fresh:
            return judged
        found |= fresh
        routed = (found.get(one.feed.name) for one in evidence.references)
        references = tuple(
            old if new is None else new.reference
            for old, new in zip(evidence.references, routed, strict=True)
        )
        now = JudgedEvidence.of(replace(evidence, references=references))
        if now.passed:
            # the evidence keeps eager's own choices, as other outputs are compared with them too
            rulings = (*judged.rulings, *now.rulings)
            settled = replace(judged, measured=now.measured, rulings=rulings)
            return settled.plus(Ruling(notes=(_note(found, evidence.precision, loop),)))
    return judged


@dataclass(frozen=True, kw_only=True)
class _Routed:
    """Eager's outputs on a feed with other experts for so many tokens."""

    reference: ReferenceOutputs
    count: int


def _note(found: Mapping[str, _Routed], precision: Precision, loop: DecoderLoop) -> str:
    count = sum(one.count for one in found.values())
    tokens = sum(one.reference.feed.arrays[loop.ids].size for one in found.values())
    return (
        f"{count} of {tokens:,} tokens on {', '.join(found)} went to other experts, which eager's "
        f"routers prefer less by no more than {precision} rounds: compared with eager that takes "
        "these experts, all tokens are within the limits"
    )


def _route_feeds(
    evidence: Evidence, known: Set[str], eager: EagerReference, loop: DecoderLoop
) -> dict[str, _Routed]:
    """Return the feeds, beside those that are known, on which other experts explain errors.

    It is empty if any failed feed is not one of them.
    """
    failed, found = evidence.find_failed(), dict[str, _Routed]()
    if failed & known:
        return {}
    for pair in evidence.pairs:
        name = pair[0].feed.name
        if name in known or (failed and name not in failed):
            continue
        try:
            routed = _ExpertSearch(pair=pair, eager=eager, loop=loop, evidence=evidence).run()
        except CheckpointError:
            routed = None
        if routed is not None:
            found[name] = routed
        elif failed:
            return {}
    return found


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """The artifact beside eager with given experts.

    Attributes:
        outputs: eager's.
        noise: by output with a row for each token, the power of the row's error, [tokens].
        beyond: tokens that exceed the limits in any output, [tokens].
        others: the experts that rounding may choose instead.
    """

    outputs: Outputs
    noise: Mapping[str, Array]
    beyond: Array
    others: Sequence[OtherExperts]


@dataclass(frozen=True, kw_only=True)
class _ExpertSearch:
    """The search for the experts that the artifact chose on one feed.

    Rows of a batch are independent, and tokens depend on those before. So in each row the first
    token beyond the limits gets the nearest other expert, and keeps it if that halves the error
    where it first shows. Eager's runs with perturbed weights and inputs say which experts are near:
    these move a margin by about as much as it is large. They also bound how many tokens may change.
    """

    pair: FeedPair
    eager: EagerReference
    loop: DecoderLoop
    evidence: Evidence

    def run(self) -> _Routed | None:
        """Return eager with the artifact's experts; None if these explain no error, or not all."""
        import numpy as np

        if not self._is_comparable():
            return None
        given = self._free
        now = self._compare(given)
        tried = np.zeros((len(now.others), self._tokens), bool)
        for _ in range(_MOST_RUNS):
            distance = np.array([one.distance for one in now.others])
            distance[tried | (distance > 1)] = np.inf
            doubtful = now.beyond & np.isfinite(distance).any(axis=0)
            if self._is_hopeless(now, doubtful) or _count_given(given) > self._most:
                return None
            if not doubtful.any():
                break
            first = doubtful & (self._count_along(doubtful) == 1)
            choice = np.where(first, distance.argmin(axis=0), -1)
            then = self._compare(_exchange(given, now.others, choice))
            closer = first & self._is_closer(now, then)
            tried[choice[first], first] = True
            if closer.any():
                tried[:, closer] = False
                given = _exchange(given, now.others, np.where(closer, choice, -1))
                now = then if (closer == first).all() else self._compare(given)
        count = _count_given(given)
        reference = replace(
            self.pair[0], outputs=now.outputs, exact=None, again=(), sequential=None
        )
        return _Routed(reference=reference, count=count) if count else None

    def _is_comparable(self) -> bool:
        """Whether the outputs have eager's shapes, and routers one row of scores for each token."""
        known, given = self.pair[0].outputs, self.pair[1].outputs or {}
        if any(name not in given or given[name].shape != known[name].shape for name in known):
            return False
        return bool(self._routers) and all(len(one) == len(self._routers) for one in self._draws)

    @property
    def _feed(self) -> Feed:
        return self.pair[0].feed.arrays

    @property
    def _tokens(self) -> int:
        return int(self._feed[self.loop.ids].size)

    @cached_property
    def _routers(self) -> tuple[RouterScores, ...]:
        return self.eager.model.run_with_experts(self._feed, self._tokens)[1]

    @property
    def _free(self) -> list[Array]:
        """No given experts, by router."""
        import numpy as np

        return [np.full_like(one.winners, -1) for one in self._routers]

    @cached_property
    def _draws(self) -> list[tuple[RouterScores, ...]]:
        """The scores of perturbed runs, with eager's own experts, so that none moves another."""
        share, own = _SHARES[self.evidence.precision], [one.winners for one in self._routers]
        return [
            self.eager.model.record_routers(self._feed, own, share=sign * share, seed=seed)
            for seed in range(_PAIRS)
            for sign in (1, -1)
        ]

    @cached_property
    def _most(self) -> int:
        """How many tokens may have other experts: none if rounding sends half of them there."""
        counts = [count_moved(self._routers, one) for one in self._draws]
        moved = sum(counts) / len(counts)
        return 0 if moved >= _UNSURE * self._tokens else int(_MOST_TIMES * moved) + _SPARE

    def _compare(self, given: Sequence[Array]) -> _Comparison:
        """Compare the artifact with eager that takes these experts."""
        import numpy as np

        outputs, routers = self.eager.model.run_with_experts(self._feed, self._tokens, given)
        beyond, noise = np.zeros(self._tokens, bool), dict[str, Array]()
        hidden = self._find_hidden_row()
        for name, usual in self._usual_noise.items():
            limits = self.evidence.verdict.tolerance.of(name)
            eager = self._rows_of(outputs[name], name)
            error = np.abs(self._rows_of((self.pair[1].outputs or outputs)[name], name) - eager)
            error[hidden] = 0
            peak = limits.atol + limits.rtol * np.abs(eager).max(initial=0.0)
            noise[name] = (error**2).sum(-1)
            beyond |= (noise[name] > usual) | (error.max(-1, initial=0.0) > peak)
        others = [*list_others(routers, self._draws, given)]
        return _Comparison(outputs=outputs, noise=noise, beyond=beyond, others=others)

    def _find_hidden_row(self) -> Array:
        """Return the tokens of a row that a mask hides completely, which is not judged."""
        import numpy as np

        found = np.zeros(self._feed[self.loop.ids].shape, bool)
        found[-1] = self.pair[0].feed.name == EMPTY_MASK
        return found.reshape(-1)

    @cached_property
    def _usual_noise(self) -> dict[str, float]:
        """The noise of a row that the limits allow, by output with a row for each token.

        Caches come first, by layer, and then the logits.
        """
        found = {}
        for name in (*(one.present for one in self.loop.cache), self.loop.logits):
            if self._axis_of(name) is not None:
                least = self.evidence.verdict.tolerance.of(name).min_sqnr
                rows = self._rows_of(self.pair[0].outputs[name], name)
                found[name] = float((rows**2).sum(-1).mean()) * 10 ** (-least / 10)
        return found

    def _rows_of(self, array: Array, name: str) -> Array:
        """Return the rows of the new tokens in an output, [tokens, elements]."""
        import numpy as np

        length = self._feed[self.loop.ids].shape[1]
        moved = np.moveaxis(array, self._axis_of(name) or 1, 1)[:, -length:]
        return moved.reshape(self._tokens, -1).astype(np.float64)

    def _axis_of(self, name: str) -> int | None:
        """Return the axis of an output that has the new tokens last; None if there is none."""
        if name == self.loop.logits:
            return 1
        specs = {spec.name: spec for spec in self.eager.signature.inputs}
        past = next(one.past for one in self.loop.cache if one.present == name)
        return self.loop.position_axis(specs[past], specs[self.loop.ids].dims[0].name)

    def _is_closer(self, now: _Comparison, then: _Comparison) -> Array:
        """Return the tokens whose error is halved in the first output where it is another."""
        import numpy as np

        found, seen = np.zeros(self._tokens, bool), np.zeros(self._tokens, bool)
        for name, usual in self._usual_noise.items():
            old, new = now.noise[name], then.noise[name]
            differs = np.abs(new - old) > _CHANGED * np.maximum(old, _CHANGED * usual)
            found |= differs & ~seen & (new < _CLOSER * old)
            seen |= differs
        return found

    def _is_hopeless(self, now: _Comparison, doubtful: Array) -> bool:
        """Whether tokens that cannot change any more have too much noise for the whole feed."""
        final = self._count_along(doubtful) == 0
        failed = {
            one.output
            for one in self.evidence.verdict.outputs
            if one.feed == self.pair[0].feed.name and not one.passed
        }
        return any(
            now.noise[name][final].sum() > self._tokens * self._usual_noise[name]
            for name in failed & now.noise.keys()
        )

    def _count_along(self, marked: Array) -> Array:
        """Return how many tokens of the row are marked up to each token, [tokens]."""
        shape = self._feed[self.loop.ids].shape
        found: Array = marked.reshape(shape).cumsum(axis=1).reshape(-1)
        return found


def _exchange(given: Sequence[Array], others: Sequence[OtherExperts], choice: Array) -> list[Array]:
    """Return the given experts with other ones, where a token's choice is an index and not -1."""
    made = [one.copy() for one in given]
    for place, other in enumerate(others):
        made[other.router][choice == place] = other.experts[choice == place]
    return made


def _count_given(given: Sequence[Array]) -> int:
    """Return how many tokens have given experts in any router."""
    import numpy as np

    return int(np.any([(one >= 0).any(axis=1) for one in given], axis=0).sum())
