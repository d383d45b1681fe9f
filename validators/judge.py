"""One artifact's outputs beside eager's on every feed: a Verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.verdict import State, Tolerance, Verdict
from .compare import Compared, compare_channels, compare_form, compare_output, notes_on
from .evidence import Pair, Reference, Reply
from .feeds import describe
from .reach import reach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.signature import Signature

__all__ = ["Reference", "Reply", "judge"]


def judge(  # noqa: PLR0913 - what eager said, what the artifact said, and what is asked of both
    *,
    artifact: str,
    references: Sequence[Reference],
    replies: Sequence[Reply],
    tolerance: Tolerance,
    device: str,
    artifact_inputs: Sequence[str],
    signature: Signature,
    loose: frozenset[str] = frozenset(),
    by_channel: bool = True,
) -> Verdict:
    """Judge one artifact on all feeds.

    It passes if it answered every feed, with the signature's outputs in the signature's order,
    each within tolerance (see `compare_output`), in each channel too (see `channel_faults`), and
    follows every input that eager follows (see `reach`). If it refused every feed, the state is
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
            is one for all their channels: a quiet one drowns in it by design.

    Raises:
        RuntimeError: a bug of ours: nothing to judge, or an array that would be compared with
            itself.
    """
    _refuse_bugs(references, replies, signature)
    pairs = [
        Pair(feed=reference.feed, eager=reference.outputs, artifact=reply.outputs)
        for reference, reply in zip(references, replies, strict=True)
        if reply.outputs is not None
    ]
    near = [pair for pair in pairs if pair.feed.name not in loose]
    far = [pair for pair in pairs if pair.feed.name in loose]
    compared = {name: compare_output(name, near, tolerance) for name in signature.outputs}
    formed = {name: compare_form(name, far) for name in signature.outputs}
    found = reach(pairs, signature, artifact_inputs, tolerance)
    results = [one for each in (compared, formed) for ones in each.values() for one in ones]
    faults = [*_naming(pairs, signature), *_refusals(references, replies), *found.faults]
    notes = [note for name, ones in compared.items() for note in notes_on(name, near, ones)]
    channels = [
        fault
        for name, ones in (compared.items() if by_channel else ())
        for fault in compare_channels(name, near, ones, tolerance)
    ]
    reason = "; ".join([*faults, *_worst(results), *channels])
    state = State.FAILED if reason else State.PASSED
    return Verdict(
        artifact=artifact,
        state=state if pairs else State.ERROR,
        reason=reason,
        device=device,
        tolerance=tolerance,
        feeds=tuple(reference.feed.name for reference in references),
        outputs=tuple(result.verdict for result in results),
        notes=(*found.notes, *notes) if pairs else (),
    )


def _refuse_bugs(
    references: Sequence[Reference], replies: Sequence[Reply], signature: Signature
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
                        f"on feed {describe(reference.feed)}: an array beside itself"
                    )


def _naming(pairs: Sequence[Pair], signature: Signature) -> list[str]:
    """Outputs that are missing, too many or in another order, each told once."""
    wanted = signature.outputs
    found: dict[str, None] = {}
    for pair in pairs:
        got = tuple(pair.artifact)
        found |= {f"output {name!r} is missing": None for name in wanted if name not in got}
        found |= {f"output {name!r} is extra": None for name in got if name not in wanted}
        if got != wanted and set(got) == set(wanted):
            found[f"outputs are reordered: {', '.join(got)} instead of {', '.join(wanted)}"] = None
    return list(found)


def _refusals(references: Sequence[Reference], replies: Sequence[Reply]) -> list[str]:
    """The first feed that the artifact refused, and how many more."""
    refused = [
        (reference.feed, " ".join(reply.error.split()))
        for reference, reply in zip(references, replies, strict=True)
        if reply.outputs is None
    ]
    if not refused:
        return []
    feed, error = refused[0]
    if len(refused) == len(references):
        return [f"refused every feed: {error}"]
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    return [f"refused feed {describe(feed)}{more}: {error}"]


def _worst(results: Sequence[Compared]) -> list[str]:
    """The worst failing output, its feed and why, and how many more failed."""
    failed = [one for one in results if not one.verdict.passed and one.severity >= 0]
    if not failed:
        return []
    worst = max(failed, key=lambda one: one.severity)
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return [f"output {worst.verdict.output!r} on feed {worst.feed}: {worst.verdict.reason}{more}"]
