"""The tables of judge.py, aligned, from its cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from modelc.benchmarks.judge_measures import PEERS, Case

_CHECKS = [f"{name} {many}" for name in PEERS for many in ("one", "all")]
_HEAD = ["modelc", *_CHECKS]
_NOTE = (
    "1e-5: allclose(atol=rtol=1e-5); 1e-3: allclose(atol=1e-3); cos: cosine >= 0.997;"
    " one: on one random batch; all: on all feeds that modelc drew"
)


def tables(cases: Sequence[Case]) -> str:
    """All tables as text."""
    good = [one for one in cases if one.group == "good" and one.state != "not made"]
    bad = [one for one in cases if one.group != "good" and one.state != "not made"]
    return "\n".join(
        [
            _NOTE,
            "",
            "good conversions that are rejected (false fails)",
            *_rows(good, lambda one: f"{one.precision} {one.target}", lambda ok: not ok),
            "",
            "faults that pass (false passes), of all",
            *_rows(bad, lambda one: f"{one.precision} {one.target}", _same),
            "",
            "faults that pass (false passes), of those that show above eager's own roundoff",
            *_rows(
                [one for one in bad if one.is_visible],
                lambda one: f"{one.precision} {one.target}",
                _same,
            ),
            "",
            "of those that show above the good artifact's own error",
            *_rows(
                [one for one in bad if one.stands_out],
                lambda one: f"{one.precision} {one.target}",
                _same,
            ),
            "",
            "of those that show above eager's own roundoff, by size over it (fp32)",
            *_rows(
                [one for one in bad if one.precision == "fp32" and one.is_visible], _band, _same
            ),
            "",
            "the same by kind (fp32)",
            *_rows(
                [one for one in bad if one.precision == "fp32" and one.is_visible], _kind, _same
            ),
            "",
            *_ratios(good),
            "",
            "what modelc got wrong",
            *_wrong(cases),
        ]
    )


def _kind(one: Case) -> str:
    return one.kind


def _same(ok: bool) -> bool:
    return ok


def _band(one: Case) -> str:
    size = max(one.visible, one.elsewhere)
    for limit, name in ((4, "1 to 4"), (10, "4 to 10"), (100, "10 to 100"), (1e4, "100 to 1e4")):
        if size <= limit:
            return name
    return "above 1e4"


def _rows(
    cases: Sequence[Case], name: Callable[[Case], str], wrong: Callable[[bool], bool]
) -> Iterator[str]:
    """One row for each name, and one for all: how many are wrong by each check."""
    groups: dict[str, list[Case]] = {}
    for one in cases:
        groups.setdefault(name(one), []).append(one)
    yield _line("", ["cases", *_HEAD])
    for said, ones in sorted(groups.items()):
        yield _line(said, [str(len(ones)), *map(str, _counts(ones, wrong))])
    total = _counts(cases, wrong)
    yield _line("all", [str(len(cases)), *map(str, total)])
    if cases:
        yield _line("rate", ["", *(f"{count / len(cases):.1%}" for count in total)])


def _counts(cases: Sequence[Case], wrong: Callable[[bool], bool]) -> list[int]:
    counts = [sum(wrong(one.has_passed) for one in cases)]
    return counts + [sum(wrong(one.peers.get(check, False)) for one in cases) for check in _CHECKS]


def _ratios(good: Iterable[Case]) -> Iterator[str]:
    """Quantiles of how far a good artifact is from float64, over eager's own distance."""
    import numpy as np

    yield "distance of good fp32 artifacts from float64 over eager's own (worst feed and output)"
    yield _line("", ["cases", "median", "90 %", "99 %", "max", "channel max"])
    groups: dict[str, list[Case]] = {}
    for one in good:
        if one.precision == "fp32" and one.ratio is not None:
            groups.setdefault(one.target, []).append(one)
    for said, ones in sorted(groups.items()):
        found = np.quantile([one.ratio or 0.0 for one in ones], [0.5, 0.9, 0.99, 1])
        channel = max(one.channel or 0.0 for one in ones)
        yield _line(said, [str(len(ones)), *(f"{value:.2f}" for value in (*found, channel))])


def _wrong(cases: Iterable[Case]) -> Iterator[str]:
    """Each good one rejected, each fault that shows and passed, each that could not be made."""
    for one in cases:
        place = f"{one.model} {one.seed} {one.precision} {one.target}"
        if one.state == "not made":
            yield f"  not made   {place} {one.kind} {one.label}: {one.reason}"
        elif one.group == "good" and not one.has_passed:
            ratio = "" if one.ratio is None else f" (ratio {one.ratio:.2f})"
            yield f"  false fail {place}: {one.reason}{ratio}"
        elif one.group != "good" and one.has_passed and one.is_visible:
            yield (
                f"  false pass {place}: {one.kind}, {one.label}: {one.visible:.1f} times roundoff"
                f" on drawn feeds, {one.elsewhere:.1f} on its own"
                + (f", {one.standing:.2f} of the good one's error" if one.standing else "")
            )


def _line(name: str, cells: Sequence[str]) -> str:
    return f"{name:<46}" + "".join(f"{cell:>10}" for cell in cells)
