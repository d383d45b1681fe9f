"""Attention in plain operators, where a capture cannot take torch's fused one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .rewrite import Module, Rewrite
from .swapping import swap_functions

if TYPE_CHECKING:
    import torch

# Attention in plain operators, where a capture cannot take torch's fused one.


_ATTENTION_SIGNS = ("scaled_dot_product_attention", "is_causal")  # what refusals of it say
_DATA_SIGN = "depends on tensor data"


def _needs_plain_attention(module: Module, reasons: Sequence[str]) -> bool:  # noqa: ARG001 - as every `suits`
    return any(sign in reason for reason in reasons for sign in _ATTENTION_SIGNS)


@contextmanager
def _use_plain_attention(module: Module) -> Iterator[None]:  # noqa: ARG001 - as every `during`
    from torch.nn import functional

    with swap_functions({functional.scaled_dot_product_attention: _plain_attention}):
        yield


def _plain_attention(  # noqa: PLR0913, PLR0917 - torch's signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001 - an artifact is for inference
    is_causal: Any = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Softmax of the scaled products, as torch documents it; `is_causal` may be a symbol."""
    import torch

    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    if is_causal is not False:
        seen = _causal_mask(query.shape[-2], key.shape[-2], is_causal)
        scores = scores.masked_fill(~seen, float("-inf"))
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    shares = torch.softmax(scores, dim=-1)
    if attn_mask is not None:  # torch gives 0 to a query that sees no key, softmax would give NaN
        shares = shares.masked_fill(torch.isneginf(scores).all(dim=-1, keepdim=True), 0.0)
    return shares @ value


def _causal_mask(queries: int, keys: int, wanted: Any) -> torch.Tensor:
    """Which keys each query sees; all, where what stood for `is_causal` turns out false."""
    import torch

    ahead = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
    if wanted is True:
        return ahead <= 0
    if isinstance(wanted, torch.Tensor):
        return (ahead <= 0) | ~wanted.to(torch.bool)
    choose: Any = torch.sym_ite
    seen: torch.Tensor = ahead <= choose(wanted, 0, 1) * keys
    return seen


def _compares_masks(module: Module, reasons: Sequence[str]) -> bool:
    """Whether it has a stock transformer, and a refusal says that values of tensors decide."""
    from torch import nn

    stock = (nn.TransformerEncoder, nn.TransformerDecoder)
    asked = any(_DATA_SIGN in reason for reason in reasons)
    return asked and any(isinstance(one, stock) for one in module.modules())


@contextmanager
def _skip_mask_detection(module: Module) -> Iterator[None]:  # noqa: ARG001 - as every `during`
    from torch.nn.modules import transformer

    with swap_functions({transformer._detect_is_causal_mask: _causality_from_caller}):
        yield


def _causality_from_caller(
    mask: torch.Tensor | None,  # noqa: ARG001 - torch's signature
    is_causal: bool | None = None,
    size: int | None = None,  # noqa: ARG001 - torch's signature
) -> bool:
    """Only what the caller said: a mask that happens to be the causal one is added as any other."""
    return bool(is_causal)


ATTENTION_REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="masks-as-given",
        summary="masks of nn.Transformer are added, and not compared with the causal one before",
        suits=_compares_masks,
        during=_skip_mask_detection,
        signs=(_DATA_SIGN,),
    ),
    Rewrite(
        name="plain-attention",
        summary="scaled_dot_product_attention in plain operators",
        suits=_needs_plain_attention,
        during=_use_plain_attention,
        signs=_ATTENTION_SIGNS,
    ),
)
