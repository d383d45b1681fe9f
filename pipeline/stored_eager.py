"""Eager's stored outputs in place of the model: judging a prepared step without its source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..calibration.sample_reader import feed_digest
from ..checkpoints.data_branches import BranchReport
from ..checkpoints.eager_model import Eager
from ..checkpoints.eager_probes import DiscreteOrigin
from ..core.contract import Array, Feed, Outputs
from ..core.errors import CheckpointError, ErrorCode, Hint, Option
from ..core.findings import SkippedCheck
from ..core.kinds import Precision
from ..core.manifest import Manifest
from ..core.records import FileRecord
from ..validators.edge_case_feeds import NONFINITE
from ..validators.feeds import OPT
from ..validators.judge import ArtifactOutputs, ReferenceOutputs, judge
from ..validators.tolerance import TOLERANCES
from ..validators.wide_integer_feeds import WIDE
from .eager_reference import EagerReference
from .reference_file import (
    EXACT,
    LABELLED,
    PLAIN,
    RUN,
    SEQUENTIAL,
    StoredReferences,
    noise_variant,
    tie_variant,
)
from .stored_use import StoredUse

if TYPE_CHECKING:
    import torch

_FP32_TABLE = replace(TOLERANCES[Precision.FP32], floor_factor=None)
_APART = ("mask", WIDE, NONFINITE)  # kinds of feeds that are not compared with others
SOURCE_HINT = Hint(
    "finish it with the checkpoint and the model's code: ", Option("checkpoint", "PATH")
)


class NotStoredError(CheckpointError):
    """Something is asked of eager that the stored references do not hold."""


class StoredEager(Eager):
    """Answers from the references that another host stored; it has no module.

    What they do not hold is noted in `use` and raises NotStoredError, or there is no answer.
    """

    has_module = False

    def __init__(self, stored: StoredReferences, use: StoredUse) -> None:
        self.inputs = tuple(spec.name for spec in stored.index.inputs)
        self._stored, self._use = stored, use
        has_exact = any(variant == EXACT for _, variant in stored.answers)
        reason = stored.index.no_float64 or "the stored references have no float64 outputs"
        self._no_float64 = "" if has_exact else reason
        self._notes = {}

    @property
    def module(self) -> torch.nn.Module:
        """Raise NotStoredError: there is no module."""
        raise self._make_error(SkippedCheck.DIAGNOSIS, "the module")

    @property
    def flat(self) -> torch.nn.Module:
        """Raise NotStoredError: there is no module."""
        return self.module

    def _make_error(self, check: SkippedCheck, what: str) -> NotStoredError:
        self._use.skip(check)
        return NotStoredError(
            f"the stored references do not hold {what}", hint=SOURCE_HINT, code=ErrorCode.NOT_FOUND
        )

    def _get(self, feed: Feed, variant: str, check: SkippedCheck) -> Outputs:
        """Return the stored outputs in a variant.

        Raises:
            NotStoredError: they are not stored; the check is noted as skipped.
            CheckpointError: eager gave none.
        """
        same = variant in self._stored.index.same
        key = feed_digest(feed).hex(), RUN if same else variant
        if key not in self._stored.answers:
            raise self._make_error(check, f"eager's outputs ({variant}) on this feed")
        found = self._stored.answers[key]
        if found is None:
            text = f"eager gives no outputs ({variant}) on this feed"
            raise CheckpointError(text, hint=SOURCE_HINT)
        return found

    def _tensors(
        self, feed: Feed, given: list[torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        del feed, given
        raise self._make_error(SkippedCheck.DIAGNOSIS, "the module")

    def run(self, feed: Feed) -> Outputs:
        """Return eager's outputs on a stored feed; on labelled data, what the metric reads."""
        predictions = self._stored.answers.get((feed_digest(feed).hex(), LABELLED))
        return predictions or self._get(feed, RUN, SkippedCheck.FEEDS)

    def run_with_deadline(self, feed: Feed) -> Outputs:
        """Return eager's outputs on a stored feed."""
        return self.run(feed)

    def run_reference(self, feed: Feed, *, extreme: bool) -> Outputs:
        """Return eager's outputs on a stored feed."""
        del extreme
        return self.run(feed)

    def run_exact(self, feed: Feed) -> Outputs | None:
        """Return the float64 outputs; None if there are none on this feed."""
        if self._no_float64:
            return None
        with suppress(CheckpointError):
            return self._get(feed, EXACT, SkippedCheck.FLOAT64)
        return None

    def run_sequential_sums(self, feed: Feed) -> Outputs:
        """Return the stored outputs with sequential sums."""
        return self._get(feed, SEQUENTIAL, SkippedCheck.SECOND_LOOK)

    def run_plain_attention(self, feed: Feed) -> Outputs:
        """Return the stored outputs without fast paths of attention."""
        return self._get(feed, PLAIN, SkippedCheck.SECOND_LOOK)

    def run_with_tie_order(self, feed: Feed, *, last: bool, exact: bool = False) -> Outputs | None:
        """Return the stored outputs with ties broken by index; None if no tie is broken."""
        variant = tie_variant(last=last, exact=exact)
        if variant in self._stored.index.same:
            return None
        with suppress(CheckpointError):
            return self._get(feed, variant, SkippedCheck.SECOND_LOOK)
        return None

    def draw_perturbed(self, feed: Feed, share: float, *, pairs: int) -> Iterator[Outputs]:
        """Yield the stored draws; they may have only the integer outputs."""
        for seed in range(pairs):
            for sign in (1, -1):
                with suppress(CheckpointError):
                    variant = noise_variant(sign * share, seed)
                    yield self._get(feed, variant, SkippedCheck.SECOND_LOOK)

    @contextmanager
    def cache_variants(self) -> Iterator[None]:
        """Do nothing: all answers are in memory."""
        yield

    def computes(self, feed: Feed, test: Any) -> bool:
        """Return False: there is no run to look into."""
        del feed, test
        self._use.skip(SkippedCheck.WEIGHTS)
        return False

    def weights(self) -> dict[str, Array]:
        """Return no weights."""
        self._use.skip(SkippedCheck.WEIGHTS)
        return {}

    def release_pages(self) -> None:
        """Do nothing: there are no weights."""

    def branches(self, feeds: Sequence[tuple[str, Feed]], example: Feed | None) -> BranchReport:
        """Return the branches as they were observed where the step was prepared."""
        del feeds, example
        return self._stored.index.branches

    def find_discrete_origins(self, feed: Feed) -> frozenset[DiscreteOrigin]:
        """Return the stored origins of rounded floats."""
        del feed
        return frozenset(self._stored.index.origins)


