"""ELU, CELU and SELU by tanh: ONNX writes them with exp(x) - 1, which forgets small numbers.

Torch computes them by expm1. Of x = -0.001, exp(x) - 1 keeps 14 of 24 bits in float32, which shows
where nothing larger is added behind. With t = tanh(x / 2), expm1(x) = 2 t / (1 - t); for x <= 0 the
divisor lies between 1 and 2, so no bits are lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .rewrite import Module, Rewrite, calls_any
from .swapping import swap_functions

if TYPE_CHECKING:
    import torch

# ELU, CELU and SELU by tanh: ONNX writes them with exp(x) - 1, which forgets small numbers.
#
# Torch computes them by expm1. Of x = -0.001, exp(x) - 1 keeps 14 of 24 bits in float32, which
# shows where nothing larger is added behind. With t = tanh(x / 2), expm1(x) = 2 t / (1 - t); for x
# <= 0 the divisor lies between 1 and 2, so no bits are lost.


_ELU_SIGNS = (
    "times as far from float64",
)  # what the verdict says of an artifact that is too rough
_ELU_NAMES = frozenset({"elu", "celu", "selu"})
_SELU_CONSTANTS = (
    1.0507009873554805,
    1.6732632423543772,
)  # scale and alpha, as torch documents them


def _needs_exact_elu(module: Module, reasons: Sequence[str]) -> bool:
    rough = any(sign in reason for reason in reasons for sign in _ELU_SIGNS)
    return rough and calls_any(module, _ELU_NAMES)


@contextmanager
def _use_exact_elu(module: Module) -> Iterator[None]:  # noqa: ARG001 - as every `during`
    from torch.nn import functional

    with swap_functions({functional.elu: _elu, functional.celu: _celu, functional.selu: _selu}):
        yield


def _elu(x: torch.Tensor, alpha: float = 1.0, inplace: bool = False) -> torch.Tensor:
    return _store_result(x, x.relu() + alpha * _expm1(x.clamp(max=0)), inplace=inplace)


def _celu(x: torch.Tensor, alpha: float = 1.0, inplace: bool = False) -> torch.Tensor:
    return _store_result(x, x.relu() + alpha * _expm1(x.clamp(max=0) / alpha), inplace=inplace)


def _selu(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    scale, alpha = _SELU_CONSTANTS
    low = alpha * _expm1(x.clamp(max=0))
    return _store_result(x, scale * (x.relu() + low), inplace=inplace)


def _expm1(low: torch.Tensor) -> torch.Tensor:
    half = (low / 2).tanh()
    return 2 * half / (1 - half)


def _store_result(x: torch.Tensor, result: torch.Tensor, *, inplace: bool) -> torch.Tensor:
    return x.copy_(result) if inplace else result


ELU_REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="exact-elu",
        summary="ELU, CELU and SELU by tanh, which keeps small numbers exact",
        suits=_needs_exact_elu,
        during=_use_exact_elu,
        signs=_ELU_SIGNS,
    ),
)
