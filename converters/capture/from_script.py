"""A model that came as TorchScript, made into a module that torch.export can follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.contract import EagerModel

if TYPE_CHECKING:
    import torch


def is_torchscript(model: EagerModel) -> bool:
    """Whether the user's module is TorchScript, which asks its tensors for plain sizes.

    Torch.export would take each of them for a constant.
    """
    import torch

    return isinstance(model.module, torch.jit.ScriptModule)


def module_from_script(model: EagerModel, tensors: tuple[torch.Tensor, ...]) -> torch.nn.Module:
    """The flat module again, translated from its TorchScript graph by torch's own converter."""
    import torch
    from torch._export.converter import TS2EPConverter

    traced = torch.jit.trace(  # type: ignore[no-untyped-call]  # torch's own
        model.flat, tensors, check_trace=False, strict=False
    )
    translated = TS2EPConverter(traced, tensors).convert().module(check_guards=False)

    class Flat(torch.nn.Module):
        """Takes tensors as the signature orders them."""

        def __init__(self) -> None:
            super().__init__()
            self.model = translated
            self.training = False  # by hand: an exported program's module refuses eval()

        def forward(self, *tensors: torch.Tensor) -> object:
            """Call the translated module."""
            return self.model(*tensors)

    return Flat()
