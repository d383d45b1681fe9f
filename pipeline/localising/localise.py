"""Names the layer of an artifact that first leaves eager, with what it is and why."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...core.contract import Array, Runner
from ...core.findings import Layer, Localisation
from ...core.names import unknown
from ...core.precision import Precision
from ...core.probe import Probed
from ...sources.activation_tape import TracedTensor
from ...validators.judge import ArtifactOutputs, ReferenceOutputs
from ..stage import Progress
from ..subject import EagerReference
from ..undecided import mark_undecided_replies
from . import reproducer
from .anchors import Anchor
from .bench import LayerComparer
from .causes import find_cause, user_function_cause
from .layer_errors import LayerErrors, measure_layers
from .measure import PRECISION_SCALES, WORST_DB, finite_sqnr, worse_sqnr
from .missing import MissingOperation, find_missing
from .refine import Culprit, refine_anchor
from .whole import describe_whole_fault

DEFAULT_MEMORY = 2 << 30  # bytes of activations held at once, as --memory has it by default
_LOCALISE_STEP = "find the layer"
_SAME_DB = 0.1  # dB


@dataclass(frozen=True, kw_only=True)
class SuspectArtifact:
    """An artifact to look into: `name` is for messages and records.

    `loose` are feeds on which it need not be right, such as those it was not calibrated for.
    `passed` is the recorded verdict on it, None where there is none.
    """

    name: str
    path: Path
    target: Probed
    precision: Precision
    device: str = "cpu"
    loose: frozenset[str] = frozenset()
    passed: bool | None = None


def locate_layer(  # noqa: PLR0913 - what to look into, and how, all optional
    suspect: SuspectArtifact,
    subject: EagerReference,
    stage: Progress,
    *,
    feed: str | None = None,
    memory: int = DEFAULT_MEMORY,
    out: Path | None = None,
    more: Callable[[], bool] = lambda: True,
    written: Mapping[str, str] | None = None,
) -> Localisation:
    """Look into one artifact of an opened subject.

    Args:
        suspect: the artifact.
        subject: eager and its feeds.
        stage: where progress is told.
        feed: the name of a feed; None takes the one on which the artifact is worst.
        memory: bytes of activations to hold at once.
        out: where the reproducer goes (`debug/<node>/` in it); None writes none.
        more: asked before each run; once it is false, the result is what was found until then,
            with a note. A run that has begun ends.
        written: by operator (`ns::op`), the function of the user's that wrote it in the artifact.

    Raises:
        ModelcError: the artifact cannot be opened, run or looked into.
    """
    began = time.monotonic()
    with stage.step(_LOCALISE_STEP, log=f"debug-{suspect.name.replace('/', '-')}") as clock:
        chosen = _choose_reference(suspect, subject, feed)
        probe = suspect.target.open_probe(suspect.path, subject.signature)
        scale = PRECISION_SCALES[suspect.precision]
        bench = LayerComparer(
            subject.eager, probe, chosen.feed.arrays, scale=scale, limit=memory, more=more
        )
        found = measure_layers(bench)
        culprit, ties = _first_culprit(bench, found)
        cause, missing = "", None
        if culprit is not None:
            cause = user_function_cause(culprit, bench, written or {})
            missing = None if cause else find_missing(bench, culprit)
            cause = cause or (missing.cause if missing else "")
            cause = cause or find_cause(culprit, bench, suspect.precision)
        clock.detail = f"{len(bench.anchors)} layers, {probe.runs} runs"
        whole = describe_whole_fault(bench, found, suspect.precision, passed=suspect.passed)
        whole = "" if culprit is not None else whole
    told = replace(_build_localisation(bench, found, culprit, cause), whole=whole)
    told = told if missing is None else _with_missing(bench, told, missing)
    told = replace(told, notes=(*ties, *told.notes))
    result = replace(
        told,
        artifact=suspect.name,
        feed=chosen.feed.name,
        seconds=time.monotonic() - began,
        passed=suspect.passed,
    )
    if suspect.passed:
        return replace(result, guilty="", cause="", deviating=result.guilty)
    if culprit is None or out is None:
        return result
    about = f"{result.guilty or 'the model'}: {cause or 'cause unknown'}"
    place = reproducer.write_reproducer(culprit, probe, out, artifact=suspect.name, about=about)
    return replace(result, reproducer=place.relative_to(out).as_posix())


def _choose_reference(
    suspect: SuspectArtifact, subject: EagerReference, feed: str | None
) -> ReferenceOutputs:
    """The feed that was asked for, or the artifact's worst."""
    if feed is not None:
        for reference in subject.references:
            if reference.feed.name == feed:
                return reference
        raise unknown("feed", feed, [one.feed.name for one in subject.references])
    return worst_reference(suspect, subject, subject.references)[0]


