"""Locate the first layer that differs from eager, from the errors of all layers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ...checkpoints.activation_tape import TracedTensor
from ...core.contract import Array
from ...core.errors import unknown_name_error
from ...core.findings import Layer, Localisation
from ...core.kinds import Precision
from ...core.target_extensions import Probed
from ...validators.judge import ArtifactOutputs, ReferenceOutputs
from ..eager_reference import EagerReference
from ..own_weights import carry_for_search
from ..rounding_ties import mark_undecided_replies
from ..run_progress import Progress
from . import refine_culprit
from .layer_anchors import Anchor
from .layer_causes import find_cause, user_function_cause
from .layer_comparer import (
    PRECISION_SCALES,
    WORST_DB,
    LayerComparer,
    finite_sqnr,
    worse_sqnr,
)
from .layer_errors import LayerErrors, measure_layers
from .missing_operation import (
    MissingOperation,
    describe_whole_fault,
    find_exchanged_input,
    find_missing,
)
from .refine_culprit import Culprit, refine_anchor

_BESIDE = "compared with eager that has the same rounded weights, within the errors of FP32"
DEFAULT_MEMORY = 2 << 30  # bytes of activations in memory, the default of --memory


@dataclass(frozen=True, kw_only=True)
class SuspectArtifact:
    """An artifact to search; `name` is for messages and records.

    `loose` are feeds on which it may be wrong, such as those outside its calibration. `passed` is
    the recorded verdict, None if there is none.
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
    eager: EagerReference,
    progress: Progress,
    *,
    feed: str | None = None,
    memory: int = DEFAULT_MEMORY,
    out: Path | None = None,
    more: Callable[[], bool] = lambda: True,
    written: Mapping[str, str] | None = None,
) -> Localisation:
    """Locate the guilty layer of an artifact.

    Args:
        suspect: the artifact.
        eager: the eager model and its feeds.
        progress: receives the progress events.
        feed: the name of a feed; None uses the feed with the worst SQNR.
        memory: the limit on activations in memory, in bytes.
        out: the folder for the reproducer (`debug/<node>/`); None writes none.
        more: called before each run; after it returns False, no run starts, and the partial
            result has a note.
        written: the user's function that implements each operator (`ns::op`).

    Raises:
        ModelcError: the artifact cannot be opened, run or probed.
    """
    began = time.monotonic()
    log = f"debug-{suspect.name.replace('/', '-')}"
    with ExitStack() as context:
        clock = context.enter_context(progress.step("find the layer", log=log, runs_artifact=True))
        chosen = _choose_reference(suspect, eager, feed)
        probe = suspect.target.open_probe(suspect.path, eager.signature)
        beside = context.enter_context(
            carry_for_search(
                suspect.target, suspect.path, suspect.precision, eager, chosen.feed.arrays
            )
        )
        precision = Precision.FP32 if beside else suspect.precision
        scale = PRECISION_SCALES[precision]
        layers = LayerComparer(
            eager.model, probe, chosen.feed.arrays, scale=scale, limit=memory, more=more
        )
        found = measure_layers(layers)
        culprit, ties = _first_culprit(layers, found)
        cause, reader, missing = "", "", None
        if culprit is not None:
            cause, reader, missing = _explain(layers, culprit, precision, written or {})
        clock.detail = f"{len(layers.anchors)} layers, {probe.runs} runs"
        whole = describe_whole_fault(layers, found, precision, passed=suspect.passed)
        whole = "" if culprit is not None else whole
    result = _build_localisation(layers, found, culprit, cause)
    if reader:
        first = replace(result.layers[0], module=reader)
        result = replace(result, guilty=reader, layers=(first, *result.layers[1:]))
    if missing is not None:
        result = _with_missing(layers, result, missing)
    result = replace(
        result,
        artifact=suspect.name,
        feed=chosen.feed.name,
        whole=whole,
        notes=(*ties, *([_BESIDE] if beside else []), *result.notes),
        seconds=time.monotonic() - began,
        passed=suspect.passed,
    )
    if suspect.passed:
        return replace(result, guilty="", cause="", deviating=result.guilty)
    if culprit is None or out is None:
        return result
    about = f"{result.guilty or 'the model'}: {cause or 'cause unknown'}"
    place = refine_culprit.write_reproducer(culprit, probe, out, artifact=suspect.name, about=about)
    return replace(result, reproducer=place.relative_to(out).as_posix())


