"""What a reader should know of outputs that passed all the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..core.verdict import OutputVerdict, Verdict
from .decide import is_excused
from .evidence import Pair

_ROUGH = 1e-4  # of the signal: eager is no nearer to float64 than 80 dB


def notes_on(verdict: Verdict, pairs: Sequence[Pair], told: Mapping[str, str]) -> tuple[str, ...]:
    """The notes on all outputs, feeds as `told` describes them."""
    names = dict.fromkeys(output.output for output in verdict.outputs)
    notes: list[str] = []
    for name in names:
        ones = [o for o in verdict.outputs if o.output == name and not o.loose and o.passed]
        notes += _notes(name, ones, verdict, told)
        if pairs and all(pair.eager[name].size == 0 for pair in pairs):
            notes.append(f"output {name!r} is empty on every feed: only its shape was compared")
    return tuple(notes)


def _notes(
    name: str, ones: Sequence[OutputVerdict], verdict: Verdict, told: Mapping[str, str]
) -> Iterator[str]:
    def on(found: Sequence[OutputVerdict]) -> str:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return f"on feed {told.get(found[0].feed, found[0].feed)}{more}"

    odd = [o for o in ones if o.nonfinite_eager]
    if odd:
        count = odd[0].nonfinite_eager
        yield f"output {name!r} has {count} NaN/Inf {on(odd)}, in eager's places"
    small = [o for o in ones if is_excused(o, verdict.tolerance.of(name))]
    if small:
        yield (
            f"output {name!r} {on(small)} is far below its usual scale: "
            "its errors are roundoff at that, large at its own"
        )
    rough = sorted((o for o in ones if (o.floor or 0.0) > _ROUGH), key=lambda o: -(o.floor or 0.0))
    if rough:
        yield (
            f"output {name!r} is ill-conditioned {on(rough)}: eager's own float32 is "
            f"{rough[0].floor:.0e} of it from float64, and the artifact no worse"
        )
    open_ = [o for o in ones if o.undecided]
    if open_:
        yield (
            f"output {name!r} {on(open_)}: {open_[0].undecided} elements differ where roundoff "
            "decides, in eager too"
        )
