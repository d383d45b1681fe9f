"""Read SVG charts of a page: their marks, and the boxes of their texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape
from xml.etree import ElementTree as ET

from modelc.reports.chart_parts import ChartBox

# Widths of DejaVu Sans, the widest of the fonts that browsers take, in 1/1000 of the size.
_WIDTHS: dict[str, float] = {
    **dict.fromkeys("ijlI", 295), **dict.fromkeys(" .,:;|·", 337), "-": 361,
    **dict.fromkeys("ft/", 392), **dict.fromkeys("r()[]", 411), **dict.fromkeys("sczykvx", 592),
    **dict.fromkeys("w<>", 838), **dict.fromkeys("mM%…@W", 1000),
}  # fmt: skip
_SIZE = 12.0  # of texts, as in page.css
_BOLD = 1.12
_CHART = re.compile(r"<svg.*?</svg>", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class ChartText:
    """A text of a chart with its box."""

    text: str
    kind: str
    box: ChartBox


class Chart:
    """One chart as a tree."""

    def __init__(self, svg: str) -> None:
        self.root = ET.fromstring(svg)
        box = (self.root.get("viewBox") or "").split()
        self.width, self.height = float(box[2]), float(box[3])
        self.texts = [_read_text(one) for one in self.root.iter("text")]

    def named(self, kind: str) -> list[str]:
        """Texts of a class."""
        return [one.text for one in self.texts if kind in one.kind.split()]

    def paths(self, kind: str) -> list[str]:
        """Classes of the paths that have this class."""
        return self._kinds("path", kind)

    def rects(self, kind: str) -> list[str]:
        """Classes of the rectangles that have this class."""
        return self._kinds("rect", kind)

    def lines(self, kind: str) -> int:
        """How many lines have this class."""
        return len(self._kinds("line", kind))

    def _kinds(self, name: str, kind: str) -> list[str]:
        found = (one.get("class") or "" for one in self.root.iter(name))
        return [text for text in found if kind in text.split()]


def read_charts(html: str) -> list[Chart]:
    """Return the charts of a page, in its order, without the signs of keys."""
    return [one for one in read_signs(html) if one.root.get("role") == "img"]


def read_signs(html: str) -> list[Chart]:
    """Return the charts and the signs of keys."""
    return [Chart(found.group()) for found in _CHART.finditer(html)]


def _read_text(one: ET.Element) -> ChartText:
    kind, text = one.get("class") or "", unescape(one.text or "")
    width = _SIZE * sum(_WIDTHS.get(letter, 700 if letter.isupper() else 640) for letter in text)
    width *= (_BOLD if kind == "named" else 1.0) / 1000
    x, y = float(one.get("x") or 0), float(one.get("y") or 0)
    kinds = kind.split()
    left = x - width * (1.0 if "end" in kinds else 0.5 if "middle" in kinds else 0.0)
    box = ChartBox(left=left, top=y - 9, right=left + width, bottom=y + 3)
    return ChartText(text=text, kind=kind, box=box)
