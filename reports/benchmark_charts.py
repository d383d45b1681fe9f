"""Charts of a benchmark: latency against quality, speed-ups, and curves by a dim.

Each chart is drawn for wide and for narrow pages; the style sheet shows the one that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from .chart_parts import (
    LEFT_MARGIN,
    LINE,
    MARKS,
    ChartAxis,
    ChartBox,
    ChartLabel,
    draw_line,
    draw_mark,
    draw_text,
    draw_whisker,
    draw_x_axis,
    draw_y_axis,
    is_spread,
    lead_to,
    make_axis,
    place_labels,
    shorten,
    text_width,
    wrap_chart,
)
from .markup import Markup, join, tag

WIDE, NARROW = 840.0, 360.0  # px
_PLOT = 270.0  # px, the height of a plot
_RIGHT = 12.0
_COLORS = 6  # and the marks of MARKS, so that 42 curves differ
_DASHES = 4


class MarkKind(StrEnum):
    """What is known of a row's outputs; each kind has a mark of its own."""

    PASSED = "passed"
    REFERENCE = "reference"
    REJECTED = "rejected"
    UNJUDGED = "unjudged"


_SHAPES = {
    MarkKind.PASSED: "circle",
    MarkKind.REFERENCE: "square",
    MarkKind.REJECTED: "cross",
    MarkKind.UNJUDGED: "triangle",
}
_KIND_TEXTS = {
    MarkKind.PASSED: "passed",
    MarkKind.REFERENCE: "reference",
    MarkKind.REJECTED: "rejected",
    MarkKind.UNJUDGED: "not judged",
}


@dataclass(frozen=True, kw_only=True)
class QualityMark:
    """A row in the chart of latency against quality.

    `value` is in the unit of the axis, None for exact rows. `text` is shown with the pointer.
    """

    name: str
    text: str
    kind: MarkKind
    ms: float
    low: float
    high: float
    value: float | None


@dataclass(frozen=True, kw_only=True)
class SpeedupBar:
    """A row's speed-up with its interval; `is_equal` to the baseline within the noise."""

    name: str
    text: str
    kind: MarkKind
    value: float
    low: float
    high: float
    is_equal: bool


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """A value with its interval at one size of the dim."""

    size: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class RowCurve:
    """One row by the sizes of a dim; `number` chooses its colour, mark and dashes."""

    name: str
    number: int
    points: tuple[CurvePoint, ...]


def draw_for_widths(draw: Callable[[float], Markup]) -> Markup:
    """Return a chart for wide and for narrow pages."""
    wide, narrow = tag("div", draw(WIDE), class_="wide"), tag("div", draw(NARROW), class_="narrow")
    return join([wide, narrow])


def quality_chart(marks: Sequence[QualityMark], front: Sequence[str], quality: str) -> Markup:
    """Return the chart of latency against quality, with the front as a step line, and its key.

    Args:
        marks: at least one row.
        front: names of the rows on the front, the fastest first.
        quality: title of the y axis; with "%" in it, values are per cent.
    """
    drawn = draw_for_widths(lambda width: _draw_quality(marks, front, quality, width))
    kinds = [kind for kind in MarkKind if any(mark.kind is kind for mark in marks)]
    keys = [_key(draw_mark(_SHAPES[kind], 8, 8, class_=kind), _KIND_TEXTS[kind]) for kind in kinds]
    if len(front) > 1:
        line = tag("path", d="M0 12H8V4H16", class_="front")
        keys.append(_key(line, "Pareto front"))
    return join([drawn, tag("div", keys, class_="legend")])


def _key(inner: Markup, text: str) -> Markup:
    sign = tag("svg", inner, viewBox="0 0 16 16", class_="graph sign", aria_hidden="true")
    return tag("span", sign, text)


def _draw_quality(
    marks: Sequence[QualityMark], front: Sequence[str], quality: str, width: float
) -> Markup:
    exact = sorted((m for m in marks if m.value is None), key=lambda m: m.ms)
    band = LINE * len(exact) + 10 if exact else 0.0
    values = [mark.value for mark in marks if mark.value is not None]
    top = 24.0
    bottom = top + band + (_PLOT if values else 0.0)
    right = width - _RIGHT
    ends = [end for mark in marks for end in (mark.ms, mark.low, mark.high)]
    across = make_axis(ends, LEFT_MARGIN, right, log=is_spread(ends))
    inner = [draw_text(quality, 0, 13, "axis")]
    places = {m.name: (across.place(m.ms), top + 13 + LINE * i) for i, m in enumerate(exact)}
    if exact:
        inner += [tag("rect", x=LEFT_MARGIN, y=top, width=right - LEFT_MARGIN, height=band,
                      class_="band"),
                  draw_text("exact", LEFT_MARGIN - 6, top + 17, "tick end")]  # fmt: skip
    inner.append(draw_x_axis(across, across.ticks(int(width / 60)), top, bottom))
    if values:
        upward = make_axis(values, bottom, top + band, log=False)
        inner.append(draw_y_axis(upward, upward.ticks(6), right))
        for mark in marks:
            if mark.value is not None:
                places[mark.name] = (across.place(mark.ms), upward.place(mark.value))
    inner.append(draw_text("median ms", right, bottom + 2 * LINE, "axis end"))
    inner += _draw_front([places[name] for name in front if name in places])
    inner += _draw_quality_marks(marks, places, across)
    room = ChartBox(left=LEFT_MARGIN, top=top, right=right, bottom=bottom)
    taken = _boxes_to_avoid(marks, front, places, across)
    inner += _draw_labels(marks, front, places, room, taken)
    text = f"{len(marks)} rows; " + ("on the front: " + ", ".join(front) if front else "no front")
    return wrap_chart(inner, (width, bottom + 2 * LINE + 6), f"Latency against {quality}", text)


