"""Replace Python loops over tokens in transformers by one scan of any length.

`torch.export` and traces unroll such a loop, which fixes the length. The `scan` operator, or a
scripted function in a trace, does not.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any

from ..checkpoints.recurrent_scans import scan_tokens
from .evidence import Symptom
from .rewrite import Module, Rewrite, swap_attribute

# Caches of recurrent layers in transformers: assign states instead of writing them in place.
#
# `LinearAttentionLayer` pads its convolution state if the sequence is shorter than the kernel, a
# branch on sizes, and copies every state into a buffer, which captures reject or freeze.


_CACHES = "transformers.cache_utils"
_LAYER = "LinearAttentionLayer"
_SIZE_SYMPTOMS = frozenset((Symptom.SIZE_BRANCH, Symptom.ASSUMED_SIZE))
_UPDATES = ("update_conv_state", "update_recurrent_state")


def has_state_updates(module: Module) -> bool:
    """Whether a layer of the model updates such a cache."""
    return find_spec("transformers") is not None and any(
        name in member.__code__.co_names
        for kind in {kind for part in module.modules() for kind in type(part).__mro__}
        for member in map(inspect.unwrap, vars(kind).values())
        if isinstance(member, FunctionType)
        for name in _UPDATES
    )


@contextmanager
def assign_states() -> Iterator[None]:
    """Make caches store new states instead of copying them into buffers of a fixed size."""
    layer: Any = getattr(importlib.import_module(_CACHES), _LAYER, None)
    known = layer is not None and all(name in vars(layer) for name in _UPDATES)
    with ExitStack() as stack:
        if known:  # older releases have other caches
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
        """Concatenate past states (zeros at first) and new ones; store the last."""
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
        return full  # callers use the last steps

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


_MODELS = "transformers.models."
_SELECTIVE = tuple(
    f"{_MODELS}{name}.modeling_{name}" for name in ("mamba", "falcon_mamba", "jamba")
)
_GRIFFIN = f"{_MODELS}recurrent_gemma.modeling_recurrent_gemma"
_RWKV = f"{_MODELS}rwkv.modeling_rwkv"


def _model_files(module: Module) -> set[str]:
    return {kind.__module__ for part in module.modules() for kind in type(part).__mro__}


def _has_recurrence(module: Module) -> bool:
    return bool(_model_files(module) & {*_SELECTIVE, _GRIFFIN, _RWKV})


def _select_scan_path(module: Module) -> Module:
    """Make mixers take the path that calls the scan of mambapy."""
    for part in module.modules():
        if type(part).__module__ in _SELECTIVE and hasattr(part, "use_mambapy"):
            vars(part)["use_mambapy"] = True
    return module


@contextmanager
def _use_scans(module: Module) -> Iterator[None]:
    known = _model_files(module)
    with ExitStack() as stack:
        if has_state_updates(module):  # also for any length
            stack.enter_context(assign_states())
        if known & set(_SELECTIVE):
            stack.enter_context(_provide_mambapy())
        for name in known & set(_SELECTIVE):
            here = sys.modules[name]
            stack.enter_context(swap_attribute(here, "is_mambapy_available", lambda: True))
        if _GRIFFIN in known:
            for kind in vars(sys.modules[_GRIFFIN]).values():
                if isinstance(kind, type) and "_rnn_scan" in vars(kind):
                    stack.enter_context(swap_attribute(kind, "_rnn_scan", _griffin_scan))
        if _RWKV in known:
            stack.enter_context(
                swap_attribute(sys.modules[_RWKV], "rwkv_linear_attention_cpu", _rwkv_attention)
            )
        yield


@contextmanager
def _provide_mambapy() -> Iterator[None]:
    """Provide the scan under the name of the package mambapy."""
    package, inner = ModuleType("mambapy"), ModuleType("mambapy.pscan")
    vars(inner)["pscan"] = _selective_scan
    vars(package)["pscan"] = inner
    before = {name: sys.modules.get(name) for name in ("mambapy", "mambapy.pscan")}
    sys.modules.update({"mambapy": package, "mambapy.pscan": inner})
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


@cache
def _script_loop(name: str) -> Any:
    """Compile a function of scripted_loops, whose loop a trace keeps."""
    import torch

    from . import scripted_loops

    return torch.jit.script(getattr(scripted_loops, name))


def _selective_scan(gates: Any, inputs: Any) -> Any:
    """Return all states of h = gate * h + input from 0; arguments are (batch, time, ...)."""
    return _run_recurrence(gates, inputs, _zero_state(inputs))


def _zero_state(given: Any) -> Any:
    """Return a zero state per row, with the strides of a step's result."""
    import torch

    return torch.zeros_like(given[:, 0], memory_format=torch.contiguous_format)


def _run_recurrence(gates: Any, inputs: Any, start: Any) -> Any:
    import torch

    if not torch.compiler.is_exporting():
        return _script_loop("recurrence")(gates, inputs, start)

    def step(state: Any, given: Any) -> Any:
        state = given[0] * state + given[1]
        return state, state.clone()

    return scan_tokens(step, start, (gates, inputs))[1]


def _griffin_scan(  # noqa: PLR0913, PLR0917 - as the method that it stands in for
    self: Module,  # noqa: ARG001
    hidden_states: Any,
    recurrent_gate: Any,
    reset: Any,
    recurrent_states: Any,
    acc_dtype: Any = None,
) -> Any:
    import torch

    dtype = acc_dtype or torch.float32
    inputs = hidden_states.to(dtype)
    start = _zero_state(inputs) if recurrent_states is None else recurrent_states.to(dtype)
    states = _run_recurrence((recurrent_gate * ~reset).to(dtype), inputs, start)
    return states.to(hidden_states.dtype), states[:, -1]


def _rwkv_attention(  # noqa: PLR0913, PLR0917 - as the function that it stands in for
    time_decay: Any,
    time_first: Any,
    key: Any,
    value: Any,
    state: Any = None,
    return_state: bool = False,
) -> Any:
    import torch

    decay, now = -torch.exp(time_decay), key.float()
    nothing = _zero_state(now)
    start = (nothing, nothing.clone(), nothing - 1e38) if state is None else tuple(state)
    kept = return_state or state is not None
    if not torch.compiler.is_exporting():
        out, *after = _script_loop("rwkv_average")(decay, time_first, now, value, *start)
        return out, after if kept else None

    def step(carried: Any, given: Any) -> Any:
        top, bottom, peak = carried
        here, worth = given
        high = torch.maximum(peak, here + time_first)
        old, new = torch.exp(peak - high), torch.exp(here + time_first - high)
        out = (old * top + new * worth) / (old * bottom + new)
        high = torch.maximum(peak + decay, here)
        old, new = torch.exp(peak + decay - high), torch.exp(here - high)
        return (old * top + new * worth, old * bottom + new, high), out

    after, out = scan_tokens(step, start, (now, value))
    return out.to(value.dtype), list(after) if kept else None


SCAN_REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="scan",
        summary="the recurrence over tokens as one scan of any length",
        suits=_has_recurrence,
        change=_select_scan_path,
        during=_use_scans,
        answers=_SIZE_SYMPTOMS,
        files=frozenset(f"{name.rpartition('.')[2]}.py" for name in (*_SELECTIVE, _GRIFFIN, _RWKV)),
    ),
    Rewrite(
        name="state-caches",
        summary="states of recurrent caches assigned instead of written in place",
        suits=lambda module: has_state_updates(module) and not _has_recurrence(module),
        during=lambda _: assign_states(),
        answers=_SIZE_SYMPTOMS,
        files=frozenset(("cache_utils.py",)),
    ),
)
