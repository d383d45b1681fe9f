"""What the shipped example needs beside its order, in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path


def test_an_export_without_a_cache_tracks_no_files(demo: Path) -> None:
    needs = json.loads((demo / "manifest.json").read_text())["needs"]
    assert needs["files"] == {}
    assert "numpy" not in needs["packages"]  # what is in a key is not needed twice
