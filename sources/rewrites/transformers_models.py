"""What transformers itself changes in its models before it exports them, and its own settings."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from ...core.errors import MissingError
from .rewrite import Module, Rewrite
from .swapping import swap_functions

_MASK_SIGN = "Attention mask should be of size"  # what a model says of one that it did not expect
_MASK_COMBINERS = ("or_mask_function", "and_mask_function")  # what else a mask is made of
_EXPORTERS = "transformers.exporters"


def _transformers_models(
    module: Module,
) -> list[Any]:  # PreTrainedModel, which need not be installed
    """The transformers models in a module: itself, or those that a user's own model holds."""
    return [part for part in module.modules() if hasattr(part, "set_attn_implementation")]


def _has_sdpa(module: Module, reasons: Sequence[str]) -> bool:  # noqa: ARG001 - as every `suits`
    return any(one.config._attn_implementation == "sdpa" for one in _transformers_models(module))


def _use_eager_attention(module: Module) -> Module:
    for one in _transformers_models(module):
        one.set_attn_implementation("eager")
    return module


def _has_experts(module: Module, reasons: Sequence[str]) -> bool:  # noqa: ARG001
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


def _has_patches(module: Module, reasons: Sequence[str]) -> bool:  # noqa: ARG001
    return bool(_transformers_models(module)) and find_spec(_EXPORTERS) is not None


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


def _needs_no_mask(module: Module, reasons: Sequence[str]) -> bool:
    return bool(_transformers_models(module)) and any(_MASK_SIGN in reason for reason in reasons)


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
        summary="no attention mask where the model is given none, as in eager",
        suits=_needs_no_mask,
        during=_drop_empty_masks,
        signs=(_MASK_SIGN,),
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
        signs=("masking_utils.py", "sdpa_attention.py"),
    ),
    Rewrite(
        name="transformers-patches",
        summary="transformers' own patches for torch.export",
        suits=_has_patches,
        during=_apply_export_patches,
    ),
)
