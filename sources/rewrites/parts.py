"""Changes to the parts of a copied module: classes of their own, replaced submodules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Changes to the parts of a copied module: classes of their own, replaced submodules.


def give_own_class(part: torch.nn.Module, members: Mapping[str, Any]) -> None:
    """Give one module of the copy a class of its own with these members.

    Classes are shared with the reference: what is set on them would change it as well.
    """
    base = type(part)
    part.__class__ = type(
        base.__name__,
        (base,),
        {"__module__": base.__module__, "__qualname__": base.__qualname__, **members},
    )


def replace_parts(
    module: torch.nn.Module, instead: Callable[[torch.nn.Module], torch.nn.Module]
) -> torch.nn.Module:
    """The module with every part that `instead` gives another for replaced; itself too."""
    for part in list(module.modules()):
        for name, child in list(part.named_children()):
            other = instead(child)
            if other is not child:
                part._modules[name] = other  # not setattr: a Sequential's names are numbers
    return instead(module)
