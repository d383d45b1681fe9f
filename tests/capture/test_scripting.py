"""torch.jit.script, where the user's Python is not quite TorchScript's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from modelc.capture.torch_script import compile_script

if TYPE_CHECKING:
    from collections.abc import Sequence


class Table(nn.Module):
    """Annotations of attributes are texts in this file."""

    alphas: Tensor
    names: Sequence[str]

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("alphas", torch.arange(4.0))
        self.names = ("a", "b")

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        return x * self.alphas[int(step.item())]


def test_annotations_that_are_texts_are_read() -> None:
    found = compile_script(Table())
    assert torch.equal(found(torch.ones(2), torch.tensor(3)), torch.full((2,), 3.0))


def test_the_users_class_is_as_it_was() -> None:
    compile_script(Table())
    assert Table.__annotations__ == {"alphas": "Tensor", "names": "Sequence[str]"}