def _explain(
    layers: LayerComparer, culprit: Culprit, precision: Precision, written: Mapping[str, str]
) -> tuple[str, str, MissingOperation | None]:
    """Return the cause, the module if the cause names another one, and what is missing."""
    cause = user_function_cause(culprit, layers, written)
    if cause:
        return cause, "", None
    cause, reader = find_exchanged_input(layers, culprit)
    if cause:
        return cause, reader, None
    missing = find_missing(layers, culprit)
    return (missing.cause if missing else "") or find_cause(culprit, layers, precision), "", missing


def _choose_reference(
    suspect: SuspectArtifact, eager: EagerReference, feed: str | None
) -> ReferenceOutputs:
    """Return the named feed, or the artifact's worst."""
    if feed is not None:
        for reference in eager.references:
            if reference.feed.name == feed:
                return reference
        raise unknown_name_error("feed", feed, [one.feed.name for one in eager.references])
    return worst_reference(suspect, eager, eager.references)[0]


def worst_reference(
    suspect: SuspectArtifact, eager: EagerReference, references: Sequence[ReferenceOutputs]
) -> tuple[ReferenceOutputs, float]:
    """Return the feed with the worst SQNR, without the loose ones, and that SQNR in dB.

    Raises:
        RunnerError: the runtime cannot open or run the artifact.
    """
    counting = [one for one in references if one.feed.name not in suspect.loose]
    opened = suspect.target.open_runner(suspect.path, suspect.device, eager.signature)
    scores: list[float] = []
    with opened as runner:
        for one in counting:  # not at once: the outputs of all feeds would fill the memory
            reply = ArtifactOutputs(outputs=runner.run(one.feed.arrays))
            (marked,) = mark_undecided_replies([one], [reply], suspect.precision, eager)
            scores.append(_score_outputs(marked, one))
    worst = scores.index(min(scores))
    return counting[worst], scores[worst]


def _score_outputs(reply: ArtifactOutputs, reference: ReferenceOutputs) -> float:
    """Return the worst SQNR in dB of a feed's outputs; a missing output counts as `WORST_DB`."""
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


def _first_culprit(layers: LayerComparer, found: LayerErrors) -> tuple[Culprit | None, list[str]]:
    """Return the first fault that roundoff does not explain, and notes on the ones before it."""
    ties: list[str] = []
    while found.guilty:
        culprit = refine_anchor(layers, found.guilty[0])
        if layers.gap(culprit.value, culprit.expected, culprit.made) is not None:
            return culprit, ties
        found.guilty.pop(0)
        ties.append(
            f"{culprit.node.operator} {culprit.node.name} of {culprit.module or 'the model'}"
            " differs from eager only in integers that roundoff decides (ties): not a fault"
        )
    return None, ties


