"""Sets of layers that stay in floating point, each made into an artifact and judged once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from shutil import rmtree
from typing import TypeAlias

from ..core.errors import ConversionError, RunnerError
from ..core.findings import TradeOff
from .bench import Parent, RunContext
from .budget_layers import RankedLayers
from .budget_search import BudgetPoint
from .calibration_cache import quantization_key
from .held_out import FEW_SAMPLES, plain_samples
from .plan import Step
from .quantizing import QuantizationTask
from .stage import Clock
from .tradeoffs import digest_references, digest_texts, open_tradeoff_store
from .trying import Recipe, Trial, make_quantization, try_recipe

KeptLayers: TypeAlias = tuple[int, ...]  # layers by index, ascending


@dataclass(frozen=True, kw_only=True)
class TrialBase:
    """What is made again and again: a step, by the way of its plain trial."""

    step: Step
    way: Recipe
    parent: Parent
    bench: RunContext


class BudgetTrials:
    """Makes, judges and remembers; of what lies on disk only the best stays.

    `points` are the trade-offs by set of layers, at most `most` of them. Those of earlier runs come
    from the cache.
    """

    def __init__(self, making: TrialBase, ranked: RankedLayers, most: int) -> None:
        bench = making.bench
        self._making, self._ranked, self.most = making, ranked, most
        self._store = open_tradeoff_store(bench.order.cache)
        order = bench.order
        references = (*bench.subject.references, *bench.held_out)
        self._key = (
            "trial", str(order.judging), digest_references(references), str(order.opset),
            str(order.external_data), str(sorted(order.settings.items())), _key_of_labels(bench),
        )  # fmt: skip
        self._live: tuple[KeptLayers, Trial] | None = None
        self.points: dict[KeptLayers, TradeOff] = {}

    @property
    def rests_on(self) -> str:
        """On how many samples the choice of layers was judged: few are a matter of luck."""
        count = len(plain_samples(self._making.bench.held_out))
        few = ": few, other samples might choose others" if count < FEW_SAMPLES else ""
        return f"these were chosen by the worst of {count} held-out samples{few}"

    def more(self) -> bool:
        """Whether another one is allowed. Those from the cache count, as they decide alike."""
        return len(self.points) < self.most

    def judge(self, layers: KeptLayers) -> BudgetPoint:
        """Whether the artifact with these layers in floating point holds the budget."""
        kept = tuple(sorted(layers))
        if kept not in self.points:
            key = digest_texts((*self._key, quantization_key(self._work(kept))))
            known = self._store.take(key, TradeOff)
            self.points[kept] = known or self._try(kept)
            self._store.keep(key, self.points[kept])
            self._tell(kept)
        point = self.points[kept]
        return BudgetPoint(passed=point.passed, sqnr=point.sqnr)

    def trial(self, kept: KeptLayers) -> Trial:
        """The artifact with these layers, made again where it is no longer on disk.

        Raises:
            ConversionError, RunnerError: it cannot be made any more.
        """
        if self._live is not None and self._live[0] == kept:
            trial, self._live = self._live[1], None
            return trial
        self.clear()
        return self._attempt(kept)

    def clear(self) -> None:
        """Remove what lies on disk."""
        if self._live is not None:
            rmtree(self._live[1].workplace)
        self._live = None

    def best(self) -> KeptLayers | None:
        """The set that comes nearest, of equals the smallest; None where none was judged."""
        judged = [kept for kept, point in self.points.items() if not point.error]
        key = lambda kept: (self.worth(self.points[kept]), -len(kept))  # noqa: E731 - for max alone
        return max(judged, key=key, default=None)

    def worth(self, point: TradeOff) -> float:
        """More is better: the SQNR where it is what was asked for, else the drop turned round."""
        if self._making.bench.order.judging.min_sqnr is None and point.drop is not None:
            return -point.drop
        return math.inf if point.sqnr is None else point.sqnr

    def _work(self, kept: KeptLayers) -> QuantizationTask:
        making = self._making
        return make_quantization(making.step, self._way(kept), making.parent, making.bench)

    def _way(self, kept: KeptLayers) -> Recipe:
        nodes = tuple(name for layer in kept for name in self._ranked.layers[layer].nodes)
        return replace(self._making.way, kept=nodes)

    def _attempt(self, kept: KeptLayers) -> Trial:
        making = self._making
        return try_recipe(making.step, self._way(kept), making.parent, making.bench)

    def _try(self, kept: KeptLayers) -> TradeOff:
        clock = Clock()
        titles = tuple(self._ranked.layers[layer].title for layer in kept)
        try:
            trial = self._attempt(kept)
        except (ConversionError, RunnerError) as error:
            return TradeOff(kept=titles, passed=False, error=error.message, seconds=clock.seconds)
        point = tradeoff_from(trial, titles, clock.seconds)
        self._keep_live(kept, trial, point)
        return point

    def _keep_live(self, kept: KeptLayers, trial: Trial, point: TradeOff) -> None:
        """The new one stays where it is better: it holds with fewer layers, or comes nearer."""
        if self._live is not None and self._rank(point) <= self._rank(self.points[self._live[0]]):
            rmtree(trial.workplace)
            return
        self.clear()
        self._live = (kept, trial)

    def _rank(self, point: TradeOff) -> tuple[bool, float]:
        return point.passed, -len(point.kept) if point.passed else self.worth(point)

    def _tell(self, kept: KeptLayers) -> None:
        point = self.points[kept]
        ratio = point.error or ("exact" if point.sqnr is None else f"{point.sqnr:.1f} dB")
        drop = "" if point.drop is None else f", drop {point.drop:.4g}"
        state = "holds" if point.passed else "misses"
        count = f"{len(kept)} of {len(self._ranked.layers)} layers in floating point"
        step = self._making.step.name
        self._making.bench.stage.note(f"{step}: {count}: {ratio}{drop}, {state}")


def _key_of_labels(bench: RunContext) -> str:
    """What a drop of accuracy depends on beside the artifact."""
    labelled = bench.labelled
    return "" if labelled is None else f"{labelled.digest} {labelled.measuring}"


def tradeoff_from(trial: Trial, kept: tuple[str, ...], seconds: float) -> TradeOff:
    """What a trial gave, for the record."""
    latency, coverage = trial.latency, trial.coverage
    return TradeOff(
        kept=kept,
        passed=trial.verdict.passed,
        sqnr=trial.verdict.sqnr,
        drop=None if trial.accuracy is None else trial.accuracy.drop,
        latency=None if latency is None else latency.milliseconds,
        parent=None if latency is None else latency.parent,
        seconds=seconds,
        share=None if coverage is None else coverage.share.get("int8", 0.0),
    )
