"""One artifact's outputs beside eager's on every feed: a Verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.verdict import (
    ChannelVerdict,
    GroupVerdict,
    OutputVerdict,
    Reason,
    ReasonCode,
    State,
    Tolerance,
    Verdict,
)
from .channels import measure_channels
from .clues import add_mismatch_hints
from .compare import measure_output
from .decide import apply_tolerance
from .evidence import ArtifactOutputs, OutputPair, ReferenceOutputs
from .feeds import describe_named_feed
from .floor import NoiseFloors, floor_verdicts, measure_floors
from .groups import measure_groups
from .histograms import make_histograms
from .notes import collect_notes
from .reach import check_input_sensitivity
from .scale import OutputScale

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.signature import Signature

__all__ = ["ArtifactOutputs", "ReferenceOutputs", "judge"]

_MOST = 1e30  # times the floor: a number that JSON can hold


def judge(  # noqa: PLR0913 - what eager said, what the artifact said, and what is asked of both
    *,
    artifact: str,
    references: Sequence[ReferenceOutputs],
    replies: Sequence[ArtifactOutputs],
    tolerance: Tolerance,
    device: str,
    artifact_inputs: Sequence[str],
    signature: Signature,
    loose: frozenset[str] = frozenset(),
    by_channel: bool = True,
) -> Verdict:
    """Judge one artifact on all feeds.

    It passes if it answered every feed, with the signature's outputs in the signature's order,
    each within tolerance, in each channel too (see `measure_channels`), and follows
    every input that eager follows. If it refused every feed, the state is
    `error`: there was nothing to judge.

    Args:
        artifact: the name of the artifact.
        references: eager's outputs, one for each feed.
        replies: the artifact's, in the order of `references`.
        tolerance: what an output may differ by.
        device: where the artifact ran.
        artifact_inputs: the inputs that the artifact itself takes.
        signature: the inputs and outputs that it should have.
        loose: names of feeds whose values are none of the artifact's business, as noise is none of
            a model's that was calibrated with images: there only shapes, dtypes and NaN/Inf count.
        by_channel: whether each channel is judged at its own scale too. The noise of 8-bit tensors
            is one for all their channels, and a quiet one drowns in it by design: there, groups of
            channels are judged at theirs (see `measure_groups`).

    Raises:
        RuntimeError: a bug of ours: nothing to judge, or an array that would be compared with
            itself.
    """
    _refuse_invalid(references, replies, signature)
    pairs = _pair_outputs(references, replies)
    near = [pair for pair in pairs if pair.feed.name not in loose]
    far = [pair for pair in pairs if pair.feed.name in loose]
    measured = [
        _measure_against_eager(name, near, tolerance.of(name), by_channel)
        for name in signature.outputs
    ]
    formed = [
        o
        for name in signature.outputs
        for o in measure_output(name, [p for p in far if name not in p.left_out], loose=True)
    ]
    found = check_input_sensitivity(pairs, signature, artifact_inputs, tolerance)
    faults = (
        *_check_names(pairs, signature),
        *_describe_refusals(references, replies),
        *found.faults,
    )
    told = {pair.feed.name: describe_named_feed(pair.feed) for pair in pairs}
    verdict = Verdict(
        artifact=artifact,
        state=State.PASSED if pairs else State.ERROR,
        device=device,
        tolerance=tolerance,
        feeds=tuple(reference.feed.name for reference in references),
        outputs=(*(o for one in measured for o in one.outputs), *formed),
        reasons=faults,
        channels=tuple(channel for one in measured for channel in one.channels),
        groups=tuple(group for one in measured for group in one.groups),
    )
    verdict = add_mismatch_hints(apply_tolerance(verdict, tolerance, told), near, tolerance)
    verdict = apply_tolerance(verdict, tolerance, told)
    notes = (*found.notes, *(note for one in measured for note in one.notes))
    return replace(
        verdict,
        notes=(*notes, *collect_notes(verdict, near, told)) if pairs else (),
        histograms=make_histograms(verdict, near),
    )


def _pair_outputs(
    references: Sequence[ReferenceOutputs], replies: Sequence[ArtifactOutputs]
) -> list[OutputPair]:
    return [
        OutputPair(
            feed=reference.feed,
            eager=reference.outputs,
            artifact=reply.outputs,
            exact=reference.exact,
            again=reference.again,
            sequential=reference.sequential,
            undecided=reply.undecided,
            left_out=reference.left_out,
        )
        for reference, reply in zip(references, replies, strict=True)
        if reply.outputs is not None
    ]


@dataclass(frozen=True, kw_only=True)
class _OutputMeasures:
    """One output on all feeds that count."""

    outputs: list[OutputVerdict]
    channels: tuple[ChannelVerdict, ...]
    notes: tuple[str, ...]
    groups: tuple[GroupVerdict, ...] = ()


def _measure_against_eager(
    name: str, pairs: Sequence[OutputPair], limits: Tolerance, by_channel: bool
) -> _OutputMeasures:
    """Measure an output against eager and, where that is what it is held to, against float64."""
    pairs = [pair for pair in pairs if name not in pair.left_out]
    outputs = measure_output(name, pairs, loose=False)
    if any(o.form for o in outputs) or not pairs or pairs[0].eager[name].dtype.kind not in "fc":
        return _OutputMeasures(outputs=outputs, channels=(), notes=())
    floors = None if limits.floor_factor is None else measure_floors(name, pairs)
    if floors is not None:
        outputs = [_add_floor(o, floors) for o in outputs]
    by_table = floors is None or not floors.feeds
    channels: tuple[ChannelVerdict, ...] = ()
    if not by_table and floors is not None:
        channels = tuple(floor_verdicts(name, floors))
    elif by_channel and not all(o.exact for o in outputs):
        floor = OutputScale.of(outputs).floor(limits)
        channels = tuple(measure_channels(name, pairs, floor=floor, tolerance=limits))
    notes = (floors.note,) if floors is not None and floors.note else ()
    groups = () if by_channel else tuple(measure_groups(name, pairs))
    return _OutputMeasures(outputs=outputs, channels=channels, notes=notes, groups=groups)


def _add_floor(output: OutputVerdict, floors: NoiseFloors) -> OutputVerdict:
    found = floors.feeds.get(output.feed)
    if found is None:
        return output
    times = 0.0 if output.exact else min(found.times, _MOST)
    return replace(output, floor=found.floor, times_floor=times, moved=found.moved)


def _refuse_invalid(
    references: Sequence[ReferenceOutputs], replies: Sequence[ArtifactOutputs], signature: Signature
) -> None:
    """Refuse what would pass, or fail, for no fault of the artifact's."""
    import numpy as np

    if not references or not signature.outputs:
        raise RuntimeError("nothing to judge: there are no feeds or no outputs")
    for reference, reply in zip(references, replies, strict=True):
        if tuple(reference.outputs) != signature.outputs:
            raise RuntimeError(f"eager gave {list(reference.outputs)}, not {signature.outputs}")
        for name, array in (reply.outputs or {}).items():
            for other, eager in reference.outputs.items():
                if np.shares_memory(array, eager):
                    raise RuntimeError(
                        f"output {name!r} shares memory with eager's {other!r} "
                        f"on feed {describe_named_feed(reference.feed)}: an array beside itself"
                    )


