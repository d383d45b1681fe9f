"""The variable that turns the fork server off."""

from __future__ import annotations

import pytest

from modelc.cli.run_options import preloads_libraries
from modelc.core.errors import UsageError


@pytest.mark.parametrize(("value", "expected"), [("", True), ("1", True), ("0", False)])
def test_libraries_are_preloaded_unless_it_is_0(
    monkeypatch: pytest.MonkeyPatch, value: str, *, expected: bool
) -> None:
    monkeypatch.setenv("MODELC_PRELOAD", value)
    assert preloads_libraries() is expected


def test_another_value_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELC_PRELOAD", "no")
    with pytest.raises(UsageError, match="MODELC_PRELOAD"):
        preloads_libraries()
