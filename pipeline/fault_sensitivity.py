"""The sensitivity of a verdict: how many faults planted in copies the same feeds detect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ..capture.framework_errors import call_framework
from ..checkpoints.run_limits import flops_exceed
from ..converters.onnx_guard import list_model_files
from ..core.contract import Array, Outputs, Runner
from ..core.errors import CheckpointError, ConversionError, RunnerError
from ..core.findings import FaultOutcome, FaultRecord, Sensitivity
from ..core.kinds import Precision
from ..core.target_extensions import FaultKind, Plantable, PlantedFault
from ..core.verdict import Verdict
from ..validators.feeds import FeedDrawer, NamedFeed
from ..validators.judge import ArtifactOutputs, ReferenceOutputs
from ..validators.output_pairs import find_sample
from ..validators.ruling import Judgment, Ruling
from .eager_reference import run_eager
from .judge_case import Candidate, JudgeCase, JudgeRequest
from .narrow_domain import narrow_reference
from .reply_evidence import Evidence, reply_to
from .restrict_values import restrict_inputs
from .rounding_ties import apply_second_looks

if TYPE_CHECKING:
    from .eager_reference import EagerReference

DEFAULT_FAULTS = 8  # faults to plant by default, if a run is cheap
_CHEAP_FLOPS = 10**10  # of the largest feed: about a second of one core
_CHEAP_BYTES = 1 << 28  # of the model's files, which are copied or opened for each fault
_MAX_TRIES = 3  # faults planted for each that counts: not all of them change an output
_DENSE_FEEDS = 24  # further feeds to compare on if a fault was not found
_CERTAIN_CHANGE = 2e-2  # share of the peak; limits of FP32 are below half of it
_CERTAIN_FACTOR = 4.0  # times the limit of a lower precision: 12 dB below its least SQNR


def plant_faults(request: JudgeRequest, judged: Judgment) -> Ruling:
    """Measure the sensitivity, if requested, in the ranges in which the candidate passed."""
    if not request.sensitive:
        return Ruling()
    ranges = judged.verdict.restricted_values
    inputs = restrict_inputs(request.eager.signature.inputs, ranges)
    eager = narrow_reference(request.eager, inputs, request.progress)
    within = request if eager is request.eager else replace(request, eager=eager)
    return measure_sensitivity(within, judged.verdict)


def measure_sensitivity(request: JudgeRequest, verdict: Verdict) -> Ruling:
    """Return how many planted faults the feeds and limits of the verdict would have found.

    A note says so if none of them changes an output: then the figure says nothing of the feeds.

    Nothing is planted in an artifact that did not pass, in a format whose files cannot be altered,
    with `--sensitivity 0` or, by default, if a copy takes long to open or eager does more than
    10^10 floating point operations on the largest feed.

    A fault is found if its copy does not pass. A copy that passes is equivalent if its outputs stay
    within the limits of the artifact's own, on the same feeds, on 24 more over the domain, and on
    one where the fault acts. Other faults replace equivalent ones, up to three for each; not by
    default in lower precision, where most faults are within the limits.
    """
    candidate, eager, progress = request.candidate, request.eager, request.progress
    target, title = candidate.target, f"plant faults in {candidate.name}"
    given = request.judging.sensitivity
    wanted = DEFAULT_FAULTS if given is None else given
    is_rough = given is None and candidate.precision is not Precision.FP32
    if not wanted or not verdict.passed or not isinstance(target, Plantable):
        return Ruling()
    if not eager.has_source or (given is None and not _is_cheap(candidate, target, eager)):
        return Ruling()
    planting = progress.step(title, log=candidate.log, runs_artifact=True)
    with planting as clock, eager.model.cache_variants(), ExitStack() as held:
        case = request.case
        evidence = case.run_feeds()
        if not apply_second_looks(evidence, eager).passed:
            return Ruling()  # it passed by a rule that is not repeated here, as in a narrower range
        trial = _FaultTrial(case=case, clean=evidence.replies, verdict=verdict, held=held)
        faults: list[FaultRecord] = []
        for fault in trial.plant(target, wanted if is_rough else wanted * _MAX_TRIES):
            faults += filter(None, [trial.record(*fault)])
            counted = _summarize(faults, eager.feeds.seed).planted
            progress.advance(title, counted, wanted)
            if counted == wanted:
                break
        found = _summarize(faults, eager.feeds.seed)
        clock.detail = f"{found.found} of {found.planted} found"
    if found.planted or is_rough or not faults:
        return Ruling(sensitivity=found)
    text = (
        f"{len(faults)} planted faults changed no output beyond its limits, so it is unknown which "
        "faults these feeds find: give other --samples"
    )
    return Ruling(sensitivity=found, notes=(text,))


def _summarize(faults: Sequence[FaultRecord], seed: int) -> Sensitivity:
    counts = Counter(one.outcome for one in faults)
    return Sensitivity(
        planted=counts[FaultOutcome.FOUND] + counts[FaultOutcome.MISSED],
        found=counts[FaultOutcome.FOUND],
        equivalent=counts[FaultOutcome.EQUIVALENT],
        seed=seed,
        faults=tuple(faults),
    )


def _is_cheap(candidate: Candidate, target: Plantable, eager: EagerReference) -> bool:
    """Whether eager's work on the largest feed, and the model's files, are small."""
    size = sum(file.stat().st_size for file in list_model_files(candidate.path))
    if not target.PLANTS_BY_DEFAULT or size > _CHEAP_BYTES:
        return False
    largest = max((one.feed for one in eager.references), key=lambda feed: feed.elements).arrays
    return not flops_exceed(lambda: eager.model.run(largest), _CHEAP_FLOPS)


@dataclass(frozen=True, kw_only=True)
class _FaultTrial:
    """An artifact that passed, with its outputs and their limits, to compare faulty copies with.

    `dense` are further feeds with the artifact's replies, filled when a fault first needs them: the
    artifact is then open until `held` is closed.
    """

    case: JudgeCase
    clean: tuple[ArtifactOutputs, ...]
    verdict: Verdict
    held: ExitStack
    dense: list[tuple[NamedFeed, Outputs]] = field(default_factory=list)

    def plant(self, target: Plantable, most: int) -> Iterator[tuple[FaultKind, PlantedFault]]:
        """Yield copies with one fault each, of alternating kinds; the next one deletes the last."""
        kinds, known = list(FaultKind), set()
        for number in range(most):
            if not kinds:
                return
            kind = kinds[number % len(kinds)]
            random = Random(f"{self.case.eager.feeds.seed} {number}")
            with TemporaryDirectory(prefix="fault-", dir=self.case.candidate.aside) as folder:
                signature, path = self.case.eager.signature, self.case.candidate.path
                plant = partial(target.plant_fault, path, kind, random, signature, Path(folder))
                try:
                    fault = call_framework("planting a fault", plant)
                except ConversionError:  # a framework may fail to write what it reads
                    fault = None
                if fault is None:
                    kinds.remove(kind)
                elif (fault.place, fault.change, fault.where) not in known:
                    known.add((fault.place, fault.change, fault.where))
                    yield kind, fault

    def record(self, kind: FaultKind, fault: PlantedFault) -> FaultRecord | None:
        """Return whether the fault is found; None if the runtime does not open the copy."""
        copy = replace(self.case, candidate=replace(self.case.candidate, path=fault.path))
        try:
            with copy.open() as runner:
                outcome, error = self._outcome(copy, runner, fault)
        except RunnerError:
            return None
        return FaultRecord(
            kind=kind,
            place=fault.place,
            change=fault.change,
            where=fault.where,
            outcome=outcome,
            error=error,
        )

    def _outcome(
        self, copy: JudgeCase, runner: Runner, fault: PlantedFault
    ) -> tuple[FaultOutcome, float | None]:
        replies: dict[int, ArtifactOutputs] = {}
        references = self.case.references
        for index in sorted(range(len(references)), key=lambda i: references[i].feed.elements):
            replies[index] = reply_to(runner, references[index])
            if self._is_certain(references[index], replies[index], self.clean[index]):
                return FaultOutcome.FOUND, None
        ordered = [replies[index] for index in range(len(references))]
        evidence = copy.make_evidence(ordered, runner.inputs)
        looks = (_keep_one_failure(evidence), evidence)
        if any(not apply_second_looks(one, self.case.eager).passed for one in looks):
            return FaultOutcome.FOUND, None
        both = zip(self.clean, ordered, strict=True)
        pairs = [
            (one.outputs, other.outputs)
            for one, other in both
            if one.outputs is not None and other.outputs is not None
        ]
        for feed, outputs in self._dense_at(fault.sizes):
            reply = reply_to(runner, ReferenceOutputs(feed=feed, outputs=outputs))
            if reply.outputs is None:
                return FaultOutcome.MISSED, None
            pairs.append((outputs, reply.outputs))
        ratios = [self._ratio(*pair) for pair in pairs]
        missed = any(ratio > 1 for ratio, _ in ratios)
        error = max((error for _, error in ratios), default=0.0)
        outcome = FaultOutcome.MISSED if missed else FaultOutcome.EQUIVALENT
        return outcome, error if error < float("inf") else None

    def _is_certain(
        self, reference: ReferenceOutputs, reply: ArtifactOutputs, clean: ArtifactOutputs
    ) -> bool:
        """Whether one usual feed exceeds any limit by far, so that no other need run."""
        precise = self.case.candidate.precision is Precision.FP32
        feed = reference.feed
        usual = feed.basic if precise else feed.kind == "sample"  # and those held out
        if clean.outputs is None or not usual or feed.name in self.case.loose:
            return False
        if precise and self.case.tolerance.floor_factor is None:
            return False
        return reply.outputs is None or any(
            self._is_far_off(name, reference.outputs[name], wanted, reply.outputs.get(name))
            for name, wanted in clean.outputs.items()
            if name not in reference.left_out
        )

    def _is_far_off(self, output: str, eager: Array, clean: Array, given: Array | None) -> bool:
        """Whether an output of a copy is beyond its limit by far."""
        if given is None or given.shape != clean.shape:
            return True
        if clean.dtype.kind != "f":
            return False
        if self.case.candidate.precision is Precision.FP32:
            return _changes_much(clean, given)
        limit = 10 ** (-self.case.tolerance.of(output).min_sqnr / 20)
        if not _relative_distance(eager, clean) <= limit:
            return False
        return not _relative_distance(eager, given) <= _CERTAIN_FACTOR * limit

    @cached_property
    def _runner(self) -> Runner:
        """The artifact itself, opened once for all faults."""
        return self.held.enter_context(self.case.open())

    def _dense_at(self, sizes: Mapping[str, int]) -> Iterator[tuple[NamedFeed, Outputs]]:
        """Yield further feeds that eager accepts with the artifact's outputs, last at `sizes`."""
        eager = self.case.eager
        sample = find_sample(eager.references)
        drawer = FeedDrawer.of(eager.signature, eager.feeds.seed + 1, sample)
        if not self.dense:
            feeds = (drawer.draw_seeded(f"dense-{number}") for number in range(1, _DENSE_FEEDS + 1))
            self.dense.extend(_run_both(feeds, eager, self._runner))
        yield from self.dense
        if sizes:
            feed = drawer.feed("dense-at", {**eager.signature.opt_sizes, **sizes})
            yield from _run_both([feed], eager, self._runner)

    def _ratio(self, clean: Outputs, other: Outputs) -> tuple[float, float]:
        """Return the largest relative L2 error of a copy: as a share of its limit, and itself."""
        found = [(0.0, 0.0)]
        for name, wanted in clean.items():
            error = _relative_distance(wanted, other.get(name))
            found.append((error / self._limit(name), error))
        return max(found)

    def _limit(self, output: str) -> float:
        """Return the allowed relative L2 error: from the noise floor, or from the SQNR."""
        limits = self.case.tolerance.of(output)
        floors = [o.floor for o in self.verdict.outputs if o.output == output and o.floor]
        if limits.floor_factor is not None and floors:
            return limits.floor_factor * max(floors)
        return float(10 ** (-limits.min_sqnr / 20))


