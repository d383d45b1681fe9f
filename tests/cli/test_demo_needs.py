"""What the shipped example read beside its order, in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path


def test_the_example_reads_its_own_code_alone(demo: Path) -> None:
    needs = json.loads((demo / "manifest.json").read_text())["needs"]
    named = {Path(name).name for name in needs["files"]}
    assert "digits.py" in named
    assert not [name for name in needs["files"] if "/logs" in name or "pytest" in name]
