"""Environment variables that the user's code reads are needs of what is made of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from modelc.core.records import Needs
from modelc.pipeline.caching.digests import Digests
from modelc.pipeline.caching.needs import ABSENT, UNSURE, merged, unmet
from modelc.pipeline.caching.watching import Read, watching

NAME = "A_VARIABLE_OF_MINE"
Ask = Callable[[], object]


@pytest.fixture(autouse=True)
def variable(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """It is set, and set back after the test."""
    monkeypatch.setenv(NAME, "tanh")
    return monkeypatch


def heard(ask: Ask, root: Path) -> dict[str, str]:
    with watching(root, read=Read()) as watched:
        ask()
        return watched.needs().variables


def code(text: str, file: str) -> Ask:
    compiled = compile(text, file, "exec")
    return lambda: exec(compiled, {"os": os, "NAME": NAME})


@pytest.mark.parametrize(
    "ask",
    [
        lambda: os.environ[NAME],
        lambda: os.environ.get(NAME),
        lambda: os.getenv(NAME, "relu"),
        lambda: NAME in os.environ,
        lambda: os.environb.get(NAME.encode()),
        lambda: os.environ.setdefault(NAME, "relu"),
    ],
)
def test_a_variable_that_is_read_is_a_need(
    ask: Ask, tmp_path: Path, variable: pytest.MonkeyPatch
) -> None:
    needs = Needs(variables=heard(ask, tmp_path))
    assert list(needs.variables) == [NAME]
    assert "tanh" not in needs.variables[NAME]
    assert unmet(needs, tmp_path, Digests(None)) == ""
    variable.setenv(NAME, "sigmoid")
    told = unmet(needs, tmp_path, Digests(None))
    assert told == f"the environment variable {NAME} changed"
    variable.delenv(NAME)
    assert unmet(needs, tmp_path, Digests(None)) == f"the environment variable {NAME} is gone"


def test_one_that_is_not_set_is_a_need(tmp_path: Path, variable: pytest.MonkeyPatch) -> None:
    variable.delenv(NAME)
    needs = Needs(variables=heard(lambda: os.environ.get(NAME), tmp_path))
    assert needs.variables == {NAME: ABSENT}
    variable.setenv(NAME, "")
    assert unmet(needs, tmp_path, Digests(None)) == f"the environment variable {NAME} is new"


def test_what_an_import_of_the_users_module_reads_is_a_need(
    tmp_path: Path, variable: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net_by_variable.py").write_text(f"import os\nKIND = os.environ.get({NAME!r})\n")
    variable.syspath_prepend(tmp_path)
    assert NAME in heard(lambda: __import__("net_by_variable"), tmp_path)


@pytest.mark.parametrize(
    "text",
    ["os.environ[NAME] = 'relu'; os.environ[NAME]", "dict(os.environ)", "{**os.environ}",
     "list(os.environ.items())", "os.environ.copy()", "os.environ.get('OMP_NUM_THREADS')",
     "os.environ.get('OMP_WAIT_POLICY')"],
)  # fmt: skip
def test_what_is_set_or_copied_or_for_threads_is_none(text: str, tmp_path: Path) -> None:
    assert heard(code(text, str(tmp_path / "nets.py")), tmp_path) == {}


def test_what_a_package_reads_for_itself_is_none(tmp_path: Path) -> None:
    text = "os.environ[NAME]"
    assert heard(code(text, str(tmp_path / "nets.py")), tmp_path)
    assert heard(code(text, "/usr/lib/site-packages/package/nets.py"), tmp_path) == {}


def test_nothing_is_wrapped_once_nobody_watches(tmp_path: Path) -> None:
    kind = type(os.environ)
    before = (kind.__getitem__, kind.__setitem__, kind.__iter__, os.stat)
    heard(lambda: None, tmp_path)
    assert (kind.__getitem__, kind.__setitem__, kind.__iter__, os.stat) == before


def test_a_value_that_two_runs_read_otherwise_is_in_doubt() -> None:
    one, other = Needs(variables={"A": "1", "B": "2"}), Needs(variables={"B": "3", "C": "4"})
    assert merged(one, other).variables == {"A": "1", "B": UNSURE, "C": "4"}
