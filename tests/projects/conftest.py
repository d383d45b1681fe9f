"""Records to build runs of projects from: those of the documents' tests."""

from __future__ import annotations

from importlib import util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def records() -> ModuleType:
    """`records.manifest(...)`, `records.artifact(...)`: tests are no package, so by its path."""
    path = Path(__file__).parents[1] / "reports" / "records.py"
    spec = util.spec_from_file_location("report_records", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