def _draw_front(places: Sequence[tuple[float, float]]) -> list[Markup]:
    if len(places) < 2:  # noqa: PLR2004 - a line has two ends
        return []
    steps = [f"M{places[0][0]} {places[0][1]}", *(f"H{x}V{y}" for x, y in places[1:])]
    return [tag("path", d="".join(steps), class_="front")]


def _draw_quality_marks(
    marks: Sequence[QualityMark], places: dict[str, tuple[float, float]], across: ChartAxis
) -> list[Markup]:
    drawn: list[Markup] = []
    for mark in marks:
        x, y = places[mark.name]
        ends = (across.place(mark.low), y), (across.place(mark.high), y)
        drawn.append(draw_whisker(*ends, mark.kind))
        drawn.append(draw_mark(_SHAPES[mark.kind], x, y, tag("title", mark.text),
                               class_=mark.kind))  # fmt: skip
    return drawn


def _boxes_to_avoid(
    marks: Sequence[QualityMark],
    front: Sequence[str],
    places: dict[str, tuple[float, float]],
    across: ChartAxis,
) -> list[ChartBox]:
    """Return what names must not cover: marks, whiskers, and the line of the front."""
    taken = []
    for mark in marks:
        x, y = places[mark.name]
        taken.append(ChartBox(left=x - 7, top=y - 7, right=x + 7, bottom=y + 7))
        left, right = across.place(mark.low), across.place(mark.high)
        taken.append(ChartBox(left=left, top=y - 4, right=right, bottom=y + 4))
    for (x1, y1), (x2, y2) in pairwise(places[name] for name in front):
        taken.append(ChartBox(left=x1, top=y1 - 1, right=x2, bottom=y1 + 1))
        taken.append(ChartBox(left=x2 - 1, top=min(y1, y2), right=x2 + 1, bottom=max(y1, y2)))
    return taken


def _draw_labels(
    marks: Sequence[QualityMark],
    front: Sequence[str],
    places: dict[str, tuple[float, float]],
    room: ChartBox,
    taken: Sequence[ChartBox],
) -> list[Markup]:
    """Name the marks, those of the front first; a line leads to a name that is not beside."""
    most = min(240.0, (room.right - room.left) * 0.6)
    ordered = sorted(marks, key=lambda m: (m.name not in front, m.ms))
    labels = {
        mark.name: ChartLabel(text=shorten(mark.name, most), x=places[mark.name][0],
                              y=places[mark.name][1], is_bold=mark.name in front)
        for mark in ordered
    }  # fmt: skip
    boxes = place_labels(list(labels.values()), room, taken)
    drawn: list[Markup] = []
    for name, label in labels.items():
        box = boxes.get(label)
        if box is None:
            continue
        near = lead_to(label, box)
        if near is not None:
            drawn.append(draw_line((label.x, label.y), near, "leader"))
        kind = "named" if name in front else "other"
        drawn.append(draw_text(label.text, box.left, box.bottom - 3, kind))
    return drawn


def speedup_chart(bars: Sequence[SpeedupBar], baseline: str) -> Markup:
    """Return bars of speed-ups over the baseline, from 1.0 on a logarithmic axis."""
    return draw_for_widths(lambda width: _draw_speedups(bars, baseline, width))


