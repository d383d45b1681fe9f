"""Attention and experts in plain operators, and transformers' patches for export."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..core.errors import MissingError
from .evidence import Symptom
from .rewrite import Module, Rewrite, give_own_class, swap_attribute, swap_functions, swaps

if TYPE_CHECKING:
    import torch


_MASK_COMBINERS = ("or_mask_function", "and_mask_function")  # further sources of a mask
_EXPORTERS = "transformers.exporters"


def _transformers_models(
    module: Module,
) -> list[Any]:  # of PreTrainedModel, which may not be installed
    """Return the transformers models in a module, including itself."""
    return [part for part in module.modules() if hasattr(part, "set_attn_implementation")]


def _has_sdpa(module: Module) -> bool:
    return any(one.config._attn_implementation == "sdpa" for one in _transformers_models(module))


def _use_eager_attention(module: Module) -> Module:
    for one in _transformers_models(module):
        one.set_attn_implementation("eager")
    return module


def _has_experts(module: Module) -> bool:
    return any(
        one._can_set_experts_implementation()
        and "grouped_mm" in str(one.get_experts_implementation())
        for one in _transformers_models(module)
        if hasattr(one, "get_experts_implementation")
    )


def _batch_experts(module: Module) -> Module:
    for one in _transformers_models(module):
        if one._can_set_experts_implementation():
            one.set_experts_implementation("batched_mm")
    return module


@contextmanager
def _apply_export_patches(module: Module) -> Iterator[None]:  # noqa: ARG001 - as every `during`
    try:
        importlib.import_module(f"{_EXPORTERS}.exporter_dynamo")  # registers them
        apply: Any = importlib.import_module(f"{_EXPORTERS}.utils").apply_patches
    except (ImportError, AttributeError) as error:
        raise MissingError(
            "this transformers has no patches for torch.export", hint="pip install -U transformers"
        ) from error
    with apply("dynamo"):
        yield


@contextmanager
def _drop_empty_masks(module: Module) -> Iterator[None]:  # noqa: ARG001 - as every `during`
    usual: Any = importlib.import_module("transformers.masking_utils").create_bidirectional_mask

    def instead(*args: Any, **kwargs: Any) -> Any:
        given = bound(*args, **kwargs).arguments
        masks = [given.get(name) for name in ("attention_mask", *_MASK_COMBINERS)]
        return None if all(mask is None for mask in masks) else usual(*args, **kwargs)

    bound = inspect.signature(usual).bind
    with swap_functions({usual: instead}):
        yield


TRANSFORMERS_REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="no-empty-masks",
        summary="no attention mask if the model gets none, as in eager",
        suits=lambda module: bool(_transformers_models(module)),
        during=_drop_empty_masks,
        needs=frozenset((Symptom.ATTENTION_MASK,)),
    ),
    Rewrite(
        name="batched-experts",
        summary="experts_implementation='batched_mm' in place of the grouped kernel",
        suits=_has_experts,
        change=_batch_experts,
    ),
    Rewrite(
        name="eager-attention",
        summary="attn_implementation='eager' in place of sdpa",
        suits=_has_sdpa,
        change=_use_eager_attention,
        alone=True,
        files=frozenset(("masking_utils.py", "sdpa_attention.py")),
    ),
    Rewrite(
        name="transformers-patches",
        summary="transformers' own patches for torch.export",
        suits=lambda module: (
            bool(_transformers_models(module)) and find_spec(_EXPORTERS) is not None
        ),
        during=_apply_export_patches,
    ),
)


# Attention in plain operators, for captures without torch's fused operator.


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
    """Compute attention as documented by torch; `is_causal` may be symbolic."""
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
    if attn_mask is not None:  # torch returns 0 for fully masked queries, softmax NaN
        shares = shares.masked_fill(torch.isneginf(scores).all(dim=-1, keepdim=True), 0.0)
    return shares @ value


def _causal_mask(queries: int, keys: int, wanted: Any) -> torch.Tensor:
    """Return which keys each query sees; all if `is_causal` is false at run time."""
    import torch

    ahead = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
    if wanted is True:
        return ahead <= 0
    if isinstance(wanted, torch.Tensor):
        return (ahead <= 0) | ~wanted.to(torch.bool)
    choose: Any = torch.sym_ite
    seen: torch.Tensor = ahead <= choose(wanted, 0, 1) * keys
    return seen


def _has_stock_transformer(module: Module) -> bool:
    """Whether it contains one of torch's own transformers."""
    from torch import nn

    stock = (nn.TransformerEncoder, nn.TransformerDecoder)
    return any(isinstance(one, stock) for one in module.modules())


