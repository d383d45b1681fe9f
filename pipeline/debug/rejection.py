"""Locate the guilty layer of an artifact that a run has rejected, within a time limit."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...checkpoints.user_code import shorten_path
from ...core.contract import Target
from ...core.errors import ErrorCode, ModelcError, UsageError
from ...core.findings import Localisation
from ...core.manifest import Manifest
from ...core.records import Artifact
from ...core.target_extensions import Probed
from ...core.verdict import OutputVerdict, State, Verdict
from ...validators.judge import ReferenceOutputs
from ...validators.output_pairs import VALUES
from ..eager_reference import EagerReference
from ..manifest_file import write_manifest
from ..own_weights import find_graph_fault
from ..run_progress import Progress
from ..worst_feed import TOKEN_FEED, add_feed, read_feed
from .locate_layer import SuspectArtifact, locate_layer

LOCALISE_SECONDS = 60.0  # about the validation time of BERT (110M parameters) on two cores
_RUNS_PER_LOOK = 10  # runs of the whole model that a search without suspects takes


@dataclass(frozen=True, kw_only=True)
class RejectionContext:
    """Where an artifact was rejected: eager, its held-out samples, the output folder and progress.

    `seconds` limits the search; no run starts after that. `written` maps operators to the user's
    functions that implement them.
    """

    eager: EagerReference
    progress: Progress
    folder: Path
    held_out: tuple[ReferenceOutputs, ...] = ()
    seconds: float = LOCALISE_SECONDS
    written: Mapping[str, str] = field(default_factory=dict)


def add_guilty_layer(
    manifest: Manifest, name: str, target: Target, context: RejectionContext
) -> Manifest:
    """Locate the guilty layer of the named artifact and return the manifest that records it.

    The manifest is also written. It stays unchanged if values were not the reason for the
    rejection, or if the artifact cannot be probed. Errors of the search become notes: the verdict
    does not change.
    """
    artifact = next((one for one in manifest.artifacts if one.name == name), None)
    verdict = manifest.verdict_of(name)
    if artifact is None or verdict is None or not isinstance(target, Probed):
        return manifest
    if artifact.frozen and verdict.faults:
        return manifest  # the verdict already names the frozen branch as the fault
    if not is_wrong_by_value(verdict):
        return manifest
    found = _localise_rejected(artifact, verdict, target, context)
    if found is None:
        return manifest
    others = tuple(one for one in manifest.localisations if one.artifact != name)
    now = replace(manifest, localisations=(*others, found))
    write_manifest(now, context.folder)
    return now


def is_wrong_by_value(verdict: Verdict) -> bool:
    """Whether values of outputs, alone or beside rounding, or of tokens rejected an artifact."""
    tokens = verdict.worst is not None and verdict.worst.feed == TOKEN_FEED
    alone = tokens or find_graph_fault(verdict) is not None
    return bool(outputs_wrong_by_value(verdict)) or (verdict.state is State.FAILED and alone)


def outputs_wrong_by_value(verdict: Verdict) -> tuple[OutputVerdict, ...]:
    """Return the outputs that failed by their values, the worst first; empty for other faults."""
    if verdict.state is not State.FAILED:
        return ()
    wrong = [
        one
        for one in verdict.outputs
        if not (one.passed or one.loose) and one.form_kind in ("", VALUES)
    ]
    return tuple(sorted(wrong, key=lambda o: -math.inf if o.headroom is None else o.headroom))


def _localise_rejected(
    artifact: Artifact,
    verdict: Verdict,
    target: Probed,
    context: RejectionContext,
) -> Localisation | None:
    """Run the search within the time limit; return None, after a note, if it is impossible."""
    path = context.folder / artifact.files[0].name
    command = shlex.join(["modelc", "debug", str(path)])
    once = verdict.seconds / max(len(verdict.feeds), 1)
    if _RUNS_PER_LOOK * once > context.seconds:
        context.progress.note(f"to find the guilty layer of {artifact.name}, run {command}")
        return None
    suspect = SuspectArtifact(
        name=artifact.name, path=path, target=target, precision=artifact.precision
    )
    end = time.monotonic() + context.seconds
    try:
        eager, feed = _open_worst_feed(verdict, context)
        found = locate_layer(
            suspect,
            eager,
            context.progress,
            feed=feed,
            more=lambda: time.monotonic() < end,
            written=context.written,
        )
    except ModelcError as error:
        context.progress.note(f"the guilty layer of {artifact.name} was not found: {error.message}")
        return None
    if not found.guilty:
        whole = f": {found.whole}" if found.whole else ""
        notes = (f"no layer of {found.artifact} is wrong by itself{whole}", *found.notes)
        context.progress.note(f"{'; '.join(notes)}; details: {command}", warning=True)
    return found


def _open_worst_feed(verdict: Verdict, context: RejectionContext) -> tuple[EagerReference, str]:
    """Return eager with the worst kept feed as its only reference, and the feed's name.

    Raises:
        UsageError: no feed was kept on which the artifact is wrong, or it cannot be read.
    """
    worst, wrong = verdict.worst, outputs_wrong_by_value(verdict)
    references = {one.feed.name: one for one in (*context.eager.references, *context.held_out)}
    fault = find_graph_fault(verdict)
    wrong_feeds = [*([] if fault is None else [fault.feed]), *(one.feed for one in wrong)]
    for name in wrong_feeds:
        if name in references:
            return replace(context.eager, references=(references[name],)), name
    if worst is not None and worst.feed in {TOKEN_FEED, *wrong_feeds}:
        feed = read_feed(context.folder / worst.file)
        return add_feed(context.eager, context.held_out, feed, name=worst.feed)
    raise UsageError(
        f"none of the feeds on which it is wrong was kept: {', '.join(wrong_feeds)}",
        hint="run modelc debug",
        code=ErrorCode.NOT_FOUND,
    )


def describe_guilty(found: Localisation) -> str:
    """Describe the guilty layer with its class, line and cause in one line."""
    layer = found.layers[0]
    cause = found.cause or "the cause was not found"
    place = f" at {shorten_path(layer.file)}:{layer.line}" if layer.file else ""
    return f"guilty: {found.guilty} ({layer.kind.rpartition('.')[2]}){place}: {cause}"