def _draw_speedups(bars: Sequence[SpeedupBar], baseline: str, width: float) -> Markup:
    is_wide = width > NARROW
    texts = [f"{bar.value:.2f} ({bar.low:.2f} to {bar.high:.2f})" for bar in bars]
    end = max(map(text_width, texts))
    left = (
        min(260.0, max(text_width(_bar_name(bar, WIDE)) for bar in bars)) + 12 if is_wide else 6.0
    )
    right = width - end - 12 if is_wide else width - 6
    height = LINE * 1.6 if is_wide else LINE * 2.3
    ends = [1.0, *(value for bar in bars for value in (bar.value, bar.low, bar.high))]
    across = make_axis(ends, left, right, log=True)
    top, bottom = 6.0, 6.0 + height * len(bars) + 6
    one = across.place(1.0)
    inner = [draw_x_axis(across, across.ticks(6 if is_wide else 5), top, bottom)]
    inner.append(draw_line((one, top), (one, bottom), "one"))
    for index, (bar, text) in enumerate(zip(bars, texts, strict=True)):
        line = top + height * (index + 1) - 8
        if is_wide:
            inner.append(draw_text(_bar_name(bar, left - 12), left - 8, line, "end halo"))
            inner.append(draw_text(text, width - 6, line, "quiet end"))
        else:
            inner.append(draw_text(_bar_name(bar, width - end - 20), 6, line - 9, "halo"))
            inner.append(draw_text(text, width - 6, line - 9, "quiet end halo"))
        inner += _draw_bar(bar, across, line - 4 if is_wide else line + 3)
    inner.append(draw_text(f"times as fast as {baseline}", right, bottom + 2 * LINE, "axis end"))
    text = "; ".join(f"{bar.name}: {value}" for bar, value in zip(bars, texts, strict=True))
    size = (width, bottom + 2 * LINE + 6)
    return wrap_chart(inner, size, f"Speed-up over {baseline} with 99 % intervals", text)


def _bar_name(bar: SpeedupBar, width: float) -> str:
    """Return the name with what else is to be known of the row, of at most `width` px."""
    remark = _KIND_TEXTS[bar.kind] if bar.kind is not MarkKind.PASSED else ""
    remark = "no difference" if bar.is_equal else remark
    end = f" · {remark}" if remark else ""
    return f"{shorten(bar.name, width - text_width(end))}{end}"


def _draw_bar(bar: SpeedupBar, across: ChartAxis, y: float) -> list[Markup]:
    """Return a bar from 1.0 with its whisker; an outline alone where there is no difference."""
    start, end = sorted((across.place(1.0), across.place(bar.value)))
    kind = f"bar {'equal' if bar.is_equal else bar.kind}"
    drawn = tag("rect", tag("title", bar.text), x=start, y=round(y - 5, 1),
                width=round(max(end - start, 1), 1), height=10, class_=kind)  # fmt: skip
    ends = (across.place(bar.low), y), (across.place(bar.high), y)
    return [drawn, draw_whisker(*ends, "over")]


def curve_chart(curves: Sequence[RowCurve], dim: str, unit: str) -> Markup:
    """Return one curve for each row by the sizes of a dim; intervals are whiskers."""
    return draw_for_widths(lambda width: _draw_curves(curves, dim, unit, width))


def curve_legend(curves: Sequence[RowCurve]) -> Markup:
    """Return the names of curves with their marks and dashes."""
    keys = []
    for curve in curves:
        line = tag("path", d="M0 8H32", class_=_curve_class("curve", curve.number))
        shape = MARKS[curve.number % len(MARKS)]
        mark = draw_mark(shape, 16, 8, class_=_curve_class("", curve.number))
        sign = tag("svg", line, mark, viewBox="0 0 32 16", class_="graph sign long",
                   aria_hidden="true")  # fmt: skip
        keys.append(tag("span", sign, shorten(curve.name, NARROW - 60)))
    return tag("div", keys, class_="legend")


def _curve_class(kind: str, number: int) -> str:
    return f"{kind} color{number % _COLORS} dash{number % _DASHES}".strip()


def _draw_curves(curves: Sequence[RowCurve], dim: str, unit: str, width: float) -> Markup:
    points = [point for curve in curves for point in curve.points]
    sizes = sorted({point.size for point in points})
    ends = [end for point in points for end in (point.value, point.low, point.high)]
    top, right = 24.0, width - _RIGHT
    bottom = top + _PLOT
    across = make_axis(sizes, LEFT_MARGIN, right, log=is_spread(sizes))
    upward = make_axis(ends, bottom, top, log=is_spread(ends))
    inner = [
        draw_text(unit, 0, 13, "axis"),
        draw_x_axis(across, sizes, top, bottom),
        draw_y_axis(upward, upward.ticks(6), right),
        draw_text(dim, right, bottom + 2 * LINE, "axis end"),
    ]
    for curve in curves:
        kind = _curve_class("", curve.number)
        places = [(across.place(p.size), upward.place(p.value)) for p in curve.points]
        path = "L".join(f"{x} {y}" for x, y in places)
        inner.append(tag("path", d=f"M{path}", class_=f"curve {kind}"))
        for point, (x, y) in zip(curve.points, places, strict=True):
            whisker = (x, upward.place(point.low)), (x, upward.place(point.high))
            inner.append(draw_whisker(*whisker, kind))
            text = f"{curve.name}, {dim} {point.size}: {point.value:.4g} {unit}"
            title = tag("title", f"{text} ({point.low:.4g} to {point.high:.4g})")
            inner.append(draw_mark(MARKS[curve.number % len(MARKS)], x, y, title, class_=kind))
    size = (width, bottom + 2 * LINE + 6)
    text = f"{len(curves)} rows at {dim} {', '.join(map(str, sizes))}"
    return wrap_chart(inner, size, f"{unit} by {dim}", text)