def _causality_from_caller(
    mask: torch.Tensor | None,  # noqa: ARG001 - torch's signature
    is_causal: bool | None = None,
    size: int | None = None,  # noqa: ARG001 - torch's signature
) -> bool:
    """Return the caller's flag: a mask that equals the causal one is added like any other."""
    return bool(is_causal)


ATTENTION_REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="masks-as-given",
        summary="masks of nn.Transformer added without comparison to the causal one",
        suits=_has_stock_transformer,
        during=swaps(
            {"torch.nn.modules.transformer._detect_is_causal_mask": _causality_from_caller}
        ),
        needs=frozenset((Symptom.DATA_BRANCH,)),
    ),
    Rewrite(
        name="plain-attention",
        summary="scaled_dot_product_attention in plain operators",
        suits=lambda _: True,  # code of other packages may call it
        during=swaps({"torch.nn.functional.scaled_dot_product_attention": _plain_attention}),
        needs=frozenset((Symptom.FUSED_ATTENTION,)),
    ),
)


# Experts called for all tokens, weighted.
#
# transformers calls experts only for the tokens that chose them, which is tensor data that a trace
# freezes. Results of experts that a token did not choose are omitted, so the sum is the same.


_SWITCH = "transformers.models.switch_transformers.modeling_switch_transformers"


def _is_switch_part(part: Module, name: str = "SwitchTransformersExperts") -> bool:
    return (type(part).__module__, type(part).__name__) == (_SWITCH, name)


def _call_every_expert(module: Module) -> Module:
    for part in list(module.modules()):
        if _is_switch_part(part):
            give_own_class(part, {"forward": _sum_experts})
        elif _is_switch_part(part, "SwitchTransformersTop1Router"):
            _keep_router_dtype(part)
    return module


def _keep_router_dtype(router: Any) -> None:
    """Skip `self.classifier = self.classifier.to(dtype)` in forward if the dtype is right."""
    if all(one.dtype == router.dtype for one in router.classifier.parameters()):
        give_own_class(router.classifier, {"to": lambda self, *_: self})


def _sum_experts(self: Any, hidden_states: Any, selected_experts: Any, routing_weights: Any) -> Any:
    """Sum over experts; `selected_experts` (tokens, 1, experts) is 1 for chosen experts."""
    import torch

    total = torch.zeros_like(hidden_states)
    for index in range(self.num_experts):
        answer = self[f"expert_{index}"](hidden_states) * routing_weights
        chosen = selected_experts[:, :, index] > 0
        total = total + torch.where(chosen, answer.to(hidden_states.dtype), 0)
    return total


EVERY_EXPERT = Rewrite(
    name="every-expert",
    summary="every expert called for all tokens, masked where not chosen",
    suits=lambda module: any(map(_is_switch_part, module.modules())),
    change=_call_every_expert,
    files=frozenset(("modeling_switch_transformers.py",)),
)


# Padding to a multiple of a size in models of transformers, computed instead of a Python branch.

_SAME_PADDING = "apply_tf_padding"  # TensorFlow's padding, in MobileNets of transformers
_PATCH_PADDING = "maybe_pad"  # of images to whole patches, in FocalNet
_MODELS_PREFIX = "transformers.models."


def _find_same_paddings(module: Module) -> list[Any]:
    """Return the functions of that name in the files of the submodules' classes."""
    files = {type(part).__module__ for part in module.modules()}
    found = [
        getattr(sys.modules.get(name), _SAME_PADDING, None)
        for name in files
        if name.startswith(_MODELS_PREFIX)
    ]
    return [one for one in found if one is not None]


def _find_patch_embeddings(module: Module) -> list[type]:
    """Return the classes of submodules that pad images to whole patches."""
    return list(
        dict.fromkeys(
            type(part)
            for part in module.modules()
            if type(part).__module__.startswith(_MODELS_PREFIX)
            and _PATCH_PADDING in vars(type(part))
            and isinstance(getattr(part, "patch_size", None), list | tuple)
        )
    )


@contextmanager
def _use_size_padding(module: Module) -> Iterator[None]:
    with ExitStack() as held:
        held.enter_context(
            swap_functions(dict.fromkeys(_find_same_paddings(module), _pad_as_tensorflow))
        )
        for kind in _find_patch_embeddings(module):
            held.enter_context(swap_attribute(kind, _PATCH_PADDING, _pad_to_patches))
        yield


