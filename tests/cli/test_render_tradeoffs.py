"""The table of trade-offs: what is shown, and what is left out."""

from __future__ import annotations

import io

from rich.console import Console

from modelc.cli.render_accuracy import select_pareto, show_tradeoffs
from modelc.core.findings import TradeOff
from modelc.core.kinds import Precision
from modelc.core.records import Artifact, FileRecord


def point(count: int, sqnr: float | None, **parts: object) -> TradeOff:
    plain: dict[str, object] = {
        "kept": tuple(f"blocks.{i} (Conv node_{i})" for i in range(count)),
        "passed": (sqnr or 0.0) >= 30.0,
        "sqnr": sqnr,
        "seconds": 1.5,
    }
    return TradeOff(**(plain | parts))  # type: ignore[arg-type]  # the fields are its own


def shown(*points: TradeOff) -> str:
    artifact = Artifact(
        name="onnx-int8",
        target="onnx",
        precision=Precision.INT8,
        files=(FileRecord(name="model.int8.onnx", size=1, sha256="0"),),
        parent="0",
        made_from="onnx",
        tradeoffs=points,
    )
    stream = io.StringIO()
    show_tradeoffs(Console(file=stream, width=200, highlight=False), artifact)
    return stream.getvalue()


def test_a_point_that_another_beats_is_left_out() -> None:
    points = [point(0, 10.0), point(2, 9.0), point(3, 31.0), point(3, 20.0), point(4, 30.5)]
    assert [(len(p.kept), p.sqnr) for p in select_pareto(points)] == [(0, 10.0), (3, 31.0)]


def test_the_chosen_point_is_shown_though_another_beats_it() -> None:
    chosen = point(3, 30.1, chosen=True)
    assert chosen in select_pareto([point(2, 30.2, passed=False), chosen])


def test_the_less_an_accuracy_drops_the_better_whatever_the_ratio() -> None:
    points = [point(0, 20.0, drop=0.4), point(1, 25.0, drop=0.5), point(2, 19.0, drop=0.0)]
    assert [len(p.kept) for p in select_pareto(points)] == [0, 2]


def test_layers_ratio_latency_and_share_are_shown_and_the_kept_are_named() -> None:
    text = shown(
        point(0, 12.34, latency=1.0, parent=2.0, share=1.0),
        point(2, 33.3, latency=1.25, parent=2.0, share=0.75, chosen=True),
    )
    assert "12.3" in text
    assert "1.25 (2.00)" in text
    assert "75%" in text
    assert "blocks.0 (Conv node_0), blocks.1 (Conv node_1)" in text


def test_an_attempt_that_broke_is_no_point_of_the_table() -> None:
    broken = point(2, None, error="the quantizer refused")
    assert broken not in select_pareto([point(0, 5.0), broken, point(3, 31.0)])


def test_many_points_are_cut_to_a_dozen_with_the_chosen_one() -> None:
    points = [point(i, float(i), chosen=i == 31) for i in range(40)]
    text = shown(*points)
    assert text.count("exceeded") + text.count("met") + text.count("chosen") <= 16
    assert "28 more trade-offs" in text
    assert "and 19 more" in text


def test_plain_int8_that_held_has_no_table() -> None:
    assert shown(point(0, 40.0, chosen=True)) == ""