def _check_names(pairs: Sequence[OutputPair], signature: Signature) -> list[Reason]:
    """Outputs that are missing, too many or in another order, each told once."""
    wanted = signature.outputs
    found: dict[str, None] = {}
    for pair in pairs:
        got = tuple(pair.artifact)
        found |= {f"output {name!r} is missing": None for name in wanted if name not in got}
        found |= {f"output {name!r} is extra": None for name in got if name not in wanted}
        if got != wanted and set(got) == set(wanted):
            found[f"outputs are reordered: {', '.join(got)} instead of {', '.join(wanted)}"] = None
    return [Reason(code=ReasonCode.OUTPUT_NAMES, text=text, fault=True) for text in found]


def _describe_refusals(
    references: Sequence[ReferenceOutputs], replies: Sequence[ArtifactOutputs]
) -> list[Reason]:
    """The first feed that the artifact refused, and how many more."""
    refused = [
        (reference.feed, " ".join(reply.error.split()))
        for reference, reply in zip(references, replies, strict=True)
        if reply.outputs is None
    ]
    if not refused:
        return []
    feed, error = refused[0]
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    every = len(refused) == len(references)
    text = "refused every feed" if every else f"refused feed {describe_named_feed(feed)}{more}"
    code = ReasonCode.FEED_REFUSED
    return [Reason(code=code, text=f"{text}: {error}", fault=True, feed=feed.name)]
