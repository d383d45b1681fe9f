from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from modelc.checkpoints.eager_model import Eager
from modelc.core.call import bind_inputs, parameters_of
from modelc.core.grammar import parse_input
from modelc.core.signature import Signature, merge_inputs

if TYPE_CHECKING:
    from torch import nn

Opened = tuple[Eager, Signature]


@pytest.fixture
def opened() -> Callable[..., Opened]:
    """Eager on a module, and the signature that its `--input` texts give."""

    def make(module: nn.Module, *inputs: str) -> Opened:
        signature = merge_inputs([parse_input(text) for text in inputs], {})
        names = tuple(spec.name for spec in signature.inputs)
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        return Eager(
            module.eval(), names, bind_inputs(names, parameters_of(module.forward))
        ), signature

    return make
