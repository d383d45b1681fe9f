"""Manifests of every kind for the documents, from `records.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from modelc.core.manifest import Manifest

from . import records

CASES = records.CASES


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
