"""Sizes and conditions as torch writes them, in words that a reader knows."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from types import ModuleType

import pytest

from modelc.cli.render import show_inspection
from modelc.cli.render_manifest import show_manifest
from modelc.core.contract import Inspection, TensorInfo
from modelc.core.manifest import Manifest
from modelc.reports.text_format import has_size_symbols, readable_dim, readable_sizes

from .records import render_html, render_markdown


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        ("Min(100, u0)", "at most 100"),
        ("Min(u0, 100)", "at most 100"),
        ("Max(1, u0)", "at least 1"),
        ("u0", "any"),
        ("s77", "any"),
        ("2*u0 + 1", "any"),
        ("Min(100, Max(u0, u1))", "at most 100"),
        ("..100", "at most 100"),
        ("5..", "at least 5"),
        ("32..128", "32..128"),
        ("batch", "batch"),
        ("((seq - 1)//2) + 1", "((seq - 1)//2) + 1"),
        ("Min(100, seq)", "min(100, seq)"),
        ("floor(seq/2)", "floor(seq/2)"),
        ("3", "3"),
        ("?", "?"),
        ("", ""),
    ],
)
def test_a_dim_is_words(dim: str, text: str) -> None:
    assert readable_dim(dim) == text


@pytest.mark.parametrize(
    ("note", "text"),
    [
        ("took for granted: Eq(Mod(seq, 2), 0)", "took for granted: seq % 2 == 0"),
        ("Ne(FloorDiv(seq, 8), 1) or so", "seq // 8 != 1 or so"),
        ("Eq(Mod(s0 + 1, 2), 0)", "(s0 + 1) % 2 == 0"),
        ("the Modelc (Mod) of 3, 2", "the Modelc (Mod) of 3, 2"),
    ],
)
def test_a_condition_is_python(note: str, text: str) -> None:
    assert readable_sizes(note) == text


def test_symbols_of_torch_are_known_from_names_of_the_user() -> None:
    assert has_size_symbols("s77 % 2 == 0")
    assert has_size_symbols("u0 > 3")
    assert not has_size_symbols("kept in FP32: layers.s1x (weights)")
    assert not has_size_symbols("s0 % 2 == 0", {"s0"})
    assert not has_size_symbols("encoder.u0.weight, 's1'")


@pytest.fixture
def noted(records: ModuleType) -> Manifest:
    """A proven artifact with notes that torch wrote in part."""
    notes = (
        "a condition on sizes could not be looked at: Eq(Mod(s0, 2), 0)",
        "torch.export took for granted: Eq(Mod(batch, 2), 0)",
    )
    made: Manifest = records.manifest(
        artifacts=(records.artifact("onnx", notes=notes),),
        verdicts=(records.judged("onnx", records.measured("sample", 30.0)),),
        steps=("onnx",),
    )
    return made


def _printed(manifest: Manifest) -> str:
    stream = io.StringIO()
    with redirect_stdout(stream):
        show_manifest(manifest, "out")
    return stream.getvalue()


def test_a_note_with_symbols_of_torch_is_in_the_manifest_alone(noted: Manifest) -> None:
    text = _printed(noted)
    assert "s0" not in text
    assert "batch % 2 == 0" in text
    assert "1 more note" in text


def test_pages_have_it_in_readable_form(noted: Manifest) -> None:
    for text in (render_html(noted), render_markdown(noted).replace("\\", "")):
        assert "s0 % 2 == 0" in text
        assert "Eq(" not in text


def test_an_inspection_shows_words() -> None:
    found = Inspection(
        target="onnx",
        inputs=(),
        outputs=(TensorInfo(name="boxes", dtype="float", dims=("Min(100, u0)", "4")),),
        operators={},
        weights={},
        facts={},
        metadata={},
    )
    stream = io.StringIO()
    with redirect_stdout(stream):
        show_inspection(found, 100, ())
    assert "[at most 100, 4]" in stream.getvalue()