def _pad_as_tensorflow(features: Any, conv_layer: Any) -> Any:
    """Pad like TensorFlow's SAME."""
    from torch.nn import functional

    amounts: list[Any] = []
    for axis in (-1, -2):
        kernel, stride = conv_layer.kernel_size[axis], conv_layer.stride[axis]
        size = features.shape[axis]
        total = (size + stride - 1) // stride * stride - stride + kernel - size
        if kernel < stride:
            total = (total + abs(total)) // 2  # max(total, 0), which Python would decide
        before = total // 2
        dilation = conv_layer.dilation[axis]
        amounts += [before * dilation, (total - before) * dilation]
    return functional.pad(features, amounts, "constant", 0.0)


def _pad_to_patches(self: Any, pixel_values: Any, height: Any, width: Any) -> Any:
    from torch.nn import functional

    rows, columns = self.patch_size
    wide, high = (
        (size + step - 1) // step * step for size, step in ((width, columns), (height, rows))
    )
    return functional.pad(pixel_values, (0, wide - width, 0, high - height))


COMPUTED_PADDING = Rewrite(
    name="computed-padding",
    summary="padding computed from the sizes, without a branch",
    suits=lambda module: bool(_find_same_paddings(module) or _find_patch_embeddings(module)),
    during=_use_size_padding,
    answers=frozenset((Symptom.SIZE_BRANCH, Symptom.ASSUMED_SIZE)),
    files=frozenset(("modeling_mobilenet_v1.py", "modeling_mobilenet_v2.py")),
)


# Rotary frequencies that follow the longest position (`rope_type: dynamic`).
#
# transformers keeps them in a buffer, which a branch on the positions replaces. Computed from the
# positions of the call alone they are those that a model has which has seen no longer text.

_ROPE_FILE = "modeling_rope_utils.py"
_ROPE_UTILS = "transformers.modeling_rope_utils"


def _rope_kinds(part: Module) -> dict[str, str]:
    """Return the kinds of a rotary embedding by the prefix of their buffers: one, or per layer."""
    kinds = getattr(part, "rope_type", None)
    named = {"": kinds} if isinstance(kinds, str) else kinds if isinstance(kinds, dict) else {}
    found = {f"{name}_" if name else "": kind for name, kind in named.items()}
    return {prefix: kind for prefix, kind in found.items() if hasattr(part, f"{prefix}inv_freq")}


def _is_dynamic_rope(part: Module) -> bool:
    wraps = hasattr(type(part).forward, "__wrapped__")
    return wraps and any("dynamic" in kind for kind in _rope_kinds(part).values())


class _RotaryView:
    """A rotary embedding with other frequencies, as its forward reads them."""

    def __init__(self, module: Any, changed: dict[str, Any]) -> None:
        self._module, self._changed = module, changed

    def __getattr__(self, name: str) -> Any:
        return self._changed[name] if name in self._changed else getattr(self._module, name)


def _compute_rope(self: Any, x: Any, position_ids: Any, layer_type: str | None = None) -> Any:
    """Compute the embedding with the frequencies of these positions."""
    import torch

    more = {} if layer_type is None else {"layer_type": layer_type}
    prefix = f"{layer_type}_" if more else ""
    kind, plain = _rope_kinds(self)[prefix], type(self).plain_forward
    if "dynamic" not in kind:
        return plain(self, x, position_ids, **more)
    usual = getattr(self, f"{prefix}original_inv_freq")
    length = torch.max(position_ids) + 1
    make = importlib.import_module(_ROPE_UTILS).ROPE_INIT_FUNCTIONS[kind]
    scaled, _ = make(self.config, x.device, seq_len=length, layer_type=layer_type)
    chosen = torch.where(length > self.original_max_seq_len, scaled, usual.to(x.device))
    return plain(_RotaryView(self, {f"{prefix}inv_freq": chosen}), x, position_ids, **more)


def _compute_ropes(module: Module) -> Module:
    for part in filter(_is_dynamic_rope, list(module.modules())):
        plain: Any = type(part).forward
        give_own_class(
            part, {"forward": _compute_rope, "plain_forward": staticmethod(inspect.unwrap(plain))}
        )
    return module


COMPUTED_ROPE = Rewrite(
    name="computed-rope",
    summary="rotary frequencies computed from the positions of each call, without a branch",
    suits=lambda module: any(map(_is_dynamic_rope, module.modules())),
    change=_compute_ropes,
    files=frozenset((_ROPE_FILE,)),
)
