"""Inverses of matrices whose size ONNX does not know, as in a loop that torch.jit.script keeps.

The translation writes one turn for each row. Where the number of rows is not known, the turns are a
loop of TorchScript, and one of ONNX.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .rewrite import Module, Rewrite, calls_any
from .swapping import swap_functions

# Inverses of matrices whose size ONNX does not know, as in a loop that torch.jit.script keeps.
#
# The translation writes one turn for each row. Where the number of rows is not known, the turns are
# a loop of TorchScript, and one of ONNX.


_INVERSE_SIGNS = (
    "inverse cannot be written in ONNX of matrices whose size is not fixed",
    "solve cannot be written in ONNX of matrices whose size is not fixed",
)


def _needs_inverse_loop(module: Module, reasons: Sequence[str]) -> bool:
    asked = any(sign in reason for reason in reasons for sign in _INVERSE_SIGNS)
    return asked and calls_any(module, frozenset({"inv", "inverse", "solve"}))


@contextmanager
def _use_inverse_loop(module: Module) -> Iterator[None]:  # noqa: ARG001 - as every `during`
    import torch

    from .loops import inverse, solution

    functions: dict[Any, Any] = {
        torch.linalg.inv: inverse,
        torch.inverse: inverse,
        torch.linalg.solve: solution,
    }
    with swap_functions(functions):
        yield


INVERSE_REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="looped-inverse",
        summary="torch.linalg.inv and solve as a loop over the rows, however many these are",
        suits=_needs_inverse_loop,
        during=_use_inverse_loop,
        signs=_INVERSE_SIGNS,
    ),
)
