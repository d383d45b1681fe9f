"""The eager reference of a run: checkpoint, signature, feeds and eager's outputs on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..checkpoints.checkpoint_files import NO_GUARD, ChangeGuard, identify, make_change_guard
from ..checkpoints.eager_model import Eager, open_eager
from ..checkpoints.enclosed_module import find_steps
from ..checkpoints.loaded_module import LoadedModule
from ..checkpoints.torchao_weights import rounds_activations
from ..checkpoints.weight_loading import find_nonfinite_weights
from ..core.contract import Array, Feed, Outputs
from ..core.errors import CheckpointError, UsageError, unknown_name_error
from ..core.findings import SIZED, PipelineComparison, SkippedCheck
from ..core.generation import TokenPlan
from ..core.kinds import Precision
from ..core.manifest import FeedPlan
from ..core.postprocess import Postprocess
from ..core.records import Checkpoint
from ..core.signature import Signature, ValueRange
from ..validators.edge_case_feeds import draw_edge_case_feeds, draw_nonfinite_feeds
from ..validators.feeds import (
    LEAST_FEEDS,
    OPT,
    NamedFeed,
    draw_example_feed,
    draw_feeds,
)
from ..validators.judge import ReferenceOutputs
from ..validators.model_identity import Fingerprint, compute_fingerprint
from ..validators.wide_integer_feeds import draw_wide_feeds
from .dim_constraints import EagerTrials, RejectedSizesError, explain_rejection
from .domain_search import choose_dims
from .hub_source import locate_source
from .order import Judging, Source
from .recorded_run import check_checkpoint_trust
from .run_progress import Progress
from .run_reference import check_finite, check_stateless, note_nonfinite_weights, run_reference
from .runtime_reference import identify_artifact, load_model
from .size_probe import choose_mask_sense, describe_unverified_dims
from .stated_inputs import check_input_specs, describe_static_dims, settle_signature, warn_of_values
from .stored_use import StoredUse
from .token_reference import TokenReference
from .user_samples import UserSamples, describe_outliers, further_feeds, load_user_samples
from .value_search import choose_and_report_values

REFERENCE_STEP = "eager reference"
_MAX_REJECTED = 3  # retries of choosing a domain after eager rejects a feed of it

_ROUNDING = (
    "the checkpoint rounds activations to 8 bits, and roundoff makes one between two integers the "
    "other: judged within the limits of int8-dynamic"
)
_FLOATS = (Precision.FP32, Precision.FP16, Precision.BF16)


@dataclass(frozen=True, kw_only=True)
class EagerReference:
    """An opened checkpoint and eager's outputs on every feed, computed once.

    By digest of the feed, `exact` caches float64 outputs, `swept` those of a sweep (None where
    eager rejects the feed), and `moved` how far noise moves an output. `stamp` guards the
    checkpoint from before it was loaded. `given` are the user's own samples, `stored` the
    references of another host, `pipeline` the user's pipeline with the same outputs. By domain,
    `token_references` are those of token_reference.py.
    """

    checkpoint: Checkpoint
    signature: Signature
    model: Eager
    example: Feed
    references: tuple[ReferenceOutputs, ...]
    feeds: FeedPlan
    notes: tuple[str, ...]
    fingerprint: Fingerprint
    exact: dict[str, Outputs] = field(default_factory=dict)
    swept: dict[str, Outputs | None] = field(default_factory=dict)
    stamp: ChangeGuard = NO_GUARD
    given: UserSamples | None = None
    moved: dict[str, float] = field(default_factory=dict)
    stored: StoredUse | None = None
    pipeline: PipelineComparison | None = None
    token_references: dict[str, TokenReference | None] = field(default_factory=dict)

    @property
    def has_source(self) -> bool:
        """Whether the model itself is here, and not only what another host stored of it."""
        return self.stored is None or self.stored.source

    def limit_precision(self, precision: Precision) -> Precision | None:
        """Return the precision whose limits apply in place of one that this model does not keep.

        A checkpoint that rounds its activations to 8 bits rounds one between two integers to the
        other one after any roundoff. None for other checkpoints.
        """
        rounds = self.model.has_module and rounds_activations(self.model.module)
        return Precision.INT8_DYNAMIC if rounds and precision in _FLOATS else None

    @property
    def limits_note(self) -> tuple[str, ...]:
        """A note for each verdict if other limits than the precision's own apply."""
        return (_ROUNDING,) if self.limit_precision(Precision.FP32) else ()

    @property
    def suppression(self) -> Postprocess | None:
        """The steps after the model that suppress boxes; None without them or the model."""
        steps = find_steps(self.model.module) if self.model.has_module else None
        after = None if steps is None else steps.after
        return None if after is None or after.nms is None else after

    def with_tokens(self, plan: TokenPlan | None) -> EagerReference:
        """Return it with the token sequences that a decoder is judged on."""
        return replace(self, feeds=replace(self.feeds, tokens=plan))

    def skip(self, check: SkippedCheck) -> bool:
        """Return whether a check must be skipped without the model, and note it if so."""
        if self.stored is None or self.stored.source:
            return False
        self.stored.skip(check)
        return True

    @property
    def sample(self) -> Feed | None:
        """The user's first sample."""
        return None if self.given is None else self.given.first


