"""Shortcuts of libraries that leave out what changes nothing, and that they turn off in a capture.

Such a branch on tensor data has an arm that no feed need take: either arm computes the same.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from types import FunctionType

from .arms import Place

# Shortcuts of libraries that leave out what changes nothing, and that they turn off in a capture.
#
# Such a branch on tensor data has an arm that no feed need take: either arm computes the same.


# transformers asks of a padding mask whether it hides anything; where it does not, sdpa gets none,
# or `is_causal` in its place. While a model is traced or exported these give False at once.
_SHORTCUTS = {
    "transformers.masking_utils": ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa"),
}


def are_library_shortcuts(places: Collection[Place]) -> bool:
    """Whether all places lie in such functions, as the libraries that are loaded have them."""
    spans = list(_shortcut_spans())
    return bool(places) and all(
        any(file == known and first <= line <= last for known, first, last in spans)
        for file, line in places
    )


def _shortcut_spans() -> list[tuple[str, int, int]]:
    """File, first and last line of each."""
    found = []
    for name, functions in _SHORTCUTS.items():
        here = vars(sys.modules[name]) if name in sys.modules else {}
        for function in (here.get(one) for one in functions):
            if isinstance(function, FunctionType):
                code = function.__code__
                lines = [line for _, _, line in code.co_lines() if line is not None]
                found.append((code.co_filename, code.co_firstlineno, max(lines)))
    return found