def open_stored(
    stored: StoredReferences, files: tuple[FileRecord, ...], manifest: Manifest
) -> EagerReference:
    """Return an eager reference without the model, from the references of a pending step."""
    index = stored.index
    use = StoredUse(
        index=index,
        created=manifest.created,
        files=files,
        feeds=len(stored.references),
        source=False,
    )
    feeds = {one.feed.name: one.feed.arrays for one in stored.references}
    return EagerReference(
        checkpoint=manifest.checkpoint,
        signature=replace(manifest.signature, inputs=index.inputs),
        model=StoredEager(stored, use),
        example=feeds.get(OPT, stored.references[0].feed.arrays),
        references=stored.references,
        feeds=manifest.feeds,
        notes=(),
        fingerprint=manifest.fingerprint,
        exact={
            feed: outputs
            for (feed, variant), outputs in stored.answers.items()
            if variant == EXACT and outputs is not None
        },
        moved=dict(index.moved),
        stored=use,
    )


def compare_stored(
    stored: StoredReferences, files: tuple[FileRecord, ...], eager: EagerReference, created: str
) -> StoredUse:
    """Run eager on the stored feeds; return on which its outputs differ from the stored ones.

    The limits are those of FP32 without float64: another torch version sums in another order.
    """
    known = {one.feed.name: one for one in eager.references}
    fresh, replies, differing = [], [], dict[str, None]()
    for one in stored.references:
        if one.feed.beyond or one.feed.kind in _APART:
            continue
        try:
            outputs = _run_fresh(one, known.get(one.feed.name), eager)
        except CheckpointError:
            differing[one.feed.name] = None
            continue
        fresh.append(replace(one, outputs=outputs))
        copies = {name: array.copy() for name, array in one.outputs.items()}  # `judge` demands own
        replies.append(ArtifactOutputs(outputs=copies))
    if fresh:
        found = judge(
            artifact="stored references",
            references=fresh,
            replies=replies,
            tolerance=_FP32_TABLE,
            device="cpu",
            artifact_inputs=[spec.name for spec in eager.signature.inputs],
            signature=eager.signature,
            by_channel=False,
        )
        differing |= dict.fromkeys(one.feed for one in found.outputs if not one.passed)
    return StoredUse(
        index=stored.index,
        created=created,
        files=files,
        feeds=len(stored.references),
        source=True,
        differing=tuple(differing),
    )


def _run_fresh(
    stored: ReferenceOutputs, fresh: ReferenceOutputs | None, eager: EagerReference
) -> Outputs:
    """Return eager's outputs on the stored feed, which this host may have drawn as well."""
    mine = stored.feed.arrays
    if fresh is not None and feed_digest(fresh.feed.arrays) == feed_digest(mine):
        return fresh.outputs
    outputs = eager.model.run(mine)
    if tuple(outputs) != tuple(stored.outputs):
        raise CheckpointError("eager returns other outputs", hint=SOURCE_HINT)
    return outputs
