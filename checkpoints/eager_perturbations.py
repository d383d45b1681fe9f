"""Modes in which eager gives other valid results: perturbations, sequential sums, other ties."""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.torch_tools import intercept_operators
from .float64_eager import has_script
from .mapped_weights import FileMappings, preserve_tensor
from .weights_on_use import perturb_weights_on_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from ..core.contract import Array, Feed

_LARGE = 2**30  # bytes of weights


@contextmanager
def perturb_weights(module: torch.nn.Module, share: float, seed: int) -> Iterator[None]:
    """Multiply float parameters by 1 + share * N(0, 1) per element; restore them at the end.

    Large models, whose changed weights would be in memory beside their file, are perturbed in
    calls: the noise is another draw then.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    places = FileMappings()
    floats = [p for p in dict.fromkeys(module.parameters()) if p.is_floating_point()]
    if sum(p.nbytes for p in floats) > _LARGE and not has_script(module):
        with perturb_weights_on_use(module, share, seed):
            yield
        return
    with ExitStack() as changed:
        for parameter in floats:
            changed.enter_context(preserve_tensor(parameter, places))
            with torch.no_grad():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.mul_(noise.mul_(share).add_(1).to(parameter.dtype))
        yield


def perturb_feed(feed: Feed, share: float, seed: int) -> Feed:
    """Add noise of `share` of the RMS to every float input, so that zeros and ties move too."""
    import numpy as np

    generator = np.random.default_rng(seed)
    return {
        name: (array + share * _rms(array) * generator.standard_normal(array.shape)).astype(
            array.dtype
        )
        if array.dtype.kind == "f"
        else array
        for name, array in feed.items()
    }


def _rms(array: Array) -> float:
    """Return the root mean square of the finite elements; 1 if all are zero."""
    import numpy as np

    finite = array[np.isfinite(array)].astype(np.float64)
    return float(np.sqrt(np.mean(finite**2))) or 1.0 if finite.size else 1.0


# Long sums and resizes in float32 as in some other runtimes.
#
# Torch uses pairwise summation, whose roundoff hardly grows with the number of elements. Sequential
# summation has far larger errors, most of all for equal elements, whose roundings go the same way.
# Both are valid float32. A norm divides the error of its mean by the root of its epsilon if all
# elements are equal: torch may be exact by chance there, and errors of 300 roundings are valid. A
# resize multiplies positions by a scale that torch may represent exactly (255 to 16 is 15.9375),
# where others divide by its rounded inverse: the last of 255 positions is off by 255 roundings.


# A pool over an image of 128 x 128: fast kernels split longer sums.
LONGEST_SUM = 1 << 14
_MOST_PRODUCTS = 1 << 32  # multiplications of one batch of matrices: seconds
_SUMS = ("sum", "mean")
_ULP = 2.0**-23  # one unit in the last place of float32
_LANES = 4  # parallel sums of a norm: the floats in the smallest SIMD registers


def sum_sequentially() -> TorchDispatchMode:
    """Return a mode with sequential float32 sums and means of up to `LONGEST_SUM` elements.

    Sums within layer, group and instance norms use four lanes, as in runtimes without wider
    registers. Products of activations, as of attention with its values, add one term after another:
    over equal values the roundings go the same way (1,500 positions: 8e-6 of the value, where
    torch's blocks give 1e-6). The scale of a resize is off by one unit in the last place.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    def replace_sum(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = func.overloadpacket.__name__ if func.namespace == "aten" else ""
        make = _sum_or_mean if name in _SUMS else _REPLACEMENTS.get(name)
        with _disable_current_modes():
            found = None if make is None else make(func, args, kwargs)
        return func(*args, **kwargs) if found is None else found

    return intercept_operators(replace_sum)


def _sum_or_mean(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> torch.Tensor | None:
    """Return a sequential sum or mean; None for forms left to torch."""
    import torch

    if func._overloadname not in ("default", "dim", "dim_IntList"):
        return None
    tensor = args[0]
    axes = _sum_axes(tensor, args[1] if len(args) > 1 else given.get("dim"))
    count = math.prod(tensor.shape[axis] for axis in axes)
    if given.get("dtype") not in (None, torch.float32) or not _is_summable(tensor, count):
        return None
    total = _accumulate(tensor, axes)
    kept = args[2] if len(args) > 2 else given.get("keepdim", False)  # noqa: PLR2004 - its position
    total = total / count if func.overloadpacket.__name__ == "mean" else total
    return total.reshape([1 if a in axes else s for a, s in enumerate(tensor.shape)]
                         if kept else total.shape)  # fmt: skip


def _layer_norm(_: Any, args: Sequence[Any], __: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Replace `native_layer_norm(x, shape, weight, bias, eps)`, over the last axes."""
    x, shape, weight, bias, eps = args
    count = math.prod(shape)
    if not _is_summable(x, count // _LANES + 1):
        return None
    y, mean, scale = _normalize_rows(x.reshape(-1, count), eps)
    kept = [*x.shape[: x.dim() - len(shape)], *(1 for _ in shape)]
    return _apply_affine(y.reshape(x.shape), weight, bias), mean.reshape(kept), scale.reshape(kept)


def _group_norm(_: Any, args: Sequence[Any], __: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Replace `native_group_norm(x, weight, bias, rows, channels, size, groups, eps)`."""
    x, weight, bias, rows, channels, size, groups, eps = args
    if not rows or not _is_summable(x, channels // groups * size // _LANES):
        return None
    y, mean, scale = _normalize_rows(x.reshape(rows * groups, -1), eps)
    shape = [channels, *(1 for _ in x.shape[2:])]
    weight, bias = (None if one is None else one.reshape(shape) for one in (weight, bias))
    kept = (rows, groups)
    return _apply_affine(y.reshape(x.shape), weight, bias), mean.reshape(kept), scale.reshape(kept)


def _batch_norm(_: Any, args: Sequence[Any], __: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Replace `native_batch_norm(x, weight, bias, mean, variance, training, momentum, eps)`.

    Only if it normalizes by the batch and has no running statistics, as in an instance norm.
    """
    x, weight, bias, mean, variance, training, _, eps = args
    if not training or mean is not None or variance is not None:
        return None
    if not _is_summable(x, x.numel() // x.shape[1] // _LANES):
        return None
    rows = x.transpose(0, 1)
    y, mean, scale = _normalize_rows(rows.reshape(x.shape[1], -1), eps)
    shape = [x.shape[1], *(1 for _ in x.shape[2:])]
    weight, bias = (None if one is None else one.reshape(shape) for one in (weight, bias))
    y = y.reshape(rows.shape).transpose(0, 1).contiguous()
    return _apply_affine(y, weight, bias), mean.flatten(), scale.flatten()


def _upsample(func: Any, args: Sequence[Any], _: Mapping[str, Any]) -> torch.Tensor | None:
    """Replace `upsample_*(x, sizes, align_corners, scale, ...)`, unless corners are aligned."""
    x, sizes, corners, *scales = args
    scales = scales or [None] * len(sizes)
    if corners or not _is_summable(x, 1) or len(scales) != len(sizes):
        return None
    given = zip(sizes, x.shape[-len(sizes) :], scales, strict=True)
    off = ((scale or size / old) * (1 + _ULP) for size, old, scale in given)
    found: torch.Tensor = func(x, sizes, corners, *off)
    return found


def _multiply_batches(_: Any, args: Sequence[Any], __: Mapping[str, Any]) -> torch.Tensor | None:
    """Replace `bmm(a, b)`, of [batch, rows, terms] and [batch, terms, columns]."""
    a, b = args
    terms = a.shape[-1]
    if not _is_summable(a, terms) or a.numel() * b.shape[-1] > _MOST_PRODUCTS:
        return None
    total: torch.Tensor = a.new_zeros(*a.shape[:-1], b.shape[-1])
    left, right = (one.detach().movedim(axis, 0).contiguous() for one, axis in ((a, 2), (b, 1)))
    for row, column in zip(left, right, strict=True):
        total.addcmul_(row.unsqueeze(-1), column.unsqueeze(-2))
    return total


def _attention(
    _: Any, args: Sequence[Any], given: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Replace fused attention: its product with the values, over the tokens of the past.

    The arguments are query, key and value of [batch, heads, tokens, size], the share of dropout,
    and whether it is causal; by keyword, what is added to the scores, and their scale.
    """
    import torch

    query, key, value, *rest = args
    more = query.shape[1] // key.shape[1]  # heads of queries to one of keys
    key, value = (one.repeat_interleave(more, 1) for one in (key, value))
    scale = given.get("scale")
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if given.get("attn_mask") is not None:
        scores = scores + given["attn_mask"]
    if rest[1:] and rest[1]:
        scores = scores + torch.full_like(scores, -math.inf).triu(1)
    shares = torch._safe_softmax(scores, -1)
    found = _multiply_batches(None, (shares.flatten(0, 1), value.flatten(0, 1)), {})
    return None if found is None else (found.view(*query.shape[:3], -1), scores.logsumexp(-1))


_REPLACEMENTS: Mapping[str, Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]] = {
    "bmm": _multiply_batches,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "native_batch_norm": _batch_norm,
    "upsample_linear1d": _upsample,
    "upsample_bilinear2d": _upsample,
    "upsample_trilinear3d": _upsample,
    "upsample_bicubic2d": _upsample,
}


def _normalize_rows(
    rows: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return each row of [rows, elements] normalized, its mean and its scale."""
    count = rows.shape[1]
    mean = _sum_in_lanes(rows) / count
    off = rows - mean
    scale = (_sum_in_lanes(off * off) / count + eps).rsqrt()
    return off * scale, mean, scale


def _sum_in_lanes(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of each row as [rows, 1], in four interleaved lanes."""
    import torch

    short = -rows.shape[1] % _LANES
    padded = torch.nn.functional.pad(rows.detach(), (0, short))  # zeros add nothing
    return _accumulate(padded.reshape(len(rows), -1, _LANES), (1,)).sum(1, keepdim=True)


def _apply_affine(y: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _is_summable(tensor: torch.Tensor, count: int) -> bool:
    """Whether a sum of so many elements of the tensor is computed sequentially."""
    import torch

    is_float = tensor.dtype is torch.float32 and tensor.device.type == "cpu"
    return is_float and 0 < count <= LONGEST_SUM


def _sum_axes(tensor: torch.Tensor, dim: Any) -> tuple[int, ...]:
    """Return the axes of a sum, counted from the front; all if none is named."""
    named = [dim] if isinstance(dim, int) else list(dim or range(tensor.dim()))
    return tuple(axis % tensor.dim() for axis in named) if tensor.dim() else ()


def _accumulate(tensor: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    import numpy as np
    import torch

    rest = [axis for axis in range(tensor.dim()) if axis not in axes]
    shape = [tensor.shape[axis] for axis in rest]
    rows = tensor.detach().permute((*rest, *axes)).reshape(*shape, -1).numpy()
    with np.errstate(over="ignore", invalid="ignore"):  # like torch
        # numpy's accumulate adds in order and in float32; its reduce and torch's cumsum do not
        total = np.add.accumulate(rows, axis=-1, dtype=np.float32)[..., -1]
    return torch.from_numpy(np.array(total))


# Ties: which of equal scores `topk` and `sort` return.
#
# Torch leaves that undefined, except for `sort(stable=True)`: ONNX takes the lower index, other
# runtimes depend on their order of computation. All are valid. Thresholds, and argmax, which
# returns
# the first, are defined and stay unchanged.


# Bits of a score that count: scores equal in these, to 1 or 2 parts in a million, differ only by
# roundoff, as the shares in pipeline/rounding_ties.py for float32.
_BITS = 20


@dataclass(kw_only=True)
class TieChoices:
    """Whether the last or the first of equal scores is returned; `made` counts the choices."""

    last: bool
    made: int = 0


def order_ties(choices: TieChoices) -> TorchDispatchMode:
    """Return a mode that breaks ties in `topk` and `sort` by index."""
    from torch.utils._python_dispatch import _disable_current_modes

    def choose(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if not _is_order_undefined(func, args, kwargs):
            return result
        with _disable_current_modes():
            found = _sort_by_index(func, args, kwargs, last=choices.last)
        choices.made += found is not None
        return result if found is None else found

    return intercept_operators(choose)


def _is_order_undefined(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> bool:
    """Whether torch leaves the order of equal elements undefined in this call."""
    import torch

    aten = torch.ops.aten
    if func is aten.sort.stable:
        return not given.get("stable")
    return func in (aten.topk.default, aten.sort.default) and bool(args)


def _sort_by_index(
    func: Any, args: Sequence[Any], given: Mapping[str, Any], *, last: bool
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return values and indices with equal elements ordered by index; None for a scalar."""
    parameters = {argument.name: argument.default_value for argument in func._schema.arguments}
    parameters |= dict(zip(parameters, args, strict=False)) | dict(given)
    tensor, dim = parameters["self"], parameters["dim"]
    if not tensor.dim():
        return None
    descending = parameters["largest"] if "largest" in parameters else parameters["descending"]
    keys = _coarsen(tensor).flip(dim) if last else _coarsen(tensor)
    order = keys.sort(dim=dim, descending=descending, stable=True).indices
    order = tensor.shape[dim] - 1 - order if last else order
    indices = order.narrow(dim, 0, parameters.get("k", tensor.shape[dim])).contiguous()
    return tensor.gather(dim, indices), indices


def _coarsen(scores: torch.Tensor) -> torch.Tensor:
    """Round scores so that those which differ by roundoff are equal."""
    import torch

    if not scores.is_floating_point():
        return scores
    share, exponent = torch.frexp(scores.double())
    return torch.ldexp((share * 2**_BITS).round(), exponent.double())


# Attention without fast paths, whose results differ where they are undefined.
#
# In eval mode `torch.nn.TransformerEncoder` packs rows of different lengths into nested tensors,
# with zeros at their padding; fused attention is undefined where a whole row is masked. The plain
# path
# computes every position. Both are eager, and both are valid.


@contextmanager
def disable_attention_fast_paths() -> Iterator[None]:
    """Disable nested tensors and fused kernels of attention within the context."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
