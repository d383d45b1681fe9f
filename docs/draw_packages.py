"""Draws docs/images/packages.svg: the packages of modelc, by layer, and what imports what.

    python docs/draw_packages.py            # writes the picture
    python docs/draw_packages.py --check    # exit 1 where the file is another

The layers are those that import-linter enforces (pyproject.toml); a line is as wide as there are
imports from the upper package into the lower one.
"""

from __future__ import annotations

import argparse
import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docs" / "images" / "packages.svg"
WIDTH, BOX, HEIGHT, GAP, MARGIN = 1000, 200, 54, 44, 16
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
GREY, FILL = "#7d8590", "#1f4e8c"
TITLE = "The packages of modelc"


def main() -> int:
    """Write the picture, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    if parser.parse_args().check:
        return int(not FILE.exists() or FILE.read_text(encoding="utf-8") != picture())
    FILE.write_text(picture(), encoding="utf-8")
    return 0


def layers() -> list[list[str]]:
    """The packages from the top layer to the bottom one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = project["tool"]["importlinter"]["contracts"]
    return [re.findall(r"modelc\.(\w+)", layer) for layer in contract["layers"]]


def imports() -> Counter[tuple[str, str]]:
    """How many imports lead from one package into another."""
    found: Counter[tuple[str, str]] = Counter()
    for package in (name for layer in layers() for name in layer):
        for file in (ROOT / package).rglob("*.py"):
            found.update((package, other) for other in _iter_imports(file) if other != package)
    return found


def _iter_imports(file: Path) -> Iterator[str]:
    depth = len(file.relative_to(ROOT).parts)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == depth and node.module:
            yield node.module.partition(".")[0]


def picture() -> str:
    """The whole SVG."""
    rows, counts = layers(), imports()
    places = {
        name: (_box_x(row, number), MARGIN + level * (HEIGHT + GAP))
        for level, row in enumerate(rows)
        for number, name in enumerate(row)
    }
    height = MARGIN + len(rows) * (HEIGHT + GAP)
    lines = [
        _line(places[upper], places[lower], count)
        for (upper, lower), count in sorted(counts.items())
        if upper in places and lower in places
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-labelledby="title" font-family="{FONT}">'
    )
    boxes = (_box(name, place) for name, place in places.items())
    return "\n".join([head, f'<title id="title">{TITLE}</title>', *lines, *boxes, "</svg>\n"])


def _box_x(row: list[str], number: int) -> int:
    free = (WIDTH - len(row) * BOX) // (len(row) + 1)
    return free + number * (BOX + free)


def _line(upper: tuple[int, int], lower: tuple[int, int], count: int) -> str:
    wide = min(1 + count / 60, 6)
    return (
        f'<line x1="{upper[0] + BOX // 2}" y1="{upper[1] + HEIGHT}" x2="{lower[0] + BOX // 2}" '
        f'y2="{lower[1]}" stroke="{GREY}" stroke-width="{wide:.1f}" opacity="0.55"/>'
    )


def _box(name: str, place: tuple[int, int]) -> str:
    files = sorted((ROOT / name).rglob("*.py"))
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    middle, (x, y) = place[0] + BOX // 2, place
    label = f"{len(files)} files, {round(lines, -2) / 1000:.1f}k lines"
    return (
        f'<rect x="{x}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="8" fill="{FILL}"/>'
        f'<text x="{middle}" y="{y + 23}" fill="#fff" font-size="17" text-anchor="middle">'
        f"{escape(name)}/</text>"
        f'<text x="{middle}" y="{y + 43}" fill="#dbe6f5" font-size="13" text-anchor="middle">'
        f"{label}</text>"
    )


if __name__ == "__main__":
    raise SystemExit(main())
