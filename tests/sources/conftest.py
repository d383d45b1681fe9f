from __future__ import annotations

import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Write a user's module into the working folder; gives its name, new for each call."""
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)

    def write(text: str) -> str:
        name = f"nets_{uuid.uuid4().hex}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return name

    yield write
    sys.path[:] = before
