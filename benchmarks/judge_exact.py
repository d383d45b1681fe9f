"""The same net in float64, for judge.py: how far float32 itself is off, and whether a fault shows.

It is the benchmark's own, so that a fault of the judge's reference is not its ruler as well.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from modelc.checkpoints.eager_model import open_eager
from modelc.checkpoints.loaded_module import LoadedModule
from modelc.core.call import parameters_of
from modelc.core.contract import Array, Feed, Outputs
from modelc.core.signature import Signature
from modelc.core.torch_tools import intercept_calls

_SMALLER = (torch.float32, torch.float16, torch.bfloat16)


def _widen(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Whatever dtype the code asks for by name, floats are float64."""
    if func is torch.Tensor.float:
        return args[0].double()
    given = {name: _wide(value) for name, value in kwargs.items()}
    return func(*(_wide(value) for value in args), **given)


def _wide(value: object) -> object:
    return torch.float64 if isinstance(value, torch.dtype) and value in _SMALLER else value


def runs(module: nn.Module, signature: Signature, feeds: Sequence[Feed]) -> list[Outputs]:
    """What the module gives on each feed as it stands, by the signature's output names."""
    eager = open_eager(
        LoadedModule(kind="module", module=module, takes=parameters_of(module.forward)), signature
    )
    return [eager.run(feed) for feed in feeds]


def exactly(module: nn.Module, signature: Signature, feeds: Sequence[Feed]) -> list[Outputs]:
    """What the module's function is on each feed, without float32's roundoff."""
    wide = copy.deepcopy(module).double()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with intercept_calls(_widen):
            return runs(wide, signature, [_as_float64(feed) for feed in feeds])
    finally:
        torch.set_default_dtype(before)


def distance(one: Array, other: Array) -> float:
    """||one - other|| over the elements finite in both; inf where they cannot be compared."""
    if one.shape != other.shape:
        return float("inf")
    error = one.astype(np.float64) - other.astype(np.float64)
    finite = np.isfinite(error)
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return float("inf")
    return float(np.linalg.norm(error[finite]))


def relative(one: Array, truth: Array) -> float:
    """The distance over ||truth||; the distance itself where that is 0."""
    size = float(np.linalg.norm(truth[np.isfinite(truth)].astype(np.float64)))
    return distance(one, truth) / (size or 1.0)


def _as_float64(feed: Feed) -> dict[str, Array]:
    return {
        name: array.astype(np.float64) if array.dtype.kind == "f" else array
        for name, array in feed.items()
    }
