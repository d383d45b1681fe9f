"""The mark `needs(target)` of these tests: it skips with the target's own reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from modelc.core.contract import Readiness
from modelc.core.errors import ErrorCode, UsageError

from .reasons import has_code


@pytest.fixture
def conftest(request: pytest.FixtureRequest) -> Any:
    place = str(Path(__file__).with_name("conftest.py"))
    plugins = request.config.pluginmanager.get_plugins()
    return next(plugin for plugin in plugins if getattr(plugin, "__file__", None) == place)


def target_that_is(readiness: Readiness) -> object:
    return SimpleNamespace(readiness=lambda: readiness)


def test_a_target_that_is_not_ready_is_skipped_with_its_own_reason(conftest: Any) -> None:
    absent = Readiness(ready=False, reason="no text", mend="pip install text")
    assert conftest.why_not(target_that_is(absent)) == "no text"


def test_a_target_that_is_ready_is_not_skipped(conftest: Any) -> None:
    assert conftest.why_not(target_that_is(Readiness(ready=True, version="1"))) == ""


def test_a_target_that_does_not_exist_is_an_error_not_a_skip(conftest: Any) -> None:
    item = SimpleNamespace(iter_markers=lambda _: [SimpleNamespace(args=("onyx",))])
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_NAME, naming="'onyx'")):
        conftest.pytest_runtest_setup(item)
