"""The tests that every target must pass, for packages that bring one. They need pytest.

from modelc.testing import TargetContract
import my_format

class TestMyFormat(TargetContract):
    target = my_format
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("modelc.testing.target_contract")

from .target_contract import (  # noqa: E402 - what is rewritten must not be loaded before
    Case,
    TargetContract,
    case_of,
)

__all__ = ["Case", "TargetContract", "case_of"]
