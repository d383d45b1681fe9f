"""Functions that a child process can import."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `child_faults`, on the import path of this process and of its children."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return importlib.import_module("child_faults")
