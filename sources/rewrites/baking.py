"""Parametrized weights as plain ones: what the parametrization computes, computed once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from .parts import give_own_class
from .rewrite import Module, Rewrite

# Parametrized weights as plain ones: what the parametrization computes, computed once.


def _has_parametrizations(module: Module, reasons: Sequence[str]) -> bool:  # noqa: ARG001 - as every `suits`
    return any(_is_parametrized(part) or _weight_norms(part) for part in module.modules())


def _is_parametrized(part: Module) -> bool:
    from torch.nn.utils import parametrize

    return parametrize.is_parametrized(part)


def _weight_norms(part: Any) -> list[tuple[str, Any]]:
    """The older weight_norm and spectral_norm of a module: a weight's name, and what undoes it."""
    from torch.nn.utils import remove_spectral_norm, remove_weight_norm
    from torch.nn.utils.spectral_norm import SpectralNorm
    from torch.nn.utils.weight_norm import WeightNorm

    undo = {SpectralNorm: remove_spectral_norm, WeightNorm: remove_weight_norm}
    hooks = part._forward_pre_hooks.values()
    return [(hook.name, undo[type(hook)]) for hook in hooks if type(hook) in undo]


def _bake_parametrizations(module: Module) -> Module:
    import torch
    from torch.nn.utils import parametrize

    for part in list(module.modules()):
        if parametrize.is_parametrized(part):
            _give_parametrized_class(part)
            for name in list(part.parametrizations):  # type: ignore[arg-type]  # a ModuleDict
                parametrize.remove_parametrizations(part, name, leave_parametrized=True)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the older norms are deprecated, and in use
            for name, undo in _weight_norms(part):
                undo(part, name)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module


def _give_parametrized_class(part: Module) -> None:
    """Removal deletes properties from the class, which the copy shares with the reference."""
    made = type(part)
    give_own_class(part, {})
    part.__class__.__bases__ = made.__bases__
    for name, member in vars(made).items():
        if name not in ("__dict__", "__weakref__"):
            setattr(part.__class__, name, member)


PARAMETRIZATION_REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="plain-weights",
        summary="parametrized weights (weight_norm, spectral_norm and the like) computed once",
        suits=_has_parametrizations,
        change=_bake_parametrizations,
    ),
)
