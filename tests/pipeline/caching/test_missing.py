"""A module that the user's code tried in vain, or that was put among the packages by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modelc.core.digest import sha256_of
from modelc.core.records import Needs
from modelc.pipeline.caching.digests import Digests
from modelc.pipeline.caching.needs import merged, unmet
from modelc.pipeline.caching.watching import Read, watching

TRIES = "try:\n    {}\nexcept ImportError:\n    pass\n"
NAMES = ("nets_that_try", "fast_kernels", "a_library", "a_by_hand")


@pytest.fixture
def importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Needs]]:
    """Has a module of the user's with that text imported; what was heard."""
    monkeypatch.syspath_prepend(tmp_path)

    def ask(text: str) -> Needs:
        (tmp_path / "nets_that_try.py").write_text(text)
        with watching(tmp_path, read=Read()) as watched:
            __import__("nets_that_try")
            return watched.needs()

    yield ask
    for name in [one for one in sys.modules if one.startswith(NAMES)]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "text",
    [
        TRIES.format("import fast_kernels"),
        TRIES.format("from fast_kernels import attention"),
        TRIES.format("import importlib; importlib.import_module('fast_kernels')"),
        "import importlib.util\nHAS = importlib.util.find_spec('fast_kernels') is not None\n",
        "def build():\n    import fast_kernels\ntry:\n    build()\nexcept ImportError:\n    pass\n",
    ],
)
def test_a_module_that_is_tried_in_vain_is_a_need(
    importing: Callable[[str], Needs], tmp_path: Path, text: str
) -> None:
    needs = importing(text)
    assert needs.missing == ("fast_kernels",)
    assert unmet(needs, tmp_path, Digests(None)) == ""
    (tmp_path / "fast_kernels.py").write_text("attention = 1\n")
    assert unmet(needs, tmp_path, Digests(None)) == "the module fast_kernels is new"
    assert "fast_kernels" not in sys.modules


def test_a_part_of_a_package_is_looked_for_in_it_without_importing_it(
    importing: Callable[[str], Needs], tmp_path: Path
) -> None:
    package = tmp_path / "fast_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    needs = importing(TRIES.format("import fast_kernels.cuda.ops"))
    assert needs.missing == ("fast_kernels.cuda",)
    for name in [one for one in sys.modules if one.startswith("fast_kernels")]:
        del sys.modules[name]
    assert unmet(needs, tmp_path, Digests(None)) == ""
    (package / "cuda.py").write_text("raise RuntimeError('it must not be imported')\n")
    assert unmet(needs, tmp_path, Digests(None)) == "the module fast_kernels.cuda is new"


def test_what_an_installed_package_tries_is_its_own_affair(
    importing: Callable[[str], Needs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "site-packages"
    place.mkdir()
    (place / "a_library.py").write_text(TRIES.format("import fast_kernels"))
    monkeypatch.syspath_prepend(place)
    assert importing("import a_library\n").missing == ()


def test_a_module_that_was_put_among_the_packages_by_hand_is_a_need(
    importing: Callable[[str], Needs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "site-packages"
    place.mkdir()
    (place / "a_by_hand.py").write_text("GAIN = 1\n")
    monkeypatch.syspath_prepend(place)
    needs = importing("import a_by_hand\nimport pytest\n")
    assert needs.files["site-packages/a_by_hand.py"] == sha256_of(place / "a_by_hand.py")
    assert not [name for name in needs.files if "pytest/" in name]
    (place / "a_by_hand.py").write_text("GAIN = 2\n")
    assert unmet(needs, tmp_path, Digests(None)) == "site-packages/a_by_hand.py changed"


def test_nothing_of_it_stays_in_the_way_of_imports(tmp_path: Path) -> None:
    before = list(sys.meta_path)
    with watching(tmp_path, read=Read()):
        assert len(sys.meta_path) == len(before) + 1
    assert sys.meta_path == before


def test_what_both_missed_is_needed_once() -> None:
    assert merged(Needs(missing=("b", "a")), Needs(missing=("b",))).missing == ("a", "b")