def worst_reference(
    suspect: SuspectArtifact, subject: EagerReference, references: Sequence[ReferenceOutputs]
) -> tuple[ReferenceOutputs, float]:
    """The feed on which the artifact is worst, of those that count, and its SQNR in dB there.

    Raises:
        RunnerError: the runtime would not open or run it.
    """
    counting = [one for one in references if one.feed.name not in suspect.loose]
    opened = suspect.target.open_runner(suspect.path, suspect.device, subject.signature)
    with opened as runner:
        scores = [_score_outputs(_reply(one, runner, suspect, subject), one) for one in counting]
    worst = scores.index(min(scores))
    return counting[worst], scores[worst]


def _reply(
    reference: ReferenceOutputs, runner: Runner, suspect: SuspectArtifact, subject: EagerReference
) -> ArtifactOutputs:
    """The artifact's outputs on a feed, with marks on the integers that roundoff decides."""
    reply = ArtifactOutputs(outputs=runner.run(reference.feed.arrays))
    return mark_undecided_replies([reference], [reply], suspect.precision, subject)[0]


def _score_outputs(reply: ArtifactOutputs, reference: ReferenceOutputs) -> float:
    """The worst SQNR of one feed's outputs; of what is not there, the worst there is."""
    outputs = reply.outputs or {}
    ratios = [
        _ratio(array, outputs[name], reply.undecided.get(name)) if name in outputs else WORST_DB
        for name, array in reference.outputs.items()
        if array.dtype.kind in "fiub"
    ]
    return min((ratio for ratio in ratios if ratio is not None), default=math.inf)


def _ratio(eager: Array, other: Array, undecided: Array | None) -> float | None:
    import numpy as np

    return finite_sqnr(eager, other if undecided is None else np.where(undecided, eager, other))


def _first_culprit(bench: LayerComparer, found: LayerErrors) -> tuple[Culprit | None, list[str]]:
    """The first that roundoff does not explain, and notes on those before it that it does."""
    ties: list[str] = []
    while found.guilty:
        culprit = refine_anchor(bench, found.guilty[0])
        if bench.gap(culprit.value, culprit.expected, culprit.made) is not None:
            return culprit, ties
        found.guilty.pop(0)
        ties.append(
            f"{culprit.node.operator} {culprit.node.name} of {culprit.module or 'the model'} gives"
            " other integers than eager where roundoff decides (ties): no fault"
        )
    return None, ties


