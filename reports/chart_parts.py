"""Parts of SVG charts: axes with ticks, marks, widths of text, and labels that do not overlap."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from .markup import Child, Markup, join, tag
from .text_format import escape_control, one_line

LETTER = 12.0  # px, the size of text in page.css
LINE = 15.0  # px from one line of text to the next
LEFT_MARGIN = 50.0  # px of the values of a y axis
LOG_SPREAD = 5.0  # an axis whose values differ by more is logarithmic
_WIDE = 0.64  # of a letter, in the widest of the usual fonts; narrow and broad ones below
_BROAD = 0.86
_NARROW = 0.36
_BOLD = 1.14
_EDGE = 0.06  # of an axis is free at each end
_MIN_TICKS = 3


@dataclass(frozen=True, kw_only=True)
class ChartBox:
    """A rectangle in px; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: ChartBox) -> bool:
        """Whether two boxes share an area."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def holds(self, other: ChartBox) -> bool:
        """Whether the other box lies within this one."""
        return (
            self.left <= other.left
            and self.right >= other.right
            and self.top <= other.top
            and self.bottom >= other.bottom
        )


@dataclass(frozen=True, kw_only=True)
class ChartAxis:
    """A scale from values to px: `low` is at `start`, `high` at `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """Return where a value lies, to a tenth of a px."""
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(value)
        share = (at - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, most: int) -> list[float]:
        """Return round values on the axis, about `most`."""
        if self.log:
            found = [value for value in _log_values(self.low) if self.low <= value <= self.high]
            decades = [value for value in found if f"{value:e}".startswith("1.0")]
            if len(found) > most and len(decades) >= _MIN_TICKS:
                found = decades
            if len(found) >= _MIN_TICKS:
                return found[:: math.ceil(len(found) / most)]
        step = _round_up((self.high - self.low) / most)
        first = math.ceil(self.low / step)
        count = math.floor(self.high / step) - first + 1
        return [round((first + index) * step, 12) for index in range(count)]


def _log_values(low: float) -> Iterator[float]:
    """Yield 1, 2 and 5 times powers of ten, from below `low` on."""
    first = math.floor(math.log10(low))
    yield from (digit * 10.0**power for power in range(first, first + 40) for digit in (1, 2, 5))


def _round_up(step: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= step * 0.999)


def tick_text(value: float) -> str:
    """Format a value of an axis in at most six characters."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def make_axis(values: Iterable[float], start: float, end: float, *, log: bool) -> ChartAxis:
    """Return an axis that holds the values, with room at both ends; positive values if `log`."""
    known = list(values)
    low, high = min(known), max(known)
    if log:
        room = max((high / low) ** _EDGE, 1.02)
        return ChartAxis(low=low / room, high=high * room, start=start, end=end, log=True)
    room = max((high - low) * _EDGE, abs(high) * 0.01) or 1.0
    return ChartAxis(low=low - room, high=high + room, start=start, end=end)


def is_spread(values: Iterable[float]) -> bool:
    """Whether the values differ by so much that a logarithmic axis is needed."""
    known = list(values)
    return min(known) > 0 and max(known) > LOG_SPREAD * min(known)


def text_width(text: str, size: float = LETTER) -> float:
    """Return a width in px that the text does not exceed in the usual fonts."""
    return size * sum(map(_letter_width, text))


def _letter_width(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.05
    if letter in "iljtfI.,:;'|!()[] -":
        return _NARROW
    return _BROAD if letter.isupper() or letter in "mwMW@%&—…" else _WIDE


def shorten(text: str, width: float) -> str:
    """Return the text on one line, with its middle left out where it is wider than `width` px."""
    line = one_line(escape_control(text))
    keep = len(line)
    short = line
    while text_width(short) > width and keep > 1:
        keep -= 1
        head = (keep + 1) // 2
        short = f"{line[:head]}…{line[len(line) - (keep - head) :]}"
    return short


MARKS = ("circle", "square", "triangle", "diamond", "plus", "cross", "down")
_OUTLINES = {  # in units of the radius
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "triangle": ((0.0, -1.15), (1.1, 0.85), (-1.1, 0.85)),
    "diamond": ((0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)),
    "down": ((0.0, 1.15), (1.1, -0.85), (-1.1, -0.85)),
}


def draw_mark(shape: str, x: float, y: float, *children: Child, class_: str = "") -> Markup:
    """Return one of `MARKS` as a path around a place; crosses have strokes alone."""
    radius = 5.0
    if shape in _OUTLINES:
        corners = (f"{x + radius * dx:.1f} {y + radius * dy:.1f}" for dx, dy in _OUTLINES[shape])
        path = f"M{'L'.join(corners)}Z"
    elif shape == "plus":
        path = f"M{x - 5:.1f} {y:.1f}h10M{x:.1f} {y - 5:.1f}v10"
    elif shape == "cross":
        path = f"M{x - 4:.1f} {y - 4:.1f}l8 8M{x - 4:.1f} {y + 4:.1f}l8 -8"
    else:
        path = f"M{x - radius:.1f} {y:.1f}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0Z"
    return tag("path", *children, d=path, class_=f"spot {shape} {class_}".strip())


def draw_text(text: str, x: float, y: float, class_: str = "") -> Markup:
    """Return a text whose baseline starts at (x, y); classes `end` and `middle` move it."""
    return tag("text", text, x=round(x, 1), y=round(y, 1), class_=class_ or None)


def draw_line(start: tuple[float, float], end: tuple[float, float], class_: str) -> Markup:
    """Return a straight line."""
    (x1, y1), (x2, y2) = start, end
    return tag("line", x1=round(x1, 1), y1=round(y1, 1), x2=round(x2, 1), y2=round(y2, 1),
               class_=class_)  # fmt: skip


def draw_whisker(start: tuple[float, float], end: tuple[float, float], class_: str) -> Markup:
    """Return an error bar with caps, along x or along y."""
    (x1, y1), (x2, y2) = start, end
    cap = "v6m0 -3" if y1 == y2 else "h6m-3 0"
    back = "m0 -3" if y1 == y2 else "m-3 0"
    path = f"M{x1:.1f} {y1:.1f}{back}{cap}L{x2:.1f} {y2:.1f}{back}{cap}"
    return tag("path", d=path, class_=f"whisker {class_}")


def draw_x_axis(axis: ChartAxis, values: Sequence[float], top: float, bottom: float) -> Markup:
    """Return vertical grid lines with their values below; values without room have no text."""
    drawn: list[Markup] = []
    last = -math.inf
    for value in values:
        x, text = axis.place(value), tick_text(value)
        half = text_width(text) / 2
        drawn.append(draw_line((x, top), (x, bottom), "rule"))
        if x - half > last + 4:
            drawn.append(draw_text(text, x, bottom + LINE, "tick middle"))
            last = x + half
    return join(drawn)


def draw_y_axis(axis: ChartAxis, values: Sequence[float], right: float, unit: str = "") -> Markup:
    """Return horizontal grid lines up to `right` with their values before the axis."""
    drawn: list[Markup] = []
    left, last = LEFT_MARGIN, math.inf
    for value in values:
        y = axis.place(value)
        drawn.append(draw_line((left, y), (right, y), "rule"))
        if y < last - LINE:
            drawn.append(draw_text(f"{tick_text(value)}{unit}", left - 6, y + 4, "tick end"))
            last = y
    return join(drawn)


def wrap_chart(inner: Iterable[Child], size: tuple[float, float], name: str, text: str) -> Markup:
    """Return the chart as one image with a name and a description for screen readers."""
    return tag("svg", tag("title", name), tag("desc", text), join(inner),
               viewBox=f"0 0 {size[0]:g} {size[1]:g}", role="img", aria_label=f"{name}. {text}",
               class_="graph")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ChartLabel:
    """A text that belongs to the place (x, y)."""

    text: str
    x: float
    y: float
    is_bold: bool = False

    @property
    def width(self) -> float:
        """A width in px that the text does not exceed."""
        return text_width(self.text) * (_BOLD if self.is_bold else 1.0)


def place_labels(
    labels: Sequence[ChartLabel], room: ChartBox, taken: Sequence[ChartBox]
) -> dict[ChartLabel, ChartBox]:
    """Return a box for each label near its place, the first labels first.

    No box overlaps another one or one of `taken`, or the line that leads to another label. A bold
    label may lie on `taken` if it fits nowhere else; another one has no box then.
    """
    full = list(taken)
    found: dict[ChartLabel, ChartBox] = {}
    for label in labels:
        box = _find_box(label, room, full, found.values())
        if box is None and label.is_bold:
            box = _find_box(label, room, list(found.values()), ())
        if box is not None:
            found[label] = box
            full += [replace(box, left=box.left - 4, right=box.right + 4)]
            full += _leader_steps(label, box)
    return found


def _find_box(
    label: ChartLabel, room: ChartBox, taken: Sequence[ChartBox], uncrossed: Collection[ChartBox]
) -> ChartBox | None:
    """Return the nearest free box, whose line to the label's place crosses no `uncrossed` box."""
    width = label.width
    for x, y in _label_places(label, width, room):
        box = ChartBox(left=x, top=y - 12, right=x + width, bottom=y + 3)
        if not room.holds(box) or any(box.overlaps(other) for other in taken):
            continue
        steps = list(_leader_steps(label, box))
        if not any(step.overlaps(other) for step in steps for other in uncrossed):
            return box
    return None


def lead_to(label: ChartLabel, box: ChartBox) -> tuple[float, float] | None:
    """Return where a line from the label's place meets its box; None if it stands beside it."""
    near = max(box.left, min(label.x, box.right)), max(box.top, min(label.y, box.bottom))
    return near if math.dist(near, (label.x, label.y)) > LINE else None


def _leader_steps(label: ChartLabel, box: ChartBox) -> Iterator[ChartBox]:
    """Yield small boxes along the line to a label."""
    end = lead_to(label, box)
    if end is None:
        return
    count = math.ceil(math.dist(end, (label.x, label.y)) / 3)
    for index in range(count):
        x = label.x + (end[0] - label.x) * index / count
        y = label.y + (end[1] - label.y) * index / count
        yield ChartBox(left=x - 1, top=y - 1, right=x + 1, bottom=y + 1)


def _label_places(label: ChartLabel, width: float, room: ChartBox) -> Iterator[tuple[float, float]]:
    """Yield starts of the baseline: around the place, then anywhere, the nearest first."""
    x, y = label.x, label.y
    yield from ((x + 9, y + 4), (x - width - 9, y + 4))
    yield from ((x - width / 2, y - 10), (x - width / 2, y + 19))
    places = [
        (left, base)
        for base in _range(room.top + 12, room.bottom, LINE / 2)
        for left in _range(room.left, room.right - width, 12)
    ]
    yield from sorted(
        places,
        key=lambda at: math.hypot(_distance(x, at[0], at[0] + width), (at[1] - 4 - y) * 1.5),
    )


def _distance(value: float, low: float, high: float) -> float:
    return max(low - value, value - high, 0.0)


def _range(start: float, end: float, step: float) -> Iterator[float]:
    yield from (start + index * step for index in range(max(0, int((end - start) / step) + 1)))
