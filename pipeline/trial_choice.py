"""Choose which trial of a step to keep: the best that passes.

For INT8 with an accuracy budget, that is the one with the fewest layers in floating point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from shutil import rmtree

from ..core.errors import ConversionError, RunnerError
from ..core.findings import TradeOff
from ..core.kinds import QUANTIZED, ReasonCode
from ..core.verdict import Reason, State
from ..validators.ruling import Ruling
from .attempt import Recipe, Trial, try_recipe
from .held_out import FEW_SAMPLES, plain_samples
from .layer_noise import (
    RankedLayers,
    digest_references,
    digest_texts,
    open_tradeoff_store,
    rank_layers,
)
from .layer_search import LayerChoice, Layers, find_fewest
from .order import MAX_TRIALS
from .quantization import make_quantization, quantization_key
from .run_context import StepWork
from .run_progress import Clock

# Measurements that ranking may take per allowed trial. A measurement runs a few samples; a trial
# calibrates, converts and runs all feeds.
_MEASUREMENTS_PER_TRIAL = 4


def balance_layers(work: StepWork, plain: Trial) -> tuple[Trial, tuple[TradeOff, ...]]:
    """Return the trial to keep and the trade-offs: plain INT8 if it meets the accuracy budget.

    Else search layers to keep in floating point. If no set of layers meets the budget, return the
    trial that comes nearest; its verdict is failed and states its SQNR and drop. Trials other than
    `plain` that lose are removed from disk.
    """
    first = tradeoff_from(plain, (), 0.0)
    if plain.verdict.passed or not _is_numeric(plain):
        return plain, (replace(first, chosen=plain.verdict.passed),)
    step, order = work.step, work.run.order
    most = order.lowering.max_trials or MAX_TRIALS
    try:
        ranked = rank_layers(work, plain, most=_MEASUREMENTS_PER_TRIAL * most)
    except (ConversionError, RunnerError) as error:
        text = f"{step.name}: layers cannot be ranked, so all stay quantized: {error.message}"
        work.run.workspace.progress.note(text, warning=True)
        return plain, (first,)
    trials = BudgetTrials(work, plain.recipe, ranked, most)
    ranking = ranked.ranking if first.sqnr is None else ranked.ranking.scale_to(first.sqnr)
    found = find_fewest(ranking, order.judging.min_sqnr, trials.try_layers, trials.more)
    if found.kept is not None:
        return _settle_met(trials, tuple(sorted(found.kept)), found, first, ranked)
    return _settle_missed(trials, found, plain, first, ranked)


def _is_numeric(trial: Trial) -> bool:
    """Return whether the trial failed by numerical error, which layers in float can reduce."""
    if trial.verdict.state is not State.FAILED:
        return False
    if trial.accuracy is not None and not trial.accuracy.passed:
        return True
    return any(
        not output.passed
        and not output.loose
        and (output.sqnr is not None or output.nonfinite_artifact > output.nonfinite_eager)
        for output in trial.verdict.outputs
    )


def _settle_met(
    trials: BudgetTrials,
    kept: Layers,
    found: LayerChoice,
    first: TradeOff,
    ranked: RankedLayers,
) -> tuple[Trial, tuple[TradeOff, ...]]:
    """Return the trial of the set that meets the budget, with the verdict of normal judging."""
    trial = trials.trial(kept)
    notes = [
        f"{len(kept)} of {len(ranked.layers)} quantized layers stay in floating point",
        trials.describe_samples(),
    ]
    if found.ended:
        notes.append(f"--max-trials {trials.most} ended the search: fewer layers might do")
    chosen = kept if trial.verdict.passed else None
    return trial.plus(Ruling(notes=tuple(notes))), (first, *_sort_tradeoffs(trials, chosen))


def _settle_missed(
    trials: BudgetTrials, found: LayerChoice, plain: Trial, first: TradeOff, ranked: RankedLayers
) -> tuple[Trial, tuple[TradeOff, ...]]:
    """Return the trial that comes nearest to the budget, which may be the plain one."""
    best = trials.best()
    trial = plain
    if best is not None and trials.worth(trials.points[best]) > trials.worth(first):
        trial = trials.trial(best)
    else:
        trials.clear()
    count = 0 if trial is plain or best is None else len(best)
    why = f"within --max-trials {trials.most}" if found.ended else "with any number of layers"
    reached = "" if trial.verdict.sqnr is None else f"{trial.verdict.sqnr:.1f} dB "
    if trial.accuracy is not None:
        reached += f"and a drop of {trial.accuracy.drop:.4g} "
    text = (
        f"the budget was not met {why}: the best is {reached}"
        f"with {count} of {len(ranked.layers)} layers in floating point"
    )
    missed = Reason(code=ReasonCode.BUDGET, text=text)
    return trial.plus(Ruling(last=(missed,))), (first, *_sort_tradeoffs(trials, None))


def _sort_tradeoffs(trials: BudgetTrials, chosen: Layers | None) -> tuple[TradeOff, ...]:
    """Sort the trade-offs by the number of layers kept in float."""
    points = sorted(trials.points.items(), key=lambda item: (len(item[0]), item[0]))
    return tuple(replace(point, chosen=kept == chosen) for kept, point in points)


class BudgetTrials:
    """Builds, judges and caches trials by set of layers; only the best one stays on disk.

    `points` holds the trade-offs by set of layers, at most `most` of them, including those of
    earlier runs from the cache.
    """

    def __init__(self, work: StepWork, recipe: Recipe, ranked: RankedLayers, most: int) -> None:
        run = work.run
        self._work, self._recipe, self._ranked, self.most = work, recipe, ranked, most
        self._store = open_tradeoff_store(run.order.cache)
        order = run.order
        references = (*run.eager.references, *run.samples.held_out)
        labelled = run.samples.labelled  # what a drop of accuracy depends on besides the artifact
        self._key = (
            "trial", str(order.judging), digest_references(references), str(order.opset),
            str(order.external_data), str(sorted(order.settings.items())),
            "" if labelled is None else f"{labelled.digest} {labelled.measuring}",
        )  # fmt: skip
        self._live: tuple[Layers, Trial] | None = None
        self.points: dict[Layers, TradeOff] = {}

    def describe_samples(self) -> str:
        """State how many samples the choice of layers was judged on, and whether they are few."""
        count = len(plain_samples(self._work.run.samples.held_out))
        few = ": few, other samples might choose others" if count < FEW_SAMPLES else ""
        return f"these were chosen by the worst of {count} held-out samples{few}"

    def more(self) -> bool:
        """Return whether another trial is allowed. Cached ones count, so that reruns agree."""
        return len(self.points) < self.most

    def try_layers(self, layers: Layers) -> TradeOff:
        """Build and judge the artifact with these layers in floating point, or take the cache's."""
        kept = tuple(sorted(layers))
        if kept not in self.points:
            task = make_quantization(self._work, self._recipe_with(kept))
            key = digest_texts((*self._key, quantization_key(task)))
            known = self._store.take(key, TradeOff)
            self.points[kept] = known or self._try(kept)
            self._store.keep(key, self.points[kept])
            self._note_point(kept)
        return self.points[kept]

    def trial(self, kept: Layers) -> Trial:
        """Return the trial with these layers, rebuilt if it is no longer on disk.

        Raises:
            ConversionError, RunnerError: it cannot be rebuilt.
        """
        if self._live is not None and self._live[0] == kept:
            trial, self._live = self._live[1], None
            return trial
        self.clear()
        return try_recipe(self._work, self._recipe_with(kept))

    def clear(self) -> None:
        """Remove the trial that is on disk."""
        if self._live is not None:
            rmtree(self._live[1].workplace)
        self._live = None

    def best(self) -> Layers | None:
        """Return the set nearest to the budget, the smallest on a tie; None if none was judged."""
        judged = [kept for kept, point in self.points.items() if not point.error]
        key = lambda kept: (self.worth(self.points[kept]), -len(kept))  # noqa: E731 - for max alone
        return max(judged, key=key, default=None)

    def worth(self, point: TradeOff) -> float:
        """Return a score, higher is better: the SQNR if it is the budget, else the negated drop."""
        if self._work.run.order.judging.min_sqnr is None and point.drop is not None:
            return -point.drop
        return math.inf if point.sqnr is None else point.sqnr

    def _recipe_with(self, kept: Layers) -> Recipe:
        nodes = tuple(name for layer in kept for name in self._ranked.layers[layer].nodes)
        return replace(self._recipe, kept=nodes)

    def _try(self, kept: Layers) -> TradeOff:
        clock = Clock()
        titles = tuple(self._ranked.layers[layer].title for layer in kept)
        try:
            trial = try_recipe(self._work, self._recipe_with(kept))
        except (ConversionError, RunnerError) as error:
            return TradeOff(kept=titles, passed=False, error=error.message, seconds=clock.seconds)
        point = tradeoff_from(trial, titles, clock.seconds)
        self._keep_live(kept, trial, point)
        return point

    def _keep_live(self, kept: Layers, trial: Trial, point: TradeOff) -> None:
        """Keep the new trial if it passes with fewer layers or comes nearer; else remove it."""
        if self._live is not None and self._rank(point) <= self._rank(self.points[self._live[0]]):
            rmtree(trial.workplace)
            return
        self.clear()
        self._live = (kept, trial)

    def _rank(self, point: TradeOff) -> tuple[bool, float]:
        return point.passed, -len(point.kept) if point.passed else self.worth(point)

    def _note_point(self, kept: Layers) -> None:
        point = self.points[kept]
        ratio = point.error or ("exact" if point.sqnr is None else f"{point.sqnr:.1f} dB")
        drop = "" if point.drop is None else f", drop {point.drop:.4g}"
        state = "holds" if point.passed else "misses"
        count = f"{len(kept)} of {len(self._ranked.layers)} layers in floating point"
        step = self._work.step.name
        self._work.run.workspace.progress.note(f"{step}: {count}: {ratio}{drop}, {state}")


