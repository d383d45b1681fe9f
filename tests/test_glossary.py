"""Words that the glossary rules out: their number may fall, not rise."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from .structure import ROOT, product_files

# Occurrences in names, texts and pages when they were last counted; 0 is where each has to end.
MOST = {
    "arm": 0,
    "bench": 0,
    "carried": 1,
    "climb": 4,
    "dying": 0,
    "headroom": 5,
    "heard": 0,
    "mend": 0,
    "orphan": 1,
    "patience": 0,
    "proven": 0,
    "reach": 2,
    "refused": 9,
    "scene": 0,
    "spoil": 0,
    "strange": 0,
    "subject": 0,
    "tell": 20,
    "telling": 0,
    "told": 3,
    "trying": 0,
    "unsound": 0,
}
_COMMAND = re.compile(  # `modelc bench` is what users know
    r"(make|modelc) bench\b|\[`?bench`?\](?=\()|\bbench\.md|^(# )?bench$", re.MULTILINE
)
_NAME_PARTS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


def _words_of_code(file: Path) -> Iterator[str]:
    """The words of names that are defined, of texts and docstrings."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from (part.lower() for part in _NAME_PARTS.findall(node.name))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"[a-z]+", _COMMAND.sub("", node.value.lower()))


def _counts() -> Counter[str]:
    found: Counter[str] = Counter()
    for file in product_files():
        found.update(_words_of_code(file))
        found.update(part for part in file.stem.split("_"))
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/commands/*.md")):
        if page.name not in ("glossary.md", "CHANGELOG.md"):
            text = _COMMAND.sub("", page.read_text(encoding="utf-8").lower())
            found.update(re.findall(r"[a-z]+", text))
    return found


@pytest.fixture(scope="module", name="counts")
def counts_fixture() -> Counter[str]:
    """How often each word stands in the product and its pages."""
    return _counts()


@pytest.mark.parametrize("word", MOST)
def test_a_word_that_the_glossary_rules_out_gets_rarer(word: str, counts: Counter[str]) -> None:
    assert counts[word] <= MOST[word]


def test_the_glossary_names_each_word() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert not [word for word in MOST if not re.search(rf"\b{word}\b", page)]
