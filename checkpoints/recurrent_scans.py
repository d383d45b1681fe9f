"""Recurrences of transformers' layers for any part of a prompt, exported as one scan over tokens.

transformers computes a prompt in chunks, which fixes their number in a graph, and steps of one
token by other functions. A scan over the tokens does both. Eager keeps transformers' functions: the
graph is compared with them. Shapes: batch, time, heads, size of a head (p), size of a state (n).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def scan_tokens(step: Any, start: Any, given: tuple[Any, ...]) -> Any:
    """Scan over dim 1 of what is given; return the final state, and the outputs with time in it."""
    from torch._higher_order_ops.scan import scan

    last, outs = scan(step, start, tuple(one.transpose(0, 1) for one in given))
    return last, outs.transpose(0, 1)


@contextmanager
def resume_states(model: torch.nn.Module, next_start: Callable[[], Any]) -> Iterator[None]:
    """Make a model of transformers right for any part of a prompt, within the context.

    Its scans start from the states of its cache, in eager as well, and padding is masked in parts
    of one token too.

    Args:
        model: its classes' modules hold the functions.
        next_start: returns the state of the layer that scans; None if it has seen no tokens.
    """
    names = sorted({type(part).__module__ for part in model.modules()})
    with ExitStack() as stack:
        for file, (name, make) in product(map(sys.modules.get, names), _FUNCTIONS.items()):
            usual = getattr(file, name, None)
            if usual is not None:
                setattr(file, name, make(usual, next_start))
                stack.callback(setattr, file, name, usual)
        yield


def _mask_new_tokens(usual: Any, next_start: Any) -> Any:  # noqa: ARG001 - as the others
    import torch

    def mask(config: Any, inputs_embeds: Any, attention_mask: Any, *_: Any, **__: Any) -> Any:  # noqa: ARG001
        """Return the mask of the new tokens; transformers' has none for one token."""
        if attention_mask is None:
            return None
        # Not a slice: whether it is contiguous depends on the past, and torch.export asks for that.
        places = torch.arange(attention_mask.shape[1])[-inputs_embeds.shape[1] :]
        return attention_mask.index_select(1, places.to(attention_mask.device))

    return mask


def _step_outer(state: Any, given: Any) -> Any:
    """Return the state (batch, heads, p, n) after a token, and its output (batch, heads, p)."""
    decay, inputs, written, read = given
    state = decay * state + inputs[..., None] * written[:, :, None]
    return state, (state * read[:, :, None]).sum(-1)


def _resume_selective(usual: Any, next_start: Callable[[], Any]) -> Any:
    """Mamba: transformers' scan starts from zeros, and only its step of one token takes a state."""
    import torch
    from torch.nn import functional

    def scan(hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, **more: Any) -> Any:  # noqa: N803
        """Scan (batch, channels, time); B and C are (batch, n, time)."""
        start, ended = next_start(), more.pop("return_last_state", False)
        if start is None and not torch.compiler.is_exporting():
            return usual(hidden_states, dt, A, B, C, return_last_state=ended, **more)
        rate = dt if more.get("delta_bias") is None else dt + more["delta_bias"][..., None]
        rate = functional.softplus(rate) if more.get("delta_softplus") else rate
        gate = 1 if more.get("z") is None else functional.silu(more["z"])
        if torch.compiler.is_exporting():
            decay = (A * rate.transpose(1, 2)[..., None]).exp()[:, :, :, None]
            inputs = (hidden_states * rate).transpose(1, 2)[..., None]
            first = torch.zeros_like(decay[:, 0]) if start is None else start[:, :, None]
            given = (decay, inputs, B.transpose(1, 2)[:, :, None], C.transpose(1, 2)[:, :, None])
            last, out = scan_tokens(_step_outer, first.contiguous(), given)
            out, last = out[..., 0].transpose(1, 2), last[:, :, 0]
            out = out if more.get("D") is None else out + hidden_states * more["D"][:, None]
            return (out * gate, last) if ended else out * gate
        out, last = usual(hidden_states, dt, A, B, C, return_last_state=True, **more)
        left = (A[:, None] * rate.cumsum(-1)[..., None]).exp() * start[:, :, None]  # of the state
        out = out + (left * C.transpose(1, 2)[:, None]).sum(-1) * gate
        return (out, last + left[:, :, -1]) if ended else out

    return scan


