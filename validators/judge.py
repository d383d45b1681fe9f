"""Judge an artifact's outputs against eager's on every feed: verdict, notes and histograms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.findings import Histogram
from ..core.kinds import ReasonCode
from ..core.verdict import (
    ChannelVerdict,
    Excuse,
    GroupVerdict,
    OutputVerdict,
    Reason,
    State,
    Tolerance,
    Verdict,
)
from .apply_tolerance import apply_tolerance
from .channel_metrics import measure_channels, measure_groups
from .feeds import describe_named_feed
from .input_sensitivity import check_input_sensitivity
from .metrics import fill_limit
from .noise_floor import NoiseFloors, measure_floors
from .output_pairs import (
    ArtifactOutputs,
    OutputPair,
    ReferenceOutputs,
    add_mismatch_hints,
    measure_output,
)
from .tolerance import OutputScale

if TYPE_CHECKING:
    from ..core.signature import Signature

__all__ = ["ArtifactOutputs", "ReferenceOutputs", "judge"]

_MOST = 1e30  # times the floor; a finite limit because JSON has no Inf


def judge(  # noqa: PLR0913 - both sides' outputs, and the terms of judging
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

    It passes if it accepted every feed, returned the signature's outputs in order, each within
    tolerance and in each channel (see `measure_channels`), and follows every input that eager
    follows. If it rejected every feed, the state is `error`.

    Args:
        artifact: the name of the artifact.
        references: eager's outputs, one entry per feed.
        replies: the artifact's outputs, in the order of `references`.
        tolerance: the allowed errors.
        device: the device that the artifact ran on.
        artifact_inputs: the inputs that the artifact itself takes.
        signature: the expected inputs and outputs.
        loose: names of feeds on which only shapes, dtypes and NaN/Inf count, such as noise for a
            model that was calibrated with images.
        by_channel: whether to judge each channel at its own scale too. All channels of an 8-bit
            tensor share one noise, which hides quiet channels by design; for these, groups of
            channels are judged instead (see `measure_groups`).

    Raises:
        RuntimeError: an internal error: nothing to judge, or an array would be compared with
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
    unfollowed, sensitivity_notes = check_input_sensitivity(
        pairs, signature, artifact_inputs, tolerance
    )
    faults = (
        *_check_names(pairs, signature),
        *_describe_refusals(references, replies),
        *unfollowed,
    )
    feed_texts = {pair.feed.name: describe_named_feed(pair.feed) for pair in pairs}
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
    verdict = add_mismatch_hints(apply_tolerance(verdict, tolerance, feed_texts), near, tolerance)
    verdict = apply_tolerance(verdict, tolerance, feed_texts)
    notes = (*sensitivity_notes, *(note for one in measured for note in one.notes))
    return replace(
        verdict,
        notes=(*notes, *collect_notes(verdict, near, feed_texts)) if pairs else (),
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
    """Measurements of one output on all feeds that count."""

    outputs: list[OutputVerdict]
    channels: tuple[ChannelVerdict, ...]
    notes: tuple[str, ...]
    groups: tuple[GroupVerdict, ...] = ()


def _measure_against_eager(
    name: str, pairs: Sequence[OutputPair], limits: Tolerance, by_channel: bool
) -> _OutputMeasures:
    """Measure an output against eager and, if the tolerance has a floor factor, against float64."""
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
        channels = floors.channels
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
    """Raise on inputs that would decide the verdict regardless of the artifact."""
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
    """Return outputs that are missing, extra or reordered, each once."""
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
    """Describe the first feed that the artifact rejected, and count the others."""
    rejected = [
        (reference.feed, " ".join(reply.error.split()))
        for reference, reply in zip(references, replies, strict=True)
        if reply.outputs is None
    ]
    if not rejected:
        return []
    feed, error = rejected[0]
    more = f" (and {len(rejected) - 1} more)" if len(rejected) > 1 else ""
    every = len(rejected) == len(references)
    text = "rejected every feed" if every else f"rejected feed {describe_named_feed(feed)}{more}"
    code = ReasonCode.FEED_REFUSED
    return [Reason(code=code, text=f"{text}: {error}", fault=True, feed=feed.name)]


# Notes on outputs that passed.


def collect_notes(
    verdict: Verdict, pairs: Sequence[OutputPair], feed_texts: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the notes on all outputs; `feed_texts` describes feeds by name."""
    names = dict.fromkeys(output.output for output in verdict.outputs)
    notes: list[str] = []
    for name in names:
        ones = [o for o in verdict.outputs if o.output == name and not o.loose and o.passed]
        notes += _output_notes(name, ones, feed_texts)
        if pairs and all(pair.eager[name].size == 0 for pair in pairs):
            notes.append(f"output {name!r} is empty on every feed: only its shape was compared")
    return tuple(notes)


