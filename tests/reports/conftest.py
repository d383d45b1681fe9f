"""Manifests of every kind for the documents, from `records.py`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest

from modelc.core.manifest import Manifest


def _load() -> ModuleType:
    """`records.py` beside this file; tests are not a package."""
    spec = util.spec_from_file_location("report_records", Path(__file__).with_name("records.py"))
    if spec is None or spec.loader is None:
        raise FileNotFoundError("records.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_RECORDS = _load()
CASES: dict[str, Callable[[], Manifest]] = _RECORDS.CASES


@pytest.fixture(scope="session")
def records() -> ModuleType:
    """`records.judged(...)`, `records.artifact(...)`: what the manifests are made of."""
    return _RECORDS


@pytest.fixture(params=list(CASES), scope="session")
def any_manifest(request: pytest.FixtureRequest) -> Manifest:
    """Every kind of manifest in turn."""
    return CASES[request.param]()


@pytest.fixture(scope="session")
def made() -> Callable[[str], Manifest]:
    """`made("full")`: one of the kinds by its name."""
    return lambda name: CASES[name]()


@pytest.fixture(name="full", scope="session")
def full_fixture() -> Manifest:
    """The manifest with one of everything."""
    return CASES["full"]()


@pytest.fixture(name="hostile", scope="session")
def hostile_fixture() -> Manifest:
    """The same with hostile texts."""
    return CASES["hostile"]()
