"""The tests that every target must pass, for packages that bring one. They need pytest.

from modelc.testing import TargetContract
import my_format

class TestMyFormat(TargetContract):
    target = my_format
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("modelc.testing.contract")

from .case import Case, case_of  # noqa: E402 - what is rewritten must not be loaded before
from .contract import TargetContract  # noqa: E402 - the same

__all__ = ["Case", "TargetContract", "case_of"]