def _output_notes(
    name: str, ones: Sequence[OutputVerdict], feed_texts: Mapping[str, str]
) -> Iterator[str]:
    def on(found: Sequence[OutputVerdict]) -> str:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return f"on feed {feed_texts.get(found[0].feed, found[0].feed)}{more}"

    odd = [o for o in ones if o.nonfinite_eager]
    if odd:
        count = odd[0].nonfinite_eager
        yield f"output {name!r} has {count} NaN/Inf {on(odd)}, in eager's places"
    small = [o for o in ones if o.excuse is Excuse.USUAL_SCALE]
    if small:
        yield (
            f"output {name!r} {on(small)} is far below its usual scale: "
            "its errors are roundoff at that, large at its own"
        )
    rough = [o for o in ones if o.excuse is Excuse.ILL_CONDITIONED]
    if rough:
        rough.sort(key=lambda o: -(o.moved or 0.0))
        yield (
            f"output {name!r} is ill-conditioned {on(rough)}: noise of 2^-24 in inputs and weights "
            f"moves eager's own float32 by {rough[0].moved:.0e} of it, and the artifact is no worse"
        )
    open_ = [o for o in ones if o.undecided]
    if open_:
        yield (
            f"output {name!r} {on(open_)}: {open_[0].undecided} elements differ where roundoff "
            "decides, in eager too"
        )


# Histograms of an output's values, eager's beside the artifact's, for reports.


_BINS = 24


def make_histograms(verdict: Verdict, pairs: Sequence[OutputPair]) -> tuple[Histogram, ...]:
    """Make a histogram per float output, on the feed with the smallest margin."""
    by_name = {pair.feed.name: pair for pair in pairs}
    found: dict[str, OutputVerdict] = {}
    for output in verdict.outputs:
        if output.loose or output.form or output.headroom is None:
            continue
        known = found.get(output.output)
        if known is None or output.headroom < (known.headroom or 0.0):
            found[output.output] = output
    counted = (_make_histogram(name, by_name[worst.feed]) for name, worst in found.items())
    return tuple(one for one in counted if one is not None)


def _make_histogram(name: str, pair: OutputPair) -> Histogram | None:
    """Count the finite values of both in 24 bins, ignoring fill."""
    import numpy as np

    if pair.eager[name].dtype.kind != "f":
        return None
    limit = fill_limit(pair.eager[name])
    sides = [
        a[np.isfinite(a) & (np.abs(a) <= limit)] for a in (pair.eager[name], pair.artifact[name])
    ]
    low = min((float(side.min()) for side in sides if side.size), default=0.0)
    high = max((float(side.max()) for side in sides if side.size), default=0.0)
    if not low < high:
        return None
    edges = np.linspace(low, high, _BINS + 1)
    if not (np.diff(edges) > 0).all():  # closer than float64 resolves
        return None
    counts = [np.histogram(side.astype(np.float64), edges)[0] for side in sides]
    return Histogram(
        output=name,
        feed=pair.feed.name,
        edges=tuple(float(f"{edge:.6g}") for edge in edges),
        eager=tuple(int(count) for count in counts[0]),
        artifact=tuple(int(count) for count in counts[1]),
    )
