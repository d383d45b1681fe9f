"""Fourier transforms, ELU and inverses by operators that ONNX Runtime computes accurately.

ONNX Runtime computes DFTs of sizes other than powers of 2 by Bluestein's algorithm in float32,
about 150 times as far from float64 as torch at 255 points. Here the DFT is a product with the
matrix exp(-2 pi i k n / N), with k n modulo N in integers, so that the factors are accurate to the
last bits. It costs N^2 instead of N log N.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from .evidence import Symptom
from .rewrite import Module, Rewrite, calls, swap_attribute, swaps

if TYPE_CHECKING:
    import torch

_LAST_TWO = (-2, -1)


def _fft(x: torch.Tensor, n: Any = None, dim: int = -1, norm: str | None = None) -> torch.Tensor:
    return _transform(x, n, dim, norm, inverse=False)


def _ifft(x: torch.Tensor, n: Any = None, dim: int = -1, norm: str | None = None) -> torch.Tensor:
    return _transform(x, n, dim, norm, inverse=True)


def _rfft(x: torch.Tensor, n: Any = None, dim: int = -1, norm: str | None = None) -> torch.Tensor:
    return _transform(x, n, dim, norm, inverse=False, half=True)


def _irfft(x: torch.Tensor, n: Any = None, dim: int = -1, norm: str | None = None) -> torch.Tensor:
    """Return real values of half a spectrum, whose inner numbers count twice."""
    import torch

    size = 2 * (x.shape[dim] - 1) if n is None else n
    count = size // 2 + 1
    real, imaginary = _split_rows(x, count, dim)
    cosines, sines = _dft_factors(count, size, size, real)
    places = torch.arange(count, device=x.device)
    alone = (places == 0) | (2 * places == size)
    weights = torch.where(alone, 1.0, 2.0).to(real.dtype)
    values = (real * weights) @ cosines
    if imaginary is not None:
        values = values - (imaginary * weights) @ sines
    return _apply_norm(values, size, norm, inverse=True).transpose(dim, -1)


def _transform(  # noqa: PLR0913 - the transform's own
    x: torch.Tensor, n: Any, dim: int, norm: str | None, *, inverse: bool, half: bool = False
) -> torch.Tensor:
    import torch

    size = x.shape[dim] if n is None else n
    real, imaginary = _split_rows(x, size, dim)
    cosines, sines = _dft_factors(size, size // 2 + 1 if half else size, size, real)
    turned = sines if inverse else -sines
    first, second = real @ cosines, real @ turned
    if imaginary is not None:
        first, second = first - imaginary @ turned, second + imaginary @ cosines
    first, second = (_apply_norm(one, size, norm, inverse=inverse) for one in (first, second))
    return torch.complex(first.transpose(dim, -1), second.transpose(dim, -1))


def _split_rows(x: torch.Tensor, size: Any, dim: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return real and imaginary part (or None), with the dim last and of that size."""
    parts = (x.real, x.imag) if x.is_complex() else (x if x.is_floating_point() else x.float(),)
    real, *others = (_fit_size(part.transpose(dim, -1), size) for part in parts)
    return real, others[0] if others else None


def _fit_size(rows: torch.Tensor, size: Any) -> torch.Tensor:
    """Cut to a size, or pad with zeros."""
    import torch
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    same = rows.shape[-1] == size
    if not isinstance(same, torch.Tensor) and statically_known_true(same):  # sizes of a trace
        return rows
    filled = torch.cat([rows, rows.new_zeros((*rows.shape[:-1], size))], -1)
    return filled[..., :size]


def _dft_factors(rows: Any, columns: Any, size: Any, like: torch.Tensor) -> Any:
    """Return cosines and sines of 2 pi k n / size for k below rows and n below columns.

    Angles are reduced to pi / 2, where float32 is most accurate.
    """
    import torch

    places = torch.arange(rows, device=like.device)[:, None]
    whole = torch.ones_like(places[:1]) * size  # exporters do not support a remainder by a size
    turned = 2 * ((places * torch.arange(columns, device=like.device)[None, :]) % whole)
    over = turned > whole  # below the axis
    twice = torch.where(over, 2 * whole - turned, turned)
    left = 2 * twice > whole
    angle = torch.where(left, whole - twice, twice).to(like.dtype) / whole.to(like.dtype) * math.pi
    cosines, sines = angle.cos(), angle.sin()
    return torch.where(left, -cosines, cosines), torch.where(over, -sines, sines)


def _apply_norm(
    values: torch.Tensor, size: Any, norm: str | None, *, inverse: bool
) -> torch.Tensor:
    divisor: torch.Tensor | None = None
    if norm == "ortho":
        divisor = (values.new_ones(1) * size).sqrt()
    elif (norm == "forward") is not inverse:
        divisor = values.new_ones(1) * size
    return values if divisor is None else values / divisor