def read_checkpoint(source: Source, progress: Progress) -> Checkpoint:
    """Locate, identify and hash the checkpoint without importing a framework.

    Raises:
        UsageError: the input specs of the order are wrong.
        CheckpointError: it is damaged, or contains code without consent to run it.
    """
    check_input_specs(source)
    source = locate_source(source, progress.tell)
    with progress.step("read checkpoint", log="checkpoint"):
        if (artifact := identify_artifact(source)) is not None:
            return artifact
        checkpoint = identify(
            source.checkpoint,
            factory=source.model,
            factory_args=source.model_args,
            strict=source.strict,
            allow_pickle=source.allow_pickle,
            method=source.method,
            drop_outputs=source.drop_outputs,
            weights_key=source.weights_key,
            preprocess=source.preprocess,
            preprocess_input=source.preprocess_input,
            postprocess=source.postprocess,
        )
        check_checkpoint_trust(checkpoint, source)
        return replace(checkpoint, hub=source.hub)


def open_reference(  # noqa: PLR0913 - inputs of the eager reference
    source: Source,
    checkpoint: Checkpoint,
    judging: Judging,
    progress: Progress,
    signature: Signature | None = None,
    *,
    wanted: Callable[[NamedFeed], bool] | None = None,
) -> EagerReference:
    """Load the model, determine the signature, draw the feeds and run eager on each.

    Args:
        source: the checkpoint, its samples and input specs.
        checkpoint: the result of `read_checkpoint`.
        judging: the number of feeds and the seed.
        progress: receives progress events.
        signature: the signature of a manifest, used unchanged instead of a settled one.
        wanted: selects feeds to run eager on; if given, no fingerprint is computed.
    """
    stamp = make_change_guard(checkpoint)
    with progress.step("load model", log="checkpoint") as clock:
        loaded = load_model(checkpoint, trust=source.trust)
        clock.detail = checkpoint.kind
    given = load_user_samples(source, loaded, judging, signature)
    samples = None if given is None else given.first
    settled = signature or settle_signature(source, loaded, samples)
    if not source.inputs and signature is None:
        origin = "the samples" if source.samples else "the checkpoint"
        progress.note(f"inputs from {origin}: {'  '.join(map(str, settled.inputs))}")
    notes = (*loaded.notes, *(given.notes if given else ()))
    for note in notes:
        progress.note(note)
    if source.static and signature is None:
        progress.note(describe_static_dims(settled, source.static))
        settled = settled.fix_at_opt(source.static)
    if signature is None:
        settled = choose_mask_sense(loaded, settled, seed=judging.seed or 0, samples=samples)

    def run_on(settled: Signature) -> EagerReference:
        eager = EagerReference(
            checkpoint=checkpoint,
            signature=settled,
            model=open_eager(loaded, settled),
            example=draw_example_feed(settled, seed=judging.seed or 0, samples=samples),
            references=(),
            feeds=_make_feed_plan(given, judging),
            notes=notes,
            fingerprint={},
            stamp=stamp,
            given=given,
        )
        return _run_feeds(eager, progress, wanted=wanted)

    eager = (
        run_on(settled)
        if signature
        else _run_on_chosen(loaded, settled, judging, given, progress, run_on)
    )
    outputs = eager.signature.outputs
    for name in judging.by_output:
        if name not in outputs:
            raise unknown_name_error("output in --tolerance or modelc.toml:", name, outputs)
    return eager


def _run_on_chosen(  # noqa: PLR0913, PLR0917 - inputs of the search and its callback
    loaded: LoadedModule,
    signature: Signature,
    judging: Judging,
    given: UserSamples | None,
    progress: Progress,
    run_on: Callable[[Signature], EagerReference],
) -> EagerReference:
    """Run eager with bounds and values chosen where the user states none.

    If eager rejects a feed of the chosen domain, choose again without the sizes of that feed.
    """
    samples = None if given is None else given.first
    rejected: list[dict[str, int]] = []
    values: dict[str, ValueRange] = {}
    stated = all(dim.bounded for dim in signature.free_dims.values())
    while True:
        settled = signature
        if not stated:
            with progress.step("choose dims", log="eager"):
                settled = choose_dims(
                    open_eager(loaded, signature),
                    signature,
                    seed=judging.seed or 0,
                    samples=samples,
                    further=() if given is None else given.more,
                    rejected=rejected,
                    values=values,
                )
            if settled is not signature:
                progress.note(describe_unverified_dims(settled, loaded.positions))
        settled = choose_and_report_values(loaded, settled, judging, samples, progress)
        try:
            return run_on(settled)
        except RejectedSizesError as error:
            sizes = {dim.name or "": dim.size(error.sizes) for dim in settled.dims_with_names()}
            sizes = {**error.sizes, **sizes}
            if stated or sizes in rejected or len(rejected) == _MAX_REJECTED:
                raise
            rejected.append(sizes)
            values = {spec.name: spec.values for spec in settled.inputs if spec.values is not None}


