"""Markdown: reasons first, hostile text as text, never too long."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from modelc.core.manifest import Manifest
from modelc.reports.markdown import MARKDOWN_LIMIT, MarkdownBlock, as_prose, code_span, fit_blocks

from .records import render_markdown

READER = MarkdownIt("gfm-like", {"linkify": False})


def test_every_document_is_under_the_limit_and_balanced(any_manifest: Manifest) -> None:
    text = render_markdown(any_manifest)
    assert len(text.encode()) <= MARKDOWN_LIMIT
    assert text.count("<details>") == text.count("</details>")
    assert text.startswith("<!-- modelc report -->\n")


def test_verdicts_and_reasons_stand_before_what_is_folded(full: Manifest) -> None:
    text = render_markdown(full)
    order = (
        "❌ rejected",
        "| `rejected/openvino` | ❌ **rejected** | -58.5 dB |",
        "**Reasons**",
        "no CUDA driver",
        "no feed took the false branch",
        "First wrong layer",
        "<details>",
    )
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_failed_and_not_judged_are_told_apart(full: Manifest) -> None:
    rows = [line for line in render_markdown(full).splitlines() if line.startswith("| `")]
    told = {row.split("|")[1].strip(" `"): row.split("|")[2].strip() for row in rows[:6]}
    assert told == {
        "rejected/openvino": "❌ **rejected**",
        "rejected/torchscript": "🛑 **failed**",
        "pt2": "🛑 **failed**",
        "tensorrt": "⏳ pending",
        "onnx": "✅ passed",
        "onnx-int8": "✅ passed",
    }


def test_a_hostile_text_makes_no_markup(hostile: Manifest, full: Manifest) -> None:
    html = READER.render(render_markdown(hostile))
    plain = READER.render(render_markdown(full))
    tags = [re.findall(r"<(\w+)", page) for page in (html, plain)]
    assert set(tags[0]) <= set(tags[1])
    for live in ("<img", "<a ", "<script", "href="):
        assert live not in html
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", render_markdown(hostile))


def test_every_table_is_read_as_one(any_manifest: Manifest) -> None:
    tokens = READER.parse(render_markdown(any_manifest))
    rows = [t.content for t in tokens if t.type == "inline" and t.content.startswith("| ")]
    assert not rows, "what is no table is read as text"


def test_what_is_cut_is_said(made: Callable[[str], Manifest]) -> None:
    large = made("large")
    notes = tuple(f"{i} {'long ' * 90}" for i in range(400))
    text = render_markdown(replace(large, notes=notes))
    assert len(text.encode()) <= MARKDOWN_LIMIT
    last = text.splitlines()[-1]
    assert "60 kB" in last
    assert "notes (" in last
    assert "report.html" in last


def test_a_cut_table_of_a_thousand_artifacts_still_shows_what_was_refused(
    made: Callable[[str], Manifest],
) -> None:
    refused = made("refused")
    verdict, artifact = refused.verdicts[0], refused.artifacts[0]
    names = [f"onnx-{i}-{'x' * 120}" for i in range(1500)]
    passed = tuple(replace(artifact, name=name, rejected=False) for name in names)
    good = tuple(replace(made("full").verdicts[0], artifact=name) for name in names)
    many = replace(refused, artifacts=(*passed, artifact), verdicts=(*good, verdict))
    text = render_markdown(many)
    assert len(text.encode()) <= MARKDOWN_LIMIT
    assert "| `rejected/onnx` | ❌ **rejected**" in text
    assert "'mask'" in text
    assert "verdicts (" in text.splitlines()[-1]


@pytest.mark.parametrize("text", ["`", "``x`", "a|b", "a\nb", "", "`|`", "x" * 500])
def test_a_code_span_stays_one(text: str) -> None:
    cell = code_span(text)
    html = READER.render(f"| a |\n| --- |\n| {cell} |\n")
    assert html.count("<code>") == html.count("<td>") == 1


@pytest.mark.parametrize(
    "text", ["*a*", "_a_", "[a](b)", "<b>", "![a](b)", "~~a~~", "`a`", "$a$", "a | b", "\\*a\\*"]
)
def test_prose_is_what_it_was(text: str) -> None:
    html = READER.renderInline(as_prose(text))
    plain = (
        html.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").replace("&quot;", '"')
    )
    assert plain == text


@pytest.mark.parametrize("text", ["@team", "#12", "https://a.example", "www.a.example"])
def test_prose_mentions_and_links_nothing(text: str) -> None:
    assert text not in as_prose(text)
    assert as_prose(text).replace("\u200b", "") == text


def test_a_block_longer_than_the_limit_is_cut_at_a_line() -> None:
    text = fit_blocks("first", [MarkdownBlock("things", ["line " * 10] * 3000)], limit=5000)
    assert len(text.encode()) <= 5000
    assert {line for line in text.splitlines() if line.startswith("line")} == {"line " * 10}