def tradeoff_from(trial: Trial, kept: tuple[str, ...], seconds: float) -> TradeOff:
    """Record the measurements of a trial."""
    latency, coverage = trial.latency, trial.coverage
    return TradeOff(
        kept=kept,
        passed=trial.verdict.passed,
        sqnr=trial.verdict.sqnr,
        drop=None if trial.accuracy is None else trial.accuracy.drop,
        latency=None if latency is None else latency.milliseconds,
        parent=None if latency is None else latency.parent,
        seconds=seconds,
        share=None if coverage is None else sum(coverage.share.get(p, 0.0) for p in QUANTIZED),
    )


NEAR = 0.5  # dB; within this distance of the best, the faster trial is kept
CHOICE_RULE = (  # the rule of `_most_exact`
    "it passed with the highest SQNR of the worst group of channels, then of all outputs "
    f"({NEAR:g} dB is a tie), then the lowest latency beyond noise, then the smallest size; "
    "those slower than fp32 come last"
)


def choose_trial(trials: Sequence[Trial]) -> Trial:
    """Return the first capture that passed, or the best quantizer's trial that passed.

    If none passed, all trials are candidates.
    """
    if any(trial.recipe.quantizer for trial in trials):
        return _most_exact(trials)
    passed = [trial for trial in trials if trial.verdict.passed]
    return (passed or list(trials))[0]


