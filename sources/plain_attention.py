"""Eager without the fast paths of attention: what they leave undefined comes out otherwise.

In eval mode `torch.nn.TransformerEncoder` packs rows of different lengths into nested tensors, and
gives zeros at their padding; fused attention gives what it likes where a whole row is masked. The
plain path computes every position. Both are eager, and where they differ neither is wrong.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Eager without the fast paths of attention: what they leave undefined comes out otherwise.
#
# In eval mode `torch.nn.TransformerEncoder` packs rows of different lengths into nested tensors,
# and gives zeros at their padding; fused attention gives what it likes where a whole row is masked.
# The plain path computes every position. Both are eager, and where they differ neither is wrong.


@contextmanager
def disable_attention_fast_paths() -> Iterator[None]:
    """Within, attention takes neither nested tensors nor a fused kernel."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