def _make_feed_plan(samples: UserSamples | None, judging: Judging) -> FeedPlan:
    return FeedPlan(
        count=LEAST_FEEDS if judging.feeds is None else judging.feeds,
        seed=judging.seed or 0,
        samples=None if samples is None else samples.origin,
        samples_digest=None if samples is None else samples.digest,
    )


def _fingerprint_outputs(
    eager: EagerReference,
    references: Sequence[ReferenceOutputs],
    samples: Mapping[str, Array] | None,
) -> Outputs:
    """Return eager's outputs on `opt` as drawn from seed 0 without samples, whatever the order."""
    if samples is None and eager.feeds.seed == 0:
        return next(one.outputs for one in references if one.feed.name == OPT)
    fixed = next(feed for feed in draw_feeds(eager.signature) if feed.name == OPT)
    return eager.model.run(fixed.arrays)


def refer_within(eager: EagerReference, signature: Signature, progress: Progress) -> EagerReference:
    """Run eager on feeds of a signature within that of the eager reference.

    Samples of the user that lie outside of it are omitted.
    """
    given, seed = eager.given, eager.feeds.seed
    try:
        example = draw_example_feed(signature, seed, eager.sample)
    except UsageError:
        given, example = None, draw_example_feed(signature, seed)
    narrow = replace(eager, signature=signature, example=example, given=given)
    return _run_feeds(narrow, progress, wanted=None)


def _run_feeds(
    eager: EagerReference,
    progress: Progress,
    *,
    wanted: Callable[[NamedFeed], bool] | None,
) -> EagerReference:
    """Check that eager is deterministic, then run it once on each wanted feed."""
    plan, seed, samples = eager.feeds, eager.feeds.seed, eager.sample
    basic = draw_feeds(eager.signature, count=plan.count, seed=seed, samples=samples)
    real, misfits = further_feeds(eager.given, eager.signature)
    drawn = (
        *draw_edge_case_feeds(eager.signature, seed=seed, samples=samples),
        *draw_wide_feeds(eager.signature, seed=seed, samples=samples),
    )
    feeds = (*basic, *real, *drawn)
    smallest = min(basic, key=lambda feed: feed.elements)
    trials = EagerTrials(eager.model, eager.signature, seed, samples)
    before = eager.model.before()
    with progress.step(REFERENCE_STEP, log="eager") as clock:
        with explain_rejection(trials, smallest.sizes, drawn=smallest.kind in SIZED):
            names = tuple(eager.model.check_stable(smallest.arrays))
        eager = replace(eager, signature=eager.signature.with_outputs(names))
        if eager.model.asks_nonfinite(smallest.arrays):
            feeds += draw_nonfinite_feeds(eager.signature, seed=seed, samples=samples)
        found = run_reference(
            feeds if wanted is None else [feed for feed in feeds if wanted(feed)],
            lambda feed: _reference_or_explain(eager, feed, trials),
            lambda done, total: progress.advance(REFERENCE_STEP, done, total),
        )
        check_stateless(eager.model, before, found.references)
        eager.model.check_outputs()
        weights = find_nonfinite_weights(eager.model.module) if eager.model.has_module else ()
        marks = {}
        if wanted is None:
            check_finite(found.references, weights)
            marks = compute_fingerprint(_fingerprint_outputs(eager, found.references, samples))
        clock.detail = f"{len(found.references)} feeds"
    poor = (
        *warn_of_values(eager.signature, samples),
        *describe_outliers(feeds, eager.signature),
    )
    odd = note_nonfinite_weights(weights)
    seen = (*misfits, *eager.model.notes, *odd, *poor, *filter(None, [found.warning]))
    for note in (*seen, *filter(None, [found.note])):
        progress.note(note, warning=True)
    return replace(
        eager,
        references=found.references,
        feeds=replace(plan, drawn=found.records),
        fingerprint=marks,
        notes=(*eager.notes, *seen),
    )


def _reference_or_explain(
    eager: EagerReference, feed: NamedFeed, trials: EagerTrials
) -> ReferenceOutputs:
    """Call `run_eager`; if the sizes of the feed cause a rejection, raise with a hint."""
    if not feed.basic and feed.kind not in SIZED:
        return run_eager(eager, feed)  # edge-case values or samples: other feeds have these sizes
    with explain_rejection(trials, feed.sizes, drawn=feed.kind in SIZED):
        return run_eager(eager, feed)


def run_eager(eager: EagerReference, feed: NamedFeed) -> ReferenceOutputs:
    """Run eager on one feed.

    Raises:
        CheckpointError: eager rejects the feed, returns other outputs than on the smallest feed,
            or exceeds the limit of steps on extreme values.
    """
    outputs = eager.model.run_reference(feed.arrays, extreme=not feed.basic)
    if tuple(outputs) != eager.signature.outputs:
        raise CheckpointError(
            f"the model's outputs change with the feed: {', '.join(eager.signature.outputs)} on the"
            f" smallest, {', '.join(outputs)} on {feed.name}",
            hint="return as many tensors for every input, for example stacked in one",
        )
    return ReferenceOutputs(feed=feed, outputs=outputs)
