"""Experts that transformers calls for the tokens that chose them: each for all tokens, weighted.

Which experts are called, and with how many tokens, is tensor data: a trace freezes it. Where a
token did not choose an expert, that expert's answer is left out, so the sum is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .parts import give_own_class
from .rewrite import Module, Rewrite

# Experts that transformers calls for the tokens that chose them: each for all tokens, weighted.
#
# Which experts are called, and with how many tokens, is tensor data: a trace freezes it. Where a
# token did not choose an expert, that expert's answer is left out, so the sum is the same.


_SWITCH = "transformers.models.switch_transformers.modeling_switch_transformers"


def _is_switch_part(part: Module, name: str) -> bool:
    return (type(part).__module__, type(part).__name__) == (_SWITCH, name)


def _has_switch_experts(module: Module, reasons: Sequence[str]) -> bool:  # noqa: ARG001 - as every `suits`
    return any(_is_switch_part(part, "SwitchTransformersExperts") for part in module.modules())


def _call_every_expert(module: Module) -> Module:
    for part in list(module.modules()):
        if _is_switch_part(part, "SwitchTransformersExperts"):
            give_own_class(part, {"forward": _sum_experts})
        elif _is_switch_part(part, "SwitchTransformersTop1Router"):
            _keep_router_dtype(part)
    return module


def _keep_router_dtype(router: Any) -> None:
    """`self.classifier = self.classifier.to(dtype)` in forward: where it is so, nothing moves."""
    if all(one.dtype == router.dtype for one in router.classifier.parameters()):
        give_own_class(router.classifier, {"to": lambda self, *_: self})


def _sum_experts(self: Any, hidden_states: Any, selected_experts: Any, routing_weights: Any) -> Any:
    """The sum over experts; `selected_experts` (tokens, 1, experts) is 1 where a token chose."""
    import torch

    total = torch.zeros_like(hidden_states)
    for index in range(self.num_experts):
        answer = self[f"expert_{index}"](hidden_states) * routing_weights
        chosen = selected_experts[:, :, index] > 0
        total = total + torch.where(chosen, answer.to(hidden_states.dtype), 0)
    return total


EXPERT_REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="every-expert",
        summary="every expert called for all tokens, and left out where it was not chosen",
        suits=_has_switch_experts,
        change=_call_every_expert,
        signs=("modeling_switch_transformers.py",),
    ),
)
