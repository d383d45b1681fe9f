"""Charts of a benchmark: axes, marks, and names that do not overlap."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from modelc.reports.benchmark_charts import (
    NARROW,
    WIDE,
    CurvePoint,
    MarkKind,
    QualityMark,
    RowCurve,
    SpeedupBar,
    curve_chart,
    curve_legend,
    quality_chart,
    speedup_chart,
)
from modelc.reports.chart_parts import (
    MARKS,
    ChartBox,
    ChartLabel,
    make_axis,
    place_labels,
    shorten,
    text_width,
    tick_text,
)

from .chart_reader import Chart, read_charts, read_signs

LONG = [f"onnx-int8-{method}-of-a-long-name" for method in "abcdefghijkl"]


def marks(count: int, *, exact: int = 0) -> list[QualityMark]:
    """Rows of which each is better and slower than the last; the last ones are exact."""
    kinds = list(MarkKind)
    return [
        QualityMark(
            name=LONG[index],
            text=LONG[index],
            kind=kinds[index % len(kinds)],
            ms=(ms := 1.3**index),
            low=ms * 0.95,
            high=ms * 1.06,
            value=None if index >= count - exact else 30.0 + 8 * index,
        )
        for index in range(count)
    ]


def bar(name: str, value: float, *, kind: MarkKind = MarkKind.PASSED) -> SpeedupBar:
    """A bar whose interval is of 10 %."""
    return SpeedupBar(name=name, text=name, kind=kind, value=value, low=value * 0.9,
                      high=value * 1.1, is_equal=0.9 < value < 1.1)  # fmt: skip


def assert_clear(chart: Chart) -> None:
    """Assert that no text overlaps another one or leaves the chart."""
    for one, other in combinations(chart.texts, 2):
        assert not one.box.overlaps(other.box), (one.text, other.text)
    whole = ChartBox(left=0, top=0, right=chart.width, bottom=chart.height)
    assert not [one.text for one in chart.texts if not whole.holds(one.box)]


@pytest.mark.parametrize("exact", [0, 3, 12])
def test_the_names_of_twelve_rows_do_not_overlap(exact: int) -> None:
    charts = read_charts(quality_chart(marks(12, exact=exact), LONG, "SQNR dB"))
    assert [chart.width for chart in charts] == [WIDE, NARROW]
    for chart in charts:
        assert_clear(chart)
        assert len(chart.named("named")) == 12
        assert len(chart.paths("spot")) == 12
        assert len(chart.paths("whisker")) == 12
        assert len(chart.paths("front")) == 1


@pytest.mark.parametrize("close", [1.0, 1.001])
def test_rows_at_one_place_are_all_named(close: float) -> None:
    crowd = [
        QualityMark(name=name, text=name, kind=MarkKind.PASSED, ms=close**i, low=0.9, high=1.2,
                    value=40.0)
        for i, name in enumerate(LONG)
    ]  # fmt: skip
    for chart in read_charts(quality_chart(crowd, LONG, "SQNR dB")):
        assert_clear(chart)
        assert len(chart.named("named")) == 12


def test_a_kind_has_a_mark_of_its_own() -> None:
    for chart in read_charts(quality_chart(marks(4), [], "SQNR dB")):
        shapes = {kind.split()[1] for kind in chart.paths("spot")}
        assert len(shapes) == len(MarkKind)
        assert not chart.paths("front")


def test_bars_are_named_at_both_widths_and_marked_where_equal() -> None:
    bars = [bar(name, 0.5 + index) for index, name in enumerate(LONG)]
    bars += [bar("same", 1.02), bar("bad", 3.0, kind=MarkKind.REJECTED)]
    for chart in read_charts(speedup_chart(bars, "eager")):
        assert_clear(chart)
        assert len(chart.rects("bar")) == 14
        assert len(chart.rects("equal")) == 1
        assert len(chart.rects("rejected")) == 1
        assert len(chart.paths("over")) == 14
        assert chart.lines("one") == 1


def test_curves_have_a_point_and_an_interval_at_each_size() -> None:
    sizes = (1, 2, 4, 8, 16, 32, 33)
    curves = [
        RowCurve(name=name, number=number, points=tuple(
            CurvePoint(size=size, value=10.0 * size * number, low=9.0 * size * number,
                       high=1e4 * size * number) for size in sizes))
        for number, name in enumerate(LONG, 1)
    ]  # fmt: skip
    for chart in read_charts(curve_chart(curves, "batch", "median ms")):
        assert_clear(chart)
        assert len(chart.paths("curve")) == 12
        assert len(chart.paths("spot")) == len(chart.paths("whisker")) == 12 * len(sizes)
    signs = read_signs(curve_legend(curves))
    assert len({tuple(sign.paths("spot") + sign.paths("curve")) for sign in signs}) == 12


@pytest.mark.parametrize("values", [(1, 1), (0.04, 1.1), (1, 1e6), (-3, 5), (0.99, 1.02)])
@pytest.mark.parametrize("most", [4, 6, 10])
def test_an_axis_has_ticks_within_it(values: tuple[float, float], most: int) -> None:
    for log in {False, values[0] > 0}:
        axis = make_axis(values, 0, 100, log=log)
        ticks = axis.ticks(most)
        assert 1 <= len(ticks) <= most + 1
        assert all(-0.1 <= axis.place(tick) <= 100.1 for tick in ticks)
        assert 0 < axis.place(values[0]) <= axis.place(values[1]) < 100


def test_large_values_of_an_axis_are_short() -> None:
    assert [tick_text(value) for value in (0.5, 2000, 20_000, 5e7)] == ["0.5", "2000", "20k", "50M"]


def test_a_name_is_shortened_in_its_middle() -> None:
    short = shorten(LONG[0], 100)
    assert text_width(short) <= 100
    assert short.startswith("onnx")
    assert short.endswith("name")
    assert shorten("onnx", 100) == "onnx"
    assert len(shorten("\u202e\x00" * 99, 50)) < 20


def test_a_label_without_room_has_no_box_unless_it_is_bold() -> None:
    room = ChartBox(left=0, top=0, right=60, bottom=20)
    plain = ChartLabel(text="onnx", x=30, y=10)
    bold = ChartLabel(text="onnx", x=30, y=10, is_bold=True)
    assert place_labels([plain], room, [room]) == {}
    assert list(place_labels([bold], room, [room])) == [bold]


def test_marks_are_paths_without_unknown_numbers() -> None:
    text = quality_chart(marks(6, exact=1), LONG[:6], "SQNR dB")
    assert not [word for word in ("inf", "nan") if f'"{word}' in text]
    assert len(set(MARKS)) == len(MARKS)
    assert math.isfinite(sum(chart.height for chart in read_charts(text)))