def _scan_heads(usual: Any, next_start: Any) -> Any:  # noqa: ARG001 - as the others
    """Mamba2: A is (heads), B and C are (batch, time, groups of heads, n)."""
    import torch
    from torch.nn import functional

    def scan(hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, **more: Any) -> Any:  # noqa: N803
        if not torch.compiler.is_exporting():
            return usual(hidden_states, dt, A, B, C, **more)
        rate = dt if more.get("dt_bias") is None else dt + more["dt_bias"]
        rate = functional.softplus(rate) if more.get("dt_softplus") else rate
        low, high = more.get("dt_limit", (0.0, float("inf")))
        if (low, high) != (0.0, float("inf")):  # which the step of one token does not have
            several = torch.ones_like(rate[:1, :, :1]).sum() > 1
            rate = torch.where(several, rate.clamp(low, high), rate)
        share = hidden_states.shape[2] // B.shape[2]
        written, read = (one.repeat_interleave(share, dim=2) for one in (B, C))
        decay = (A * rate).exp()[..., None, None]
        first = more.get("initial_states")
        if first is None:
            first = torch.zeros_like(hidden_states[:, 0, :, :, None] * written[:, 0, :, None])
        given = (decay, hidden_states * rate[..., None], written, read)
        last, out = scan_tokens(_step_outer, first.contiguous(), given)
        out = out if more.get("D") is None else out + hidden_states * more["D"][..., None]
        return (out, last) if more.get("return_final_states") else out

    return scan


def _step_delta(state: Any, given: Any) -> Any:
    """Return the state (batch, heads, keys, values) after a token, and the value that it reads."""
    query, key, value, decay, beta = given
    state = state * decay.exp()[..., None, None]
    known = (state * key[..., None]).sum(-2)
    state = state + key[..., None] * ((value - known) * beta[..., None])[:, :, None]
    return state, (state * query[..., None]).sum(-2)


def _scan_delta_rule(usual: Any, next_start: Any) -> Any:  # noqa: ARG001 - as the others
    """Gated delta rule: query, key and value are (batch, time, heads, size), g and beta without."""
    import torch

    def scan(query: Any, key: Any, value: Any, g: Any, beta: Any, **more: Any) -> Any:
        if not torch.compiler.is_exporting():
            return usual(query, key, value, g=g, beta=beta, **more)
        if more.get("use_qk_l2norm_in_kernel"):  # as transformers' l2norm
            query, key = (
                one * torch.rsqrt((one * one).sum(-1, keepdim=True) + 1e-6) for one in (query, key)
            )
        query = query * query.shape[-1] ** -0.5
        share = value.shape[2] // key.shape[2]
        query, key = (one.repeat_interleave(share, dim=2) for one in (query, key))
        first = more.get("initial_state")
        if first is None:
            first = torch.zeros_like(key[:, 0, :, :, None] * value[:, 0, :, None])
        last, out = scan_tokens(_step_delta, first.contiguous(), (query, key, value, g, beta))
        return out, last if more.get("output_final_state") else None

    return scan


# Functions in the files of transformers' models, and what makes the ones that stand in for them.
_FUNCTIONS: dict[str, Callable[[Any, Callable[[], Any]], Any]] = {
    "create_recurrent_attention_mask": _mask_new_tokens,
    "mamba_selective_scan": _resume_selective,
    "mamba2_chunk_scan": _scan_heads,
    "torch_chunk_gated_delta_rule": _scan_delta_rule,
}
