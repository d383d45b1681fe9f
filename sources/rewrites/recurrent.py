"""LSTM and GRU of any length: `torch.export` unrolls them where it looks for their sizes.

The operator itself stays in the program. What fixes the length is torch's way to find the sizes of
what it gives: a Python loop over time. Torch has another one, that does not unroll.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from .rewrite import Module, Rewrite

# LSTM and GRU of any length: `torch.export` unrolls them where it looks for their sizes.
#
# The operator itself stays in the program. What fixes the length is torch's way to find the sizes
# of what it gives: a Python loop over time. Torch has another one, that does not unroll.


_RNN_SIGN = "specialized it"  # what torch.export says of a size that became a number


def _has_specialized_rnn(module: Module, reasons: Sequence[str]) -> bool:
    from torch import nn

    if not any(_RNN_SIGN in reason for reason in reasons):
        return False
    try:
        from torch.export import _patches
    except ImportError:
        return False
    known = hasattr(_patches, "register_gru_while_loop_decomposition")  # not in older torch
    return known and any(isinstance(part, nn.LSTM | nn.GRU) for part in module.modules())


@contextmanager
def _prevent_unrolling(module: Module) -> Iterator[None]:  # noqa: ARG001 - as every `during`
    from torch.export._patches import (
        register_gru_while_loop_decomposition,
        register_lstm_while_loop_decomposition,
    )

    with ExitStack() as stack:
        stack.callback(_clear_kernel_cache)  # after the managers have put back what was there
        stack.enter_context(register_lstm_while_loop_decomposition())
        stack.enter_context(register_gru_while_loop_decomposition())
        _clear_kernel_cache()
        yield


def _clear_kernel_cache() -> None:
    """Have torch look its Python kernels up again: an operator keeps what it once found."""
    import torch

    for operator in (torch.ops.aten.lstm.input, torch.ops.aten.gru.input):
        operator._dispatch_cache.clear()


RNN_REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="any-length-rnn",
        summary="LSTM and GRU over time without unrolling it",
        suits=_has_specialized_rnn,
        during=_prevent_unrolling,
        signs=(_RNN_SIGN,),
    ),
)
