"""Loaded: the module of a checkpoint and what the checkpoint says of its inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.call import Parameter
from ..core.signature import InputSpec

if TYPE_CHECKING:
    import torch

if not TYPE_CHECKING:
    Module: TypeAlias = Any  # a record's fields are read by type at run time, without torch
else:
    Module: TypeAlias = torch.nn.Module


@dataclass(frozen=True, kw_only=True)
class LoadedModule:
    """An eager module in eval mode on the CPU.

    `kind` is the checkpoint's, or `pickle` where a pickled object was allowed. `known` is what the
    checkpoint itself says of its inputs, in order; where they are `assumed`, the model takes others
    as well. `takes` are the parameters of what is called, `call` its name, `drop` names of outputs
    to leave out.
    """

    kind: str
    module: Module
    takes: tuple[Parameter, ...]
    known: dict[str, InputSpec] = field(default_factory=dict)
    assumed: bool = False
    call: str = "forward"
    notes: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters, in order, without *args and **kwargs."""
        return tuple(p.name for p in self.takes if not p.kind.value.startswith("*"))
