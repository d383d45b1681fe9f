"""What a reader should know of outputs that passed all the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..core.verdict import Excuse, OutputVerdict, Verdict
from .evidence import OutputPair

# What a reader should know of outputs that passed all the same.


def collect_notes(
    verdict: Verdict, pairs: Sequence[OutputPair], told: Mapping[str, str]
) -> tuple[str, ...]:
    """The notes on all outputs, feeds as `told` describes them."""
    names = dict.fromkeys(output.output for output in verdict.outputs)
    notes: list[str] = []
    for name in names:
        ones = [o for o in verdict.outputs if o.output == name and not o.loose and o.passed]
        notes += _output_notes(name, ones, told)
        if pairs and all(pair.eager[name].size == 0 for pair in pairs):
            notes.append(f"output {name!r} is empty on every feed: only its shape was compared")
    return tuple(notes)


def _output_notes(
    name: str, ones: Sequence[OutputVerdict], told: Mapping[str, str]
) -> Iterator[str]:
    def on(found: Sequence[OutputVerdict]) -> str:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return f"on feed {told.get(found[0].feed, found[0].feed)}{more}"

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
