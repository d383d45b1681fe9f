"""Try a rejected artifact in lower precision again, with more of it in floating point.

Eager measures them: each layer alone is rounded as the precision rounds it, on the feeds that were
rejected. This needs no samples and no format, and a few runs of eager for each layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from shutil import rmtree
from typing import TYPE_CHECKING, Protocol

from ..checkpoints.rounded_layers import LayerRounding
from ..converters.onnx_origins import read_origins
from ..converters.quantizers.nncf_weights import GROUP
from ..converters.quantizers.onnxruntime_weights import GROUPS
from ..core.errors import CheckpointError
from ..core.kinds import Precision, ReasonCode
from ..core.verdict import OutputVerdict
from ..validators.metrics import measure_arrays
from ..validators.ruling import Ruling
from .attempt import Recipe, Trial, recipes_for, rest_of
from .layer_search import MAX_NOISE, Ranking, measure_noises, rank_by_noise
from .plan import Step
from .run_context import StepWork

if TYPE_CHECKING:
    from ..core.contract import Outputs

_WITH_TABLES = "nncf"  # also rounds embeddings, and whole rows in INT8
_FEEDS = 2  # of those that were rejected, the worst first
_MOST_MEASURED = 96  # sets of layers
_MOST_TRIALS = 4
_MOST_KEPT = 0.5  # of the layers: with more, little of the precision is left
_MOST_WEIGHTS = 5e8  # a run of a larger model takes minutes
_MARGIN_DB = 1.0  # below the limits, as the sum of noises is an estimate
_BY_SIZE = {
    ReasonCode.OUTPUT_DIFFERS,
    ReasonCode.CHANNEL_DIFFERS,
    ReasonCode.ROWS_DISAGREE,
    ReasonCode.BESIDE_MASK,
    ReasonCode.TOKENS_DIFFER,
}


class Attempts(Protocol):
    """The attempts at a step so far, which further ones are added to."""

    step: Step
    trials: list[Trial]

    def has_passed(self) -> bool:
        """Return whether a trial passed."""

    def all_of(self, recipes: Iterable[Recipe], work: StepWork) -> None:
        """Try these recipes."""


def try_more_in_float(tried: Attempts, work: StepWork) -> None:
    """Try again with the rest in FP32, if it was in half, or with the layers that cost most."""
    order, recipes, lowering = work.run.order, recipes_for(tried.step), work.run.order.lowering
    searches = order.has_accuracy_budget and bool(tried.trials)  # which starts from a failed trial
    half = any(rest_of(work, one) is not Precision.FP32 for one in recipes if one.quantizer)
    if half and not (lowering.rest or lowering.half_io or searches):
        work.run.workspace.progress.note(f"{tried.step.name}: tried again with the rest in fp32")
        tried.all_of([replace(one, rest=Precision.FP32) for one in recipes], work)
    if not (tried.has_passed() or searches):
        _keep_sensitive_layers(tried, work)


def _keep_sensitive_layers(tried: Attempts, work: StepWork) -> None:
    """Try the rejected trials again with the layers that cost most in floating point."""
    rounding, progress = _select_rounding(work), work.run.workspace.progress
    layers = () if rounding is None else _list_layers(work, rounding)
    rejected = [one for one in tried.trials if _is_rejected_by_size(one)]
    if rounding is None or not layers or not rejected:
        return
    plain, kept = rejected[0], tuple[str, ...]()
    failed = _list_failed(plain)
    with progress.step(f"rank layers of {tried.step.name}", log=f"rank-{tried.step.name}") as clock:
        runs = _RoundedRuns(work=work, rounding=rounding, layers=layers, failed=failed)
        found = measure_noises(len(layers), runs.noise, allowed=1.0, most=_MOST_MEASURED)
        clock.detail = f"{len(layers)} layers"
    beyond = -min(one.headroom or 0.0 for one in failed)
    ranking = rank_by_noise(found).scale_to(-beyond)
    for count in _counts(ranking):
        kept = tuple(layers[index] for index in sorted(ranking.order[:count]))
        progress.note(f"{tried.step.name}: tried again with {', '.join(kept)} in floating point")
        before = len(tried.trials)
        tried.all_of([plain.recipe], _with_kept(work, kept))
        if tried.has_passed():
            note = f"kept in floating point, as rounding costs most there: {', '.join(kept)}"
            tried.trials[-1] = tried.trials[-1].plus(Ruling(notes=(note,)))
            return
        for one in tried.trials[before:]:
            rmtree(one.workplace)
        del tried.trials[before:]
    first = layers[ranking.order[0]]
    text = (
        f"not enough: {', '.join(kept)} in floating point, {len(kept)} of {len(layers)} layers"
        if kept
        else f"more than half of {len(layers)} layers would have to stay in floating point, "
        f"{first} first"
    )
    tried.trials[0] = tried.trials[0].plus(Ruling(notes=(text,)))


def _select_rounding(work: StepWork) -> LayerRounding | None:
    """Return how the step rounds a layer; None if it does not, or eager cannot show it."""
    step, eager = work.step, work.run.eager
    if step.uses_samples or step.captures or work.parent.path is None or not eager.model.has_module:
        return None
    if sum(one.numel() for one in eager.model.module.parameters()) > _MOST_WEIGHTS:
        return None
    precision, theirs = (
        step.wanted.precision,
        any(one.NAME == _WITH_TABLES for one in step.quantizers),
    )
    size = work.run.order.lowering.group_size
    if precision is Precision.INT8_WEIGHTS:
        rows = max(p.shape[-1] for p in eager.model.module.parameters() if p.ndim) if theirs else 0
        return LayerRounding(bits=8, size=rows or size or GROUPS[precision], tables=theirs)
    if precision is Precision.INT4:
        return LayerRounding(bits=4, size=size or GROUP, tables=theirs)
    if precision is Precision.FP16:
        return LayerRounding(bits=11)
    return LayerRounding(bits=8) if precision is Precision.BF16 else None


def _is_rejected_by_size(trial: Trial) -> bool:
    """Whether errors alone reject it, which fewer rounded layers reduce."""
    reasons = trial.verdict.reasons
    return bool(reasons) and all(one.code in _BY_SIZE for one in reasons)


def _list_layers(work: StepWork, rounding: LayerRounding) -> tuple[str, ...]:
    """Return the layers that have nodes in the parent, by path; one name of shared weights."""
    parent, eager = work.parent.path, work.run.eager
    assert parent is not None
    places = [(name, origin.module) for name, origin in read_origins(parent).items()]
    nodes: dict[tuple[str, ...], str] = {}
    for path in eager.model.list_layers(eager.example, rounding):
        own = tuple(name for name, place in places if f"{place}.".startswith(f"{path}."))
        if own:  # else it is folded, or not in use
            nodes.setdefault(own, path)
    return tuple(nodes.values())


def _list_failed(trial: Trial) -> tuple[OutputVerdict, ...]:
    """Return the outputs beyond their limits on the worst feeds."""
    failed = [o for o in trial.verdict.outputs if not o.passed and not o.loose and not o.apart]
    if not failed:  # a channel
        failed = [o for o in trial.verdict.outputs if o.headroom is not None and not o.loose]
    failed.sort(key=lambda one: one.headroom or 0.0)
    feeds = list(dict.fromkeys(one.feed for one in failed))[:_FEEDS]
    return tuple(one for one in failed if one.feed in feeds)


@dataclass(frozen=True, kw_only=True)
class _RoundedRuns:
    """Runs of eager with some layers rounded, on the feeds of the failed outputs."""

    work: StepWork
    rounding: LayerRounding
    layers: Sequence[str]
    failed: Sequence[OutputVerdict]

    def noise(self, indices: Sequence[int]) -> tuple[float, ...]:
        """Return the error of each failed output with these layers rounded, as powers of limits."""
        return tuple(self._ratios([self.layers[index] for index in indices]))

    def _ratios(self, paths: Sequence[str]) -> Iterator[float]:
        step, run = self.work.step, self.work.run
        limits = run.order.select_judging(step.wanted).tolerance_for(
            step.wanted.precision, step.target
        )
        made: dict[str, Outputs] = {}
        known = {one.feed.name: one for one in run.eager.references}
        for one in self.failed:
            reference = known[one.feed]
            if one.feed not in made:
                try:
                    made[one.feed] = run.eager.model.run_rounded(
                        reference.feed.arrays, paths, self.rounding
                    )
                except CheckpointError:
                    made[one.feed] = {}
            if one.output not in made[one.feed]:
                yield MAX_NOISE
                continue
            own = limits.of(one.output)
            found = measure_arrays(reference.outputs[one.output], made[one.feed][one.output])
            by_power = found.noise / found.signal * 10 ** (own.min_sqnr / 10) if found.signal else 0
            most = own.atol + own.rtol * (found.peak or 0.0)
            yield min(max(by_power, ((found.max_abs or 0.0) / most) ** 2), MAX_NOISE)


def _counts(ranking: Ranking) -> Iterator[int]:
    """Yield how many layers to keep: as predicted, then twice as many, up to half of them."""
    most = int(_MOST_KEPT * len(ranking.order))
    count = ranking.guess(_MARGIN_DB)
    for _ in range(_MOST_TRIALS):
        if count > most:
            return
        yield count
        count = min(2 * count, most) if count < most else most + 1


def _with_kept(work: StepWork, kept: tuple[str, ...]) -> StepWork:
    """Return the work with these layers in floating point, as `--keep-fp` names them."""
    run, lowering = work.run, work.run.order.lowering
    lowering = replace(lowering, keep=(*lowering.keep, *kept))
    return replace(work, run=replace(run, order=replace(run.order, lowering=lowering)))
