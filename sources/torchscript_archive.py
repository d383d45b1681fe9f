"""Archives that torch.jit.save wrote: they bring their own code."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ..core.call import Parameter, parameters_of_schema
from ..core.errors import CheckpointError, first_line
from ..core.signature import DTYPES, Dim, InputSpec
from .identify import weight_files
from .loaded import LoadedModule
from .recorded_inputs import read_recorded_inputs
from .sniff import TORCHSCRIPT

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from ..core.records import Checkpoint

# Archives that torch.jit.save wrote: they bring their own code.


def load_torchscript(checkpoint: Checkpoint) -> LoadedModule:
    """Open the archive on the CPU; a traced one says the shapes that it was traced with."""
    (path,) = weight_files(checkpoint)
    try:
        module = _open_archive(path)
    except Exception as error:  # torch's edge: its reader raises anything at garbage
        raise CheckpointError(
            f"{path} cannot be opened as TorchScript: {first_line(error)}",
            hint="save it again with torch.jit.save, on this version of torch",
        ) from error
    if not hasattr(module, "forward"):
        raise CheckpointError(
            f"{path} is a TorchScript archive without a forward method",
            hint="save a module that has forward",
        )
    method = module._c._get_method("forward")
    takes = parameters_of_schema(method.schema)
    known = read_recorded_inputs(path) or _infer_inputs(method, takes)
    return LoadedModule(kind=TORCHSCRIPT, module=module, takes=takes, known=known)


def _open_archive(path: Path) -> torch.jit.ScriptModule:
    import torch

    with warnings.catch_warnings():
        # TorchScript is deprecated as a whole; that is for the docs to say, not for each file
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\.jit")
        module: torch.jit.ScriptModule = torch.jit.load(  # type: ignore[no-untyped-call]
            path, map_location="cpu", _restore_shapes=True
        )
    return module


def _infer_inputs(method: Any, takes: tuple[Parameter, ...]) -> dict[str, InputSpec]:
    """The inputs' dtypes and sizes, where the archive remembers those of all its tensors.

    torch declares no types for what a ScriptMethod's graph holds.
    """
    known: dict[str, InputSpec] = {}
    inputs = list(method.graph.inputs())[1:]
    for parameter, value in zip(takes, inputs, strict=True):
        kind = value.type()
        if kind.kind() != "TensorType":
            return {}
        sizes, dtype = kind.sizes(), str(kind.dtype()).removeprefix("torch.")
        if sizes is None or None in sizes or dtype not in DTYPES:
            return {}
        dims = tuple(Dim.fixed(size) for size in sizes)
        known[parameter.name] = InputSpec(name=parameter.name, dtype=dtype, dims=dims)
    return known
