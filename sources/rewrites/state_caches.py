"""Caches of recurrent layers in transformers: their states are assigned, not written in place.

`LinearAttentionLayer` pads its convolution state where the sequence is shorter than the kernel,
which is a branch on sizes, and copies every state into a buffer, which captures refuse or freeze.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from types import FunctionType
from typing import Any

from .rewrite import Module
from .swapping import swap_attribute

# Caches of recurrent layers in transformers: their states are assigned, not written in place.
#
# `LinearAttentionLayer` pads its convolution state where the sequence is shorter than the kernel,
# which is a branch on sizes, and copies every state into a buffer, which captures refuse or freeze.


_CACHES = "transformers.cache_utils"
_LAYER = "LinearAttentionLayer"
SIZE_SIGNS = ("a branch on sizes", "took for granted")  # what captures say of such a branch
_UPDATES = ("update_conv_state", "update_recurrent_state")


def has_state_updates(module: Module) -> bool:
    """Whether a layer of the model updates such a cache."""
    return find_spec("transformers") is not None and any(
        name in member.__code__.co_names
        for kind in {kind for part in module.modules() for kind in type(part).__mro__}
        for member in (_undecorate(one) for one in vars(kind).values())
        if isinstance(member, FunctionType)
        for name in _UPDATES
    )


def _undecorate(member: object) -> object:
    """The function below its decorators, where they say what they wrap."""
    while hasattr(member, "__wrapped__"):
        member = member.__wrapped__
    return member


@contextmanager
def assign_states() -> Iterator[None]:
    """Have caches keep each new state instead of writing it into a buffer of a fixed size."""
    layer: Any = getattr(importlib.import_module(_CACHES), _LAYER, None)
    known = layer is not None and all(name in vars(layer) for name in _UPDATES)
    with ExitStack() as stack:
        if known:  # older releases keep these states in caches of their own
            stack.enter_context(swap_attribute(layer, _UPDATES[0], _make_conv_update(layer)))
            stack.enter_context(swap_attribute(layer, _UPDATES[1], _assign_recurrent_state))
        yield


def _make_conv_update(layer: Any) -> Any:
    usual = getattr(layer, _UPDATES[0])

    def assign_conv_state(
        self: Any,
        conv_states: Any,  # (batch, channels, time)
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """What came before, zeros at first, and then the new states; the last are kept."""
        import torch

        if self.record_past:
            return usual(self, conv_states, state_idx, conv_kernel_size, **kwargs)
        if not self.is_conv_states_initialized[state_idx]:
            self.lazy_initialization(
                conv_states=conv_states, state_idx=state_idx, conv_kernel_size=conv_kernel_size
            )
        self.has_previous_state[state_idx] = True
        full = torch.cat([self.conv_states[state_idx], conv_states], dim=-1)
        self.conv_states[state_idx] = full[..., -self.conv_kernel_size[state_idx] :]
        return full  # its callers take the last steps of what they compute from it

    return assign_conv_state


def _assign_recurrent_state(
    self: Any,
    recurrent_states: Any,  # (batch, channels, state)
    state_idx: int = 0,
    **kwargs: Any,  # noqa: ARG001 - as the method that it stands in for
) -> Any:
    if not self.is_recurrent_states_initialized[state_idx]:
        self.lazy_initialization(recurrent_states=recurrent_states, state_idx=state_idx)
    kept = recurrent_states.to(self.recurrent_states[state_idx].dtype)
    self.recurrent_states[state_idx] = kept
    return kept
