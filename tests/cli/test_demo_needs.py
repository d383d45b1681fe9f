"""What the shipped example needs beside its order, in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path


def test_an_export_without_a_cache_states_its_own_code_alone(demo: Path) -> None:
    needs = json.loads((demo / "manifest.json").read_text())["needs"]
    assert {Path(name).name for name in needs["files"]} == {"__init__.py", "digits.py"}
    assert "numpy" not in needs["packages"]  # what is in a key is not needed twice