def _changes_much(clean: Array, given: Array) -> bool:
    """Whether a float output changes by more than any FP32 limit."""
    import numpy as np

    if not (clean.size and np.isfinite(clean).all()):
        return False
    with np.errstate(all="ignore"):
        off = np.abs(given.astype(np.float64) - clean).max()
    return bool(not off <= _CERTAIN_CHANGE * np.abs(clean).max())


def _keep_one_failure(evidence: Evidence) -> Evidence:
    """Drop the failed feeds except the smallest of usual values.

    Second looks at one feed are cheap. If it still fails, the copy fails on any evidence.
    """
    failed = evidence.find_failed()
    wrong = [one for one in evidence.references if one.feed.name in failed]
    wrong.sort(key=lambda one: (one.feed.kind == "value", one.feed.elements))
    left_out = {one.feed.name for one in wrong[1:]}
    return evidence.of([pair for pair in evidence.pairs if pair[0].feed.name not in left_out])


def _run_both(
    feeds: Iterable[NamedFeed], eager: EagerReference, runner: Runner
) -> Iterator[tuple[NamedFeed, Outputs]]:
    for feed in feeds:
        with suppress(CheckpointError):  # eager may reject a drawn size
            reply = reply_to(runner, run_eager(eager, feed))
            if reply.outputs is not None:
                yield feed, reply.outputs


def _relative_distance(wanted: Array, given: Array | None) -> float:
    """Return the relative L2 distance; infinite if form, NaN or an integer differs."""
    import numpy as np

    if given is None or given.shape != wanted.shape:
        return float("inf")
    if wanted.dtype.kind != "f":
        return 0.0 if np.array_equal(wanted, given) else float("inf")
    finite = np.isfinite(wanted)
    if not np.array_equal(finite, np.isfinite(given)):
        return float("inf")
    signal = wanted[finite].astype(np.float64)
    error = float(np.linalg.norm(given[finite].astype(np.float64) - signal))
    peak = float(np.linalg.norm(signal))
    return error / peak if peak else float("inf") if error else 0.0
