"""What pages owe to readers with a keyboard, a screen reader, a phone or a sheet of paper."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import resources
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from modelc.core.manifest import Manifest
from modelc.reports.comparison import compare_manifests
from modelc.reports.comparison_documents import comparison_page

from .records import render_html

VOID = re.compile(r"<(meta|br|col|hr)((?:\s[^<>]*)?)>")
# Text on its ground, as page.css puts them together.
PAIRS = [
    *((ink, ground) for ink in ("ink", "quiet", "link") for ground in ("page", "card")),
    *((kind, f"{kind}-soft") for kind in ("good", "bad", "warn", "idle")),
    *((kind, "card") for kind in ("good", "bad", "warn")),
    *(("on-room", f"room{step}") for step in range(4)),
    ("ink", "code"),
]
LEAST = 4.5  # WCAG 2.2, 1.4.3
LEAST_OF_MARKS = 3.0  # WCAG 2.2, 1.4.11
CSS = resources.files("modelc.reports").joinpath("page.css").read_text(encoding="utf-8")


def tree(html: str) -> ET.Element:
    """The page as a tree: apart from elements without an end it is XML, which balances it."""
    body = html.partition("\n")[2]
    body = re.sub(r"(<(?:script|style)>).*?(</(?:script|style)>)", r"\1\2", body, flags=re.S)
    return ET.fromstring(VOID.sub(r"<\1\2/>", body))


@pytest.fixture(params=["page", "comparison"])
def page(request: pytest.FixtureRequest, any_manifest: Manifest) -> ET.Element:
    """A report of every kind of manifest, and its comparison with itself."""
    if request.param == "page":
        return tree(render_html(any_manifest))
    return tree(comparison_page(compare_manifests(any_manifest, any_manifest)))


def test_it_has_a_language_a_title_and_landmarks(page: ET.Element) -> None:
    assert page.get("lang") == "en"
    assert (page.findtext("head/title") or "").strip()
    for name in ("header", "nav", "main"):
        assert len(list(page.iter(name))) == 1
    nav = next(page.iter("nav"))
    assert nav.get("aria-label")


def test_the_first_link_skips_to_the_content(page: ET.Element) -> None:
    first = next(page.iter("a"))
    assert first.get("class") == "skip"
    (target,) = [one for one in page.iter() if one.get("id") == (first.get("href") or "")[1:]]
    assert target.tag == "main"
    assert target.get("tabindex") == "-1"


def test_every_table_has_a_caption_and_headers_of_both_kinds(page: ET.Element) -> None:
    for table in page.iter("table"):
        assert table[0].tag == "caption"
        assert "".join(table[0].itertext()).strip()
        heads = [one.get("scope") for one in table.iter("th")]
        assert set(heads) <= {"col", "row"}
        assert all("".join(one.itertext()).strip() for one in table.iterfind("thead/tr/th"))
        for row in table.iterfind("tbody/tr"):
            assert row[0].tag == "th"
            assert row[0].get("scope") == "row"


def test_what_scrolls_is_reached_by_keys_and_named(page: ET.Element) -> None:
    for one in page.iter("div"):
        if "scroll" in (one.get("class") or "").split():
            assert one.get("tabindex") == "0"
            assert one.get("role") == "region"
            assert one.get("aria-label")


def test_headings_go_down_one_level_at_a_time(page: ET.Element) -> None:
    levels = [int(one.tag[1]) for one in page.iter() if re.fullmatch("h[1-6]", one.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    for before, after in pairwise(levels):
        assert after <= before + 1


def test_a_verdict_is_a_word_and_not_a_colour_alone(full: Manifest) -> None:
    page = tree(render_html(full))
    table = next(one for one in page.iter("table") if one.get("class") == "stacked")
    words = ["".join(row[1].itertext()).split()[-1] for row in table.iterfind("tbody/tr")]
    assert words == ["rejected", "failed", "failed", "pending", "passed", "passed"]


def test_each_row_of_the_summary_leads_to_what_explains_it(full: Manifest) -> None:
    page = tree(render_html(full))
    table = next(one for one in page.iter("table") if one.get("class") == "stacked")
    cards = {one.get("id"): one for one in page.iter("article")}
    for row in table.iterfind("tbody/tr"):
        link = row[0][0]
        card = cards[(link.get("href") or "")[1:]]
        assert (link.text or "") in "".join(card.itertext())


def _themes() -> Iterator[dict[str, str]]:
    light, dark, chosen = re.findall(r":root[^{]*\{([^}]*)\}", CSS)
    colours = [dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in (light, dark, chosen)]
    assert colours[1] == colours[2]
    yield colours[0]
    yield colours[1]


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", list(_themes()), ids=["light", "dark"])
def test_text_stands_out_from_its_ground(theme: dict[str, str]) -> None:
    for ink, ground in PAIRS:
        high, low = sorted(map(_luminance, (theme[ink], theme[ground])), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= LEAST, (ink, ground)


@pytest.mark.parametrize("theme", list(_themes()), ids=["light", "dark"])
@pytest.mark.parametrize("number", range(6))
def test_marks_of_charts_stand_out_from_their_ground(theme: dict[str, str], number: int) -> None:
    high, low = sorted(map(_luminance, (theme[f"hue{number}"], theme["card"])), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= LEAST_OF_MARKS


@pytest.mark.parametrize(
    "rule",
    ["prefers-color-scheme: dark", "prefers-reduced-motion: reduce", ":focus-visible", "print"],
)
def test_the_styles_follow_the_system(rule: str) -> None:
    assert rule in CSS


def test_paper_is_never_dark() -> None:
    """Both dark themes are of screens alone."""
    assert re.search(r"prefers-color-scheme: dark\) \{\s*:root:not", CSS)
    assert re.search(r'@media screen \{\s*:root\[data-theme="dark"\]', CSS)


def test_the_answer_says_what_may_be_deployed(made: Callable[[str], Manifest]) -> None:
    answers = {
        kind: "".join(next(one for one in tree(render_html(made(kind))).iter("p")
                           if one.get("class") == "answer").itertext())
        for kind in ("empty", "failed", "pending", "refused", "full")
    }  # fmt: skip
    first = {kind: text.split()[2].rstrip(":") for kind, text in answers.items()}
    assert first == {"empty": "No", "failed": "No", "pending": "In", "refused": "No", "full": "In"}
    usable, faults, notes = re.split("[;.]", answers["full"].partition("In part: ")[2], maxsplit=2)
    assert "openvino" not in usable + notes
    assert "openvino" in faults
    for text in (usable, notes):
        assert re.search(r"\bonnx\b.*\bonnx-int8\b", text)
