"""Sphinx settings of the documentation site; `make docs` builds it into build/docs.

The pages are plain Markdown that a forge shows as well. Two things are added while the site is
built, so that no page holds syntax for Sphinx alone: the navigation, which is read from the lists
in index.md, and the texts of CONTRIBUTING.md, SECURITY.md and CHANGELOG.md, which stand at the
root of the checkout.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
ROOT_PAGES = {
    "contributing": "CONTRIBUTING.md",
    "security": "SECURITY.md",
    "changelog": "CHANGELOG.md",
}
FOLDERS = ("commands", "decisions")  # pages that lead those in the folder of their name

project = "modelc"
author = "the modelc contributors"
project_copyright = author
version = release = re.findall(r'__version__ = "(.+)"', (ROOT / "__init__.py").read_text())[0]

extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["plugin_example/*.py", "plugin_example/*.toml"]
myst_heading_anchors = 4  # so that page.md#heading is checked
highlight_language = "text"
nitpicky = True
smartquotes = False  # two dashes begin an option, also outside of code

html_theme = "furo"
html_title = f"modelc {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}

_HEADING = re.compile(r"^## (.+)$", re.M)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#:]+\.md)\)")
_RELATIVE = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")


def setup(app: Sphinx) -> None:
    """Have every page pass through `complete_page` before it is parsed."""
    app.connect("source-read", complete_page)


def complete_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Add to a page what the site has and a forge has not."""
    if name in ROOT_PAGES:
        file = ROOT / ROOT_PAGES[name]
        app.env.note_dependency(str(file))
        source[0] = from_root(file.read_text(encoding="utf-8"))
    elif name == root_doc:
        source[0] = with_navigation(source[0])
    elif name in FOLDERS:
        source[0] += toctree(pages_of(name), hidden=name == "commands")
    source[0] = with_site_links(source[0])


def with_navigation(index: str) -> str:
    """index.md with a toctree at the end of each section, of the pages that the section links to.

    The navigation shows them by the words of their links.
    """
    parts = _HEADING.split(index)
    for number in range(1, len(parts), 2):
        caption, text = parts[number], with_site_links(parts[number + 1])
        entries = [f"{words} <{page.removesuffix('.md')}>" for words, page in _LINK.findall(text)]
        parts[number] = f"## {caption}"
        parts[number + 1] = text + toctree(entries, caption=caption)
    return "".join(parts)


def toctree(entries: list[str], *, caption: str = "", hidden: bool = True) -> str:
    """A toctree of these pages, in the navigation alone where it is hidden; none of no pages."""
    options = [*([":hidden:"] if hidden else []), *([f":caption: {caption}"] if caption else [])]
    lines = ["\n", "```{toctree}", *options, ":maxdepth: 1", "", *entries, "```", "\n"]
    return "\n".join(lines) if entries else ""


def pages_of(folder: str) -> list[str]:
    """The pages in a folder of docs/, by name."""
    return [f"{folder}/{file.stem}" for file in sorted((DOCS / folder).glob("*.md"))]


def from_root(text: str) -> str:
    """A page of the checkout's root, its links as they are from docs/."""

    def moved(found: re.Match[str]) -> str:
        target = found[1]
        return (
            f"]({target.removeprefix('docs/') if target.startswith('docs/') else f'../{target}'})"
        )

    return _RELATIVE.sub(moved, text)


def with_site_links(text: str) -> str:
    """Links to pages at the root as links to the site's own."""
    for name, file in ROOT_PAGES.items():
        text = text.replace(f"](../{file}", f"]({name}.md")
    return text