def _most_exact(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the highest SQNR of the worst channel group, then of all outputs.

    Within `NEAR` of both maxima, the lowest latency decides; among trials whose intervals do not
    lie apart, the smallest.

    Trials that are slower than their FP32 parent are dropped while any other remains: an INT8
    artifact that is slower than what it replaces is useless, however exact.
    """
    left = [trial for trial in trials if trial.verdict.passed] or list(trials)
    left = [one for one in left if one.latency is None or not one.latency.slower] or left
    best_group = max(map(_worst_group_sqnr, left))
    left = [trial for trial in left if _worst_group_sqnr(trial) >= best_group - NEAR]
    best = max(map(_trial_sqnr, left))
    near = [trial for trial in left if _trial_sqnr(trial) >= best - NEAR]
    fastest = min(near, key=_latency_ratio)
    as_fast = [trial for trial in near if not _is_later(trial, fastest)]
    return min(as_fast, key=lambda trial: (trial.size, -_trial_sqnr(trial)))


def _trial_sqnr(trial: Trial) -> float:
    """Return the SQNR in dB: inf if there is no error, -inf if nothing was measured."""
    if trial.verdict.sqnr is not None:
        return trial.verdict.sqnr
    return math.inf if trial.verdict.passed else -math.inf


def _worst_group_sqnr(trial: Trial) -> float:
    """Return the SQNR in dB of the worst channel group with its own scale; inf without any."""
    found = trial.verdict.group_sqnr
    return math.inf if found is None else found


def _latency_ratio(trial: Trial) -> float:
    """Return the latency as a ratio to the parent's; inf if it was not measured.

    The two ran in the same rounds and are comparable; latencies of different trials are not.
    """
    return math.inf if trial.latency is None else trial.latency.ratio


def _is_later(trial: Trial, fastest: Trial) -> bool:
    """Whether a trial is slower than the fastest one, with all of its interval."""
    if trial.latency is None or fastest.latency is None:
        return fastest.latency is not None
    return trial.latency.interval.is_above(fastest.latency.interval)
