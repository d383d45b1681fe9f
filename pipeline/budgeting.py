"""Accuracy-aware INT8: as few layers as possible back in floating point, until the budget holds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..core.errors import ConversionError, RunnerError
from ..core.findings import TradeOff
from ..core.verdict import Reason, ReasonCode, State
from .bench import Parent, RunContext
from .budget_layers import RankedLayers, rank_layers
from .budget_search import LayerChoice, find_fewest
from .budget_trials import BudgetTrials, KeptLayers, TrialBase, tradeoff_from
from .order import MAX_TRIALS
from .plan import Step
from .trying import Trial

# Measurements that ranking may make for each trial allowed: each runs a few samples, where a trial
# calibrates, converts and runs all feeds.
_MEASUREMENTS_PER_TRIAL = 4


@dataclass(frozen=True, kw_only=True)
class BalancedTrial:
    """The trial that is kept, and the trade-offs that were found on the way to it."""

    trial: Trial
    tradeoffs: tuple[TradeOff, ...]


def has_budget(step: Step, bench: RunContext) -> bool:
    """Whether the step quantizes, and something was asked for that its result must keep."""
    return bool(step.quantizers) and bench.order.has_accuracy_budget


def balance_layers(step: Step, plain: Trial, parent: Parent, bench: RunContext) -> BalancedTrial:
    """The plain INT8 trial where it holds the budget, else the best that returning layers gives.

    Where the budget cannot be met, the trial is the one nearest to it; its verdict has failed and
    says what was reached. Other trials than `plain` that lose are removed from disk.
    """
    first = tradeoff_from(plain, (), 0.0)
    if plain.verdict.passed or not _is_numeric(plain):
        return BalancedTrial(trial=plain, tradeoffs=(replace(first, chosen=plain.verdict.passed),))
    most = bench.order.lowering.max_trials or MAX_TRIALS
    ranked = _rank_or_none(step, plain, parent, bench, most=_MEASUREMENTS_PER_TRIAL * most)
    if ranked is None:
        return BalancedTrial(trial=plain, tradeoffs=(first,))
    making = TrialBase(step=step, way=plain.way, parent=parent, bench=bench)
    trials = BudgetTrials(making, ranked, most)
    ranking = ranked.ranking if first.sqnr is None else ranked.ranking.scale_to(first.sqnr)
    found = find_fewest(ranking, bench.order.judging.min_sqnr, trials.judge, trials.more)
    if found.kept is not None:
        return _settle_met(trials, tuple(sorted(found.kept)), found, first, ranked)
    return _settle_missed(trials, found, plain, first, ranked)


def _rank_or_none(
    step: Step, plain: Trial, parent: Parent, bench: RunContext, *, most: int
) -> RankedLayers | None:
    """The layers by at most `most` measurements; None, with a note, where they cannot be ranked."""
    try:
        return rank_layers(step, plain, parent, bench, most=most)
    except (ConversionError, RunnerError) as error:
        text = f"{step.name}: layers cannot be ranked, so none is returned: {error.message}"
        bench.stage.note(text, warning=True)
        return None


def _is_numeric(trial: Trial) -> bool:
    """Whether it failed by numbers, which layers in floating point can mend, and not by form."""
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
    kept: KeptLayers,
    found: LayerChoice,
    first: TradeOff,
    ranked: RankedLayers,
) -> BalancedTrial:
    """The artifact of the set that was found; its verdict is that of the normal proof."""
    trial = trials.trial(kept)
    notes = [f"{len(kept)} of {len(ranked.layers)} quantized layers stay in floating point"]
    notes.append(trials.rests_on)
    if found.ended:
        notes.append(f"--max-trials {trials.most} ended the search: fewer layers might do")
    verdict = replace(trial.verdict, notes=(*trial.verdict.notes, *notes))
    chosen = kept if verdict.passed else None
    return BalancedTrial(
        trial=replace(trial, verdict=verdict), tradeoffs=(first, *_sort_tradeoffs(trials, chosen))
    )


def _settle_missed(
    trials: BudgetTrials, found: LayerChoice, plain: Trial, first: TradeOff, ranked: RankedLayers
) -> BalancedTrial:
    """The artifact that came nearest, which may be the plain one."""
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
    verdict = replace(trial.verdict, reasons=(*trial.verdict.reasons, missed))
    return BalancedTrial(
        trial=replace(trial, verdict=verdict), tradeoffs=(first, *_sort_tradeoffs(trials, None))
    )


def _sort_tradeoffs(trials: BudgetTrials, chosen: KeptLayers | None) -> tuple[TradeOff, ...]:
    """The trade-offs by the number of layers kept."""
    points = sorted(trials.points.items(), key=lambda item: (len(item[0]), item[0]))
    return tuple(replace(point, chosen=kept == chosen) for kept, point in points)