def _build_localisation(
    bench: LayerComparer, found: LayerErrors, culprit: Culprit | None, cause: str
) -> Localisation:
    """The record: the guilty first, then the others by their own error."""
    ranked = sorted(bench.anchors, key=lambda a: _rank_error(found.local.get(a.tensor)))
    layers = [_layer_record(bench, found, anchor) for anchor in ranked]
    notes = _find_changed_outputs(bench, found)
    guilty = ""
    if culprit is not None:
        guilty = culprit.module
        mine = found.guilty[0].tensor  # its part held the guilty operation
        kept = [
            layer for layer, anchor in zip(layers, ranked, strict=True) if anchor.tensor != mine
        ]
        layers = [_guilty_record(bench, found, culprit, cause), *kept]
        notes += [
            f"also wrong by itself: {anchor.value.module or 'the model itself'}"
            f" ({anchor.node.operator} {anchor.node.name})"
            for anchor in found.guilty[1:]
        ]
    if not bench.watched:
        notes.append(
            "the eager model is a script, which cannot be watched: its outputs alone are compared"
        )
    if bench.ended:
        notes.append(f"the time ended before all was looked at: {_progress_text(bench, found)}")
    return Localisation(
        artifact="",
        feed="",
        guilty=guilty or ("(model)" if culprit is not None else ""),
        cause=cause,
        layers=tuple(layers),
        curve=tuple((a.value.module, found.accumulated.get(a.tensor)) for a in bench.anchors),
        runs=bench.probe.runs,
        seconds=0.0,
        memory=bench.memory,
        notes=tuple(notes),
        named_by=bench.named_by,
    )


def _progress_text(bench: LayerComparer, found: LayerErrors) -> str:
    measured = sum(anchor.tensor in found.local for anchor in bench.anchors)
    return f"{measured} of {len(bench.anchors)} layers were measured, {len(found.judged)} judged"


def _find_changed_outputs(bench: LayerComparer, found: LayerErrors) -> list[str]:
    """What reading inner tensors did to the artifact's own outputs, if that is more than roundoff.

    A runtime fuses less when a tensor inside is read.
    """
    if found.changed is None or found.changed >= bench.scale.quiet:
        return []
    return [
        f"reading inner tensors changed the artifact's own outputs (SQNR {found.changed:.1f} dB)"
    ]


def _rank_error(value: float | None) -> float:
    return math.inf if value is None else value


def _layer_record(bench: LayerComparer, found: LayerErrors, anchor: Anchor) -> Layer:
    value = anchor.value
    before: float | None = None
    for one in bench.reads(anchor):
        before = worse_sqnr(before, found.accumulated.get(one.tensor))
    file, line = (value.file, value.line) if value.file else _split_place(anchor.node.source)
    return Layer(
        module=value.module,
        kind=value.kind,
        file=file,
        line=line,
        node=anchor.node.name,
        operator=anchor.node.operator,
        local=found.local.get(anchor.tensor),
        accumulated=found.accumulated.get(anchor.tensor),
        before=before,
    )


def _guilty_record(bench: LayerComparer, found: LayerErrors, culprit: Culprit, cause: str) -> Layer:
    """The guilty layer, at the operation and the line that `refine` found."""
    node, value = culprit.node, _seen_value(bench, culprit)
    file, line = (value.file, value.line) if value.file else _split_place(node.source)
    owner = next((v for v in bench.values if v.module == culprit.module), value)
    return replace(
        _layer_record(bench, found, found.guilty[0]),
        module=culprit.module,
        kind=owner.kind,
        file=file,
        line=line,
        node=node.name,
        operator=node.operator,
        local=culprit.local,
        cause=cause,
    )


def _with_missing(
    bench: LayerComparer, told: Localisation, missing: MissingOperation
) -> Localisation:
    """The record with the layer whose counterpart is missing, at its own line, as the guilty."""
    value, module = missing.value, missing.module
    owner = next((one for one in bench.values if one.module == module), value)
    first, *others = told.layers
    first = replace(first, module=module, kind=owner.kind)
    if not missing.there and value.file:
        first = replace(first, file=value.file, line=value.line)
    return replace(told, guilty=module or "(model)", layers=(first, *others))


def _seen_value(bench: LayerComparer, culprit: Culprit) -> TracedTensor:
    """The value whose line is told: of a loop without one of its own, the last computed in it."""
    body = culprit.body
    modules = () if body is None else body.inside or ()
    if culprit.value.module in modules:
        return culprit.value
    inside = [value for value in bench.values if value.module in modules and not value.operation]
    before = [value for value in inside if value.order < culprit.value.order]
    return before[-1] if before else culprit.value


def _split_place(source: str) -> tuple[str, int]:
    file, _, line = source.rpartition(":")
    return (file, int(line)) if line.isdigit() else ("", 0)