def _build_localisation(
    layers: LayerComparer, found: LayerErrors, culprit: Culprit | None, cause: str
) -> Localisation:
    """Build the record: the guilty layer first, then the others by their own error."""
    ranked = sorted(layers.anchors, key=lambda a: _rank_error(found.local.get(a.tensor)))
    records = [_layer_record(layers, found, anchor) for anchor in ranked]
    notes = _find_changed_outputs(layers, found)
    guilty = ""
    if culprit is not None:
        guilty = _module_of(layers, culprit)
        mine = found.guilty[0].tensor  # this part contains the guilty operation
        kept = [
            layer for layer, anchor in zip(records, ranked, strict=True) if anchor.tensor != mine
        ]
        records = [_guilty_record(layers, found, culprit, cause), *kept]
        notes += [
            f"also wrong by itself: {anchor.value.module or 'the model itself'}"
            f" ({anchor.node.operator} {anchor.node.name})"
            for anchor in found.guilty[1:]
        ]
    if not layers.watched:
        notes.append(
            "the eager model is a script, which has no hooks: only its outputs are compared"
        )
    if layers.ended:
        measured = sum(anchor.tensor in found.local for anchor in layers.anchors)
        notes.append(
            f"the search reached its time limit: {measured} of {len(layers.anchors)} layers were "
            f"measured, {len(found.judged)} judged"
        )
    return Localisation(
        artifact="",
        feed="",
        guilty=guilty or ("(model)" if culprit is not None else ""),
        cause=cause,
        layers=tuple(records),
        curve=tuple((a.value.module, found.accumulated.get(a.tensor)) for a in layers.anchors),
        runs=layers.probe.runs,
        seconds=0.0,
        memory=layers.memory,
        notes=tuple(notes),
        named_by=layers.named_by,
    )


def _module_of(layers: LayerComparer, culprit: Culprit) -> str:
    """Return the culprit's module; of nodes without an origin, the module that reads their result.

    A tool that edits a file adds such nodes, as between a decoder's cache and the layer of it.
    """
    foreign = not any(
        node.module or node.kind or node.source or node.inside for node in culprit.nodes
    )
    alone = foreign and layers.scoped and not culprit.module
    return layers.scope_of(culprit.tensor) if alone else culprit.module


def _find_changed_outputs(layers: LayerComparer, found: LayerErrors) -> list[str]:
    """Note that reading inner tensors changed the artifact's outputs by more than roundoff.

    A runtime fuses fewer layers when inner tensors are read.
    """
    if found.changed is None or found.changed >= layers.scale.quiet:
        return []
    return [
        f"reading inner tensors changed the artifact's own outputs (SQNR {found.changed:.1f} dB)"
    ]


def _rank_error(value: float | None) -> float:
    return math.inf if value is None else value


def _layer_record(layers: LayerComparer, found: LayerErrors, anchor: Anchor) -> Layer:
    value = anchor.value
    before: float | None = None
    for one in layers.reads(anchor):
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


def _guilty_record(
    layers: LayerComparer, found: LayerErrors, culprit: Culprit, cause: str
) -> Layer:
    """Return the record of the guilty layer, at the operation and line of the culprit."""
    node, value = culprit.node, _seen_value(layers, culprit)
    file, line = (value.file, value.line) if value.file else _split_place(node.source)
    module = _module_of(layers, culprit)
    owner = next((v for v in layers.values if v.module == module), value)
    return replace(
        _layer_record(layers, found, found.guilty[0]),
        module=module,
        kind=owner.kind,
        file=file,
        line=line,
        node=node.name,
        operator=node.operator,
        local=culprit.local,
        cause=cause,
    )


def _with_missing(
    layers: LayerComparer, found: Localisation, missing: MissingOperation
) -> Localisation:
    """Name the layer without a counterpart in the artifact as the guilty one, at its own line."""
    value, module = missing.value, missing.module
    owner = next((one for one in layers.values if one.module == module), value)
    first, *others = found.layers
    first = replace(first, module=module, kind=owner.kind)
    if not missing.there and value.file:
        first = replace(first, file=value.file, line=value.line)
    return replace(found, guilty=module or "(model)", layers=(first, *others))


def _seen_value(layers: LayerComparer, culprit: Culprit) -> TracedTensor:
    """Return the value whose line is reported.

    For a loop without a value of its own, this is the last value computed inside it.
    """
    body = culprit.body
    modules = () if body is None else body.inside or ()
    if culprit.value.module in modules:
        return culprit.value
    inside = [value for value in layers.values if value.module in modules and not value.operation]
    before = [value for value in inside if value.order < culprit.value.order]
    return before[-1] if before else culprit.value


def _split_place(source: str) -> tuple[str, int]:
    file, _, line = source.rpartition(":")
    return (file, int(line)) if line.isdigit() else ("", 0)
