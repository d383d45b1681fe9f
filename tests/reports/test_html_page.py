"""The page as text: whole, self-contained, escaped, and with what the manifest holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from types import ModuleType

import pytest

from modelc.core.generation import TokenReport, TokenWay, WayKind
from modelc.core.manifest import Manifest
from modelc.core.verdict import ChannelVerdict

from .records import render_html, render_markdown

VOID = {"meta", "br", "col", "hr"}
OURS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "header",
    "div",
    "span",
    "b",
    "button",
    "h1",
    "h2",
    "h3",
    "p",
    "nav",
    "a",
    "main",
    "section",
    "article",
    "table",
    "caption",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "details",
    "summary",
    "code",
    "pre",
    "small",
    "i",
    "ul",
    "li",
    "figure",
    "figcaption",
    "svg",
    "path",
    "line",
    "rect",
    "circle",
    "text",
    "script",
}


class Page(HTMLParser):
    """Reads a page; knows what is open, and keeps elements, ids, links and text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open[-1:] in (["script"], ["style"]) else self.text).append(data)

    def values(self, name: str) -> list[str]:
        """Every value of an attribute."""
        return [given[name] or "" for _, given in self.elements if name in given]


def test_every_page_is_balanced_and_made_of_our_elements_alone(any_manifest: Manifest) -> None:
    page = Page(render_html(any_manifest))
    assert page.open == []
    assert {name for name, _ in page.elements} <= OURS
    assert [name for name, _ in page.elements].count("script") == 1


def test_no_page_asks_anything_of_a_network(any_manifest: Manifest) -> None:
    page = Page(render_html(any_manifest))
    reaching = {
        "src",
        "srcset",
        "action",
        "formaction",
        "data",
        "poster",
        "background",
        "xlink:href",
    }
    assert not [name for _, given in page.elements for name in given if name in reaching]
    assert not [link for link in page.values("href") if not link.startswith("#")]
    for text in page.scripts:
        assert not re.search(r"https?:|//\w|@import|url\(|import\(|fetch|XMLHttp|WebSocket", text)
    (policy,) = [v for v in page.values("content") if "default-src" in v]
    assert policy.startswith("default-src 'none';")


def test_no_element_of_any_page_has_a_handler(any_manifest: Manifest) -> None:
    page = Page(render_html(any_manifest))
    assert not [name for _, given in page.elements for name in given if name.startswith("on")]


def test_ids_are_unique_and_links_lead_to_them(any_manifest: Manifest) -> None:
    page = Page(render_html(any_manifest))
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in page.values("href")} <= set(ids)


def test_a_hostile_text_is_shown_as_text(hostile: Manifest) -> None:
    html = render_html(hostile)
    assert "<img" not in html
    page = Page(html)
    shown = "".join(page.text)
    assert '</script><img src="http://evil.example/x" onerror="alert(1)">' in shown
    assert "\\x1b[2J" in shown
    assert "\\u202egnp.exe" in shown
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", html)


def test_the_page_says_everything_that_the_manifest_holds(full: Manifest) -> None:
    shown = " ".join(Page(render_html(full)).text)
    wanted = (
        "openvino was rejected",
        "-58.5 dB",
        "+2.0 dB",
        "exact",
        "signal 11",
        "SQNR 31.5 dB < 90",
        "no CUDA driver",
        "TopK with k > 3840",
        "--capture script",
        "blocks.1.norm",
        "nets/digits.py:41",
        "epsilon 1e-3, not 1e-5",
        "debug/blocks.1.norm",
        "x.mean() > 0",
        "no feed took the false branch",
        "accepted by --accept-branch",
        "Converting a tensor",
        "the batch must be even",
        "top1",
        "img/07.png",
        "paired bootstrap",
        "head.fc",
        "chosen",
        "int8 93.0%",
        "2.27 x",
        "3 samples are all zero",
        "not built yet",
        "modelc validate out --feed worst/onnx.npz",
        "modelc build-trt out",
        "2.13.0+cpu",
        "two outputs are not deterministic",
        "SQNR 9.1 dB < 15",
    )
    assert [text for text in wanted if text not in shown] == []


def test_the_summary_has_the_figures_of_tokens(full: Manifest) -> None:
    way = TokenWay(kind=WayKind.TEXT, tokens=4096, kl=0.01, kl_max=1, agreement=0.92, near=0.99)
    tokens = TokenReport(
        ways=(way,), source="held-out.txt", perplexity=7.5, eager_perplexity=7.50001, longest=128
    )
    limits = replace(full.verdicts[0].tolerance, max_kl=0.15, max_ppl_increase=0.15)
    first = replace(full.verdicts[0], tokens=tokens, tolerance=limits)
    judged = replace(full, verdicts=(first, *full.verdicts[1:]))
    html, markdown = render_html(judged), render_markdown(judged)
    summary = html.partition("<details>")[0]
    for text in (summary, markdown.partition("<details>")[0]):
        assert "4,096 of held-out.txt" in text
        assert "92.0%" in text
        assert "perplexity 7.5 (+0.0%)" in text
    assert "KL 0.15 nats, perplexity +15%" in html


