"""A module that the user's code tried in vain, or that was put among the packages by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modelc.core.records import Needs
from modelc.pipeline.caching.digests import Digests
from modelc.pipeline.caching.needs import merged, unmet
from modelc.pipeline.caching.watching import Read, watching

TRIES = "try:\n    {}\nexcept ImportError:\n    pass\n"
NAMES = ("nets_that_try", "fast_kernels", "a_library", "a_by_hand", "_a_by_hand", "_virtualenv_a")


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
    assert set(needs.missing) == {"fast_kernels"}
    assert "." in needs.missing["fast_kernels"]
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
    assert needs.missing == {"fast_kernels.cuda": ("fast_kernels",)}
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
    assert importing("import a_library\n").missing == {}


def test_it_is_looked_for_where_the_users_code_looked(
    importing: Callable[[str], Needs], tmp_path: Path
) -> None:
    """The code may have added a folder of its own, which no later process has on its path."""
    (tmp_path / "lib").mkdir()
    adds = f"import sys\nsys.path.insert(0, {str(tmp_path / 'lib')!r})\n"
    needs = importing(adds + TRIES.format("import fast_kernels"))
    sys.path.remove(str(tmp_path / "lib"))
    assert unmet(needs, tmp_path, Digests(None)) == ""
    (tmp_path / "lib" / "fast_kernels.py").write_text("")
    assert unmet(needs, tmp_path, Digests(None)) == "the module fast_kernels is new"


def test_it_is_looked_for_where_it_would_be_installed_today(
    importing: Callable[[str], Needs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = importing(TRIES.format("import fast_kernels"))
    assert not any("site-packages" in one for one in needs.missing["fast_kernels"])
    elsewhere = tmp_path / "another" / "site-packages"
    elsewhere.mkdir(parents=True)
    monkeypatch.syspath_prepend(elsewhere)
    assert unmet(needs, tmp_path, Digests(None)) == ""
    (elsewhere / "fast_kernels.py").write_text("")
    assert unmet(needs, tmp_path, Digests(None)) == "the module fast_kernels is new"


def test_a_part_of_an_installed_package_is_looked_for_in_it(
    importing: Callable[[str], Needs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another distribution may bring it, into a folder that several share."""
    place = tmp_path / "site-packages"
    (place / "a_library_of_parts").mkdir(parents=True)
    (place / "a_library_of_parts" / "a.py").write_text("")
    monkeypatch.syspath_prepend(place)
    needs = importing(
        "import a_library_of_parts.a\n" + TRIES.format("import a_library_of_parts.fast")
    )
    assert needs.missing == {"a_library_of_parts.fast": ()}
    missing = Needs(missing=needs.missing)
    assert unmet(missing, tmp_path, Digests(None)) == ""
    (place / "a_library_of_parts" / "fast.py").write_text("")
    assert unmet(missing, tmp_path, Digests(None)) == "the module a_library_of_parts.fast is new"


def test_folders_without_an_init_are_packages_too(
    importing: Callable[[str], Needs], tmp_path: Path
) -> None:
    place = tmp_path / "fast_kernels" / "sub"
    place.mkdir(parents=True)
    needs = importing(TRIES.format("import fast_kernels.sub.ops"))
    assert set(needs.missing) == {"fast_kernels.sub.ops"}
    for name in [one for one in sys.modules if one.startswith("fast_kernels")]:
        del sys.modules[name]
    assert unmet(needs, tmp_path, Digests(None)) == ""
    (place / "ops").mkdir()
    assert unmet(needs, tmp_path, Digests(None)) == "the module fast_kernels.sub.ops is new"


class Broken:
    """A finder that breaks."""

    def find_spec(self, *_: object) -> None:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("finder", "told"), [(object(), ""), (Broken(), "the module fast_kernels is new")]
)
def test_a_finder_of_anybodys_breaks_nothing(
    importing: Callable[[str], Needs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    finder: object, told: str,
) -> None:  # fmt: skip
    needs = importing(TRIES.format("import fast_kernels"))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    assert unmet(needs, tmp_path, Digests(None)) == told


def test_a_module_that_was_put_among_the_packages_by_hand_is_a_need(
    importing: Callable[[str], Needs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name and what is in it: where packages lie is another on the next host."""
    place = tmp_path / "site-packages"
    (place / "a_by_hand").mkdir(parents=True)
    (place / "a_by_hand" / "__init__.py").write_text("from .gain import GAIN\n")
    (place / "a_by_hand" / "gain.py").write_text("GAIN = 1\n")
    (place / "a_by_hand" / "table.json").write_text("{}")
    (place / "_virtualenv_a_by_hand.py").write_text("")
    (place / "_a_by_hand.py").write_text("")
    (place / "a_library").mkdir()
    (place / "a_library" / "a_by_hand_of_a_library.py").write_text("")
    monkeypatch.syspath_prepend(place)
    monkeypatch.syspath_prepend(place / "a_library")  # as some packages do for themselves
    needs = importing("import a_by_hand\nimport _virtualenv_a_by_hand, _a_by_hand\n"
                      "import a_by_hand_of_a_library\nimport pytest\n")  # fmt: skip
    assert needs.packages["a_by_hand"].startswith("unversioned ")
    assert not [name for name in needs.packages if name.startswith(("_virtualenv", "a_by_hand_of"))]
    assert needs.packages["_a_by_hand"].startswith("unversioned ")
    assert not [name for name in needs.files if "site-packages" in name]
    assert unmet(needs, tmp_path, Digests(None)) == ""
    (place / "a_by_hand" / "table.json").write_text("[]")
    assert unmet(needs, tmp_path, Digests(None)).startswith("the package a_by_hand changed")


def test_code_that_puts_the_finders_back_breaks_nothing(tmp_path: Path) -> None:
    before = list(sys.meta_path)
    with watching(tmp_path, read=Read()):
        sys.meta_path[:] = before
    assert sys.meta_path == before


def test_nothing_of_it_stays_in_the_way_of_imports(tmp_path: Path) -> None:
    before = list(sys.meta_path)
    with watching(tmp_path, read=Read()):
        assert len(sys.meta_path) == len(before) + 1
    assert sys.meta_path == before


def test_what_both_missed_is_needed_once() -> None:
    both = merged(Needs(missing={"a": ("x",), "b": ("y",)}), Needs(missing={"b": ("z", "y")}))
    assert both.missing == {"a": ("x",), "b": ("y", "z")}
