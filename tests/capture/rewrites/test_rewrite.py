"""Rewrites leave nothing behind, and remove nothing that changes an output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import nn

from modelc.capture.rewrite import swap_functions
from modelc.capture.training_rewrites import _is_observer
from modelc.capture.transformer_rewrites import _plain_attention


def test_a_module_imported_meanwhile_does_not_keep_the_replacement() -> None:
    late = ModuleType("imported_late")
    sys.modules["imported_late"] = late
    try:
        # as `from torch.nn.functional import gelu` would, in a file that forward imports
        other = ModuleType("replacements")
        exec("def new(*_): return 'another'", vars(other))
        with swap_functions({nn.functional.gelu: vars(other)["new"]}):
            vars(late)["gelu"] = nn.functional.gelu
            assert vars(late)["gelu"]() == "another"
        assert vars(late)["gelu"] is nn.functional.gelu
    finally:
        del sys.modules["imported_late"]


def test_a_query_that_sees_no_key_gets_zero_as_torch_gives_it() -> None:
    query = torch.ones(1, 1, 2, 4)
    mask = torch.tensor([[True, True], [False, False]])
    expected = nn.functional.scaled_dot_product_attention(query, query, query, mask)
    torch.testing.assert_close(_plain_attention(query, query, query, mask), expected)


seen: dict[str, object] = {}


def looks(_module: nn.Module, _args: object, out: torch.Tensor) -> None:
    seen["out"] = out.detach()


def adds(_module: nn.Module, _args: object, out: torch.Tensor) -> None:
    if out.max() > 7:
        out.add_(1)


def sets(_module: nn.Module, _args: object, out: torch.Tensor) -> None:
    out[0] = 1


def increases(_module: nn.Module, _args: object, out: torch.Tensor) -> None:
    out += 1


@pytest.mark.parametrize(
    ("hook", "observes"), [(looks, True), (adds, False), (sets, False), (increases, False)]
)
def test_a_hook_that_writes_in_place_is_no_observer(
    hook: Callable[..., None],
    observes: bool,
) -> None:
    assert _is_observer(hook) is observes