def test_a_section_without_content_is_left_out(made: Callable[[str], Manifest]) -> None:
    ids = Page(render_html(made("refused"))).values("id")
    assert "reasons" in ids
    assert not {"layers", "branches", "accuracy", "tradeoffs", "calibration"} & set(ids)


def test_nothing_judged_is_never_shown_as_a_success(made: Callable[[str], Manifest]) -> None:
    html = render_html(made("empty"))
    assert 'class="banner failed"' in html


def test_an_artifact_without_a_verdict_is_not_shown_as_proven(full: Manifest) -> None:
    html = render_html(
        replace(full, artifacts=full.artifacts[:1], verdicts=(), failures=(), pending=())
    )
    assert 'class="banner failed"' in html


def test_a_chain_that_is_too_long_or_a_circle_still_gives_a_tree(full: Manifest) -> None:
    first = full.artifacts[0]
    count = 400
    chain = tuple(
        replace(
            first,
            name=f"a{i}",
            parent=f"{i - 1:064}",
            files=(replace(first.files[0], sha256=f"{i:064}"),),
        )
        for i in range(count)
    )
    circle = replace(chain[0], parent=f"{count - 1:064}")
    for artifacts in (chain, (circle, *chain[1:])):
        html = render_html(replace(full, artifacts=artifacts, verdicts=(), failures=(), pending=()))
        tree = html[html.index('<ul class="tree">') : html.index('id="files"')]
        found = re.findall(r"<b>(a\d+)</b>", tree)
        assert sorted(found) == sorted(artifact.name for artifact in artifacts)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -0.0])
def test_odd_figures_do_not_break_a_chart(full: Manifest, value: float) -> None:
    found = full.localisations[0]
    odd = replace(found, curve=(("a", value), ("b", 3.0), ("c", None)))
    html = render_html(replace(full, localisations=(odd,)))
    drawn = html[html.index('class="chart"') : html.index("last layer")]
    assert not re.search(r'"[^"]*(nan|inf)', drawn)
    assert "M" in drawn


def test_agreement_and_channels_are_shown_where_they_were_measured(full: Manifest) -> None:
    plain = render_html(full)
    assert "same top-1" not in plain
    assert "Worst channels" not in plain
    first = full.verdicts[0]
    output = replace(first.outputs[0], top1_agreement=0.9876, top5_agreement=1.0, rows=81,
                     times_floor=1.25)  # fmt: skip
    channel = ChannelVerdict(output=output.output, axis=1, channel=17, sqnr=88.8, max_abs=3e-6,
                             allowed=1e-6, more=2, times_floor=4.5)  # fmt: skip
    verdict = replace(first, outputs=(output, *first.outputs[1:]), channels=(channel,))
    page = render_html(replace(full, verdicts=(verdict, *full.verdicts[1:])))
    for text in ("same top-1", "98.76%", "100.00%", "1.25 x", "Worst channels", "88.8 dB", "4.5 x"):
        assert text in page, text


def test_a_feed_that_does_not_count_is_not_shown_as_a_pass(full: Manifest) -> None:
    first = full.verdicts[0]
    reason = "does not count: SQNR 3 dB < 40"
    loose = replace(first.outputs[0], loose=True, reason=reason)
    page = render_html(
        replace(full, verdicts=(replace(first, outputs=(loose,)), *full.verdicts[1:]))
    )
    assert f"form only, {reason.replace('<', '&lt;')}" in page


def test_a_layer_without_a_source_line_names_none(records: ModuleType) -> None:
    manifest = records.full()
    (found, *others) = manifest.localisations
    layers = tuple(replace(one, file="", line=0) for one in found.layers)
    page = render_html(replace(manifest, localisations=(replace(found, layers=layers), *others)))
    assert ":0<" not in page
    assert found.guilty in page


def test_the_folder_of_installed_packages_is_left_out_of_places(records: ModuleType) -> None:
    manifest = records.full()
    (found, *others) = manifest.localisations
    file = "/opt/venv/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py"
    layers = (replace(found.layers[0], file=file, line=7),)
    page = render_html(replace(manifest, localisations=(replace(found, layers=layers), *others)))
    assert "<code>transformers/models/llama/modeling_llama.py:7<" in page
    assert "site-packages" not in page