def _along_dims(
    one: Any, last: Any, default: tuple[int, ...] | None, *, first: bool = True
) -> Callable[..., torch.Tensor]:
    """Return a transform along several dims, with another function for the last, first or last."""

    def transform(x: torch.Tensor, s: Any = None, dim: Any = default, norm: Any = None) -> Any:
        if dim is None:
            dim = tuple(range(-(x.ndim if s is None else len(s)), 0))
        sizes = [None] * len(dim) if s is None else [None if size == -1 else size for size in s]
        *others, (size, axis) = zip(sizes, dim, strict=True)
        if first:
            x = last(x, size, axis, norm)
        for other_size, other in others:
            x = one(x, other_size, other, norm)
        return x if first else last(x, size, axis, norm)

    return transform


def _stft(  # noqa: PLR0913, PLR0917 - torch's own
    input: torch.Tensor,  # noqa: A002 - its name in torch
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> torch.Tensor:
    """Like `torch.stft`, with windowed frames times a matrix."""
    import torch

    if align_to_window:
        raise NotImplementedError("stft with align_to_window as products with a matrix")
    rows = input if input.dim() > 1 else input[None]
    length = n_fft if win_length is None else win_length
    if center:
        half = n_fft // 2
        rows = torch.nn.functional.pad(rows[:, None], (half, half), mode=pad_mode)[:, 0]
    weights = rows.new_ones(length) if window is None else window
    if length < n_fft:
        left = (n_fft - length) // 2
        weights = torch.nn.functional.pad(weights, (left, n_fft - length - left))
    frames = rows.unfold(-1, n_fft, n_fft // 4 if hop_length is None else hop_length) * weights
    is_complex = frames.is_complex()
    half_alone = not is_complex if onesided is None else onesided
    found = _transform(frames, n_fft, -1, None, inverse=False, half=half_alone).transpose(1, 2)
    found = found / math.sqrt(n_fft) if normalized else found
    found = found if input.dim() > 1 else found[0]
    return found if return_complex or is_complex else torch.view_as_real(found)


_TRANSFORMS: dict[str, Callable[..., Any]] = {
    "fft": _fft, "ifft": _ifft, "rfft": _rfft, "irfft": _irfft,
    "fft2": _along_dims(_fft, _fft, _LAST_TWO), "fftn": _along_dims(_fft, _fft, None),
    "ifft2": _along_dims(_ifft, _ifft, _LAST_TWO), "ifftn": _along_dims(_ifft, _ifft, None),
    "rfft2": _along_dims(_fft, _rfft, _LAST_TWO), "rfftn": _along_dims(_fft, _rfft, None),
    "irfft2": _along_dims(_ifft, _irfft, _LAST_TWO, first=False),
    "irfftn": _along_dims(_ifft, _irfft, None, first=False),
}  # fmt: skip


@contextmanager
def _use_matrix_dft(module: Module) -> Iterator[None]:
    import torch

    functions = {f"torch.fft.{name}": function for name, function in _TRANSFORMS.items()}
    with (
        swaps({**functions, "torch.stft": _stft})(module),
        swap_attribute(torch.Tensor, "stft", _stft),
    ):
        yield


EXACT_SPECTRA = Rewrite(
    name="exact-spectra",
    summary="Fourier transforms as products with a matrix, accurate at all sizes",
    suits=calls(*_TRANSFORMS, "stft", "spectrogram"),
    during=_use_matrix_dft,
    needs=frozenset((Symptom.ROUNDOFF,)),
)


# ELU, CELU and SELU by tanh: ONNX uses exp(x) - 1, which is inaccurate for small x.
#
# Torch uses expm1. For x = -0.001, exp(x) - 1 has 14 of 24 bits in float32. With t = tanh(x / 2),
# expm1(x) = 2 t / (1 - t); for x <= 0 the divisor is between 1 and 2, so no bits are lost.


_SELU_CONSTANTS = (
    1.0507009873554805,
    1.6732632423543772,
)  # scale and alpha, as torch documents them


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


EXACT_ELU = Rewrite(
    name="exact-elu",
    summary="ELU, CELU and SELU by tanh, accurate for small numbers",
    suits=calls("elu", "celu", "selu"),
    during=swaps(
        {
            "torch.nn.functional.elu": _elu,
            "torch.nn.functional.celu": _celu,
            "torch.nn.functional.selu": _selu,
        }
    ),
    needs=frozenset((Symptom.FLOAT64_ROUNDOFF,)),
)


# Inverses of matrices of dynamic size, by a loop that torch.jit.script keeps.
#
# The ONNX translation unrolls the rows, which requires their number.


def _use_inverse_loop(module: Module) -> AbstractContextManager[None]:
    from .scripted_loops import inverse, solution

    functions: dict[str, Callable[..., Any]] = {
        "torch.linalg.inv": inverse,
        "torch.inverse": inverse,
        "torch.linalg.solve": solution,
    }
    return swaps(functions)(module)


LOOPED_INVERSE = Rewrite(
    name="looped-inverse",
    summary="torch.linalg.inv and solve as a loop over any number of rows",
    suits=calls("inv", "inverse", "solve"),
    during=_use_inverse_loop,
    needs=frozenset((Symptom.OPEN_INVERSE,)),
)
