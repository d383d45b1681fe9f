"""torch-tensorrt 2.13 as a strict double, which makes one engine of a whole program.

Keywords are those recorded of the wheel in tests/data/torch_tensorrt; others raise, although the
real package ignores them. An engine is an exported program in base64 that torch runs on the CPU;
dims that the signature relates are checked by torch's own export when the program is saved. The
variable `GPU_HOST_FAULT` plants a fault: `offset` adds 0.5 to every output, `memory` raises as
torch does out of memory.
"""

from __future__ import annotations

import base64
import io
import json
import operator
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from modelc.converters import torch_tensorrt_program

__version__ = "2.13.0"
_SURFACE = json.loads(
    (Path(__file__).parents[2] / "data" / "torch_tensorrt" / "2.13.json").read_text("utf-8")
)
_SHAPES = ("min_shape", "opt_shape", "max_shape")
_LIBRARY = torch.library.Library("tensorrt", "DEF")  # type: ignore[no-untyped-call]  # torch's own
_LIBRARY.define("execute_engine(Tensor[] inputs, str engine) -> Tensor[]")  # type: ignore[no-untyped-call]  # torch's own

# Memory of this process is that of the device: torch has no CUDA here.
torch_tensorrt_program.DEVICE = "cpu"
torch_tensorrt_program.check_device = lambda device: None  # type: ignore[attr-defined]  # noqa: ARG005 - any device is here
torch.cuda.empty_cache = lambda: None


class Input:
    """The sizes and the type of one input."""

    def __init__(self, **given: Any) -> None:
        unknown = set(given) - {"shape", "dtype", "name", *_SHAPES}
        whole = {"shape"} <= set(given) or set(_SHAPES) <= set(given)
        if unknown or not whole:
            raise TypeError(f"Input takes other keywords than {sorted(given)}")
        self.given = given
        sizes = [given[name] for name in _SHAPES if name in given]
        if any(not low <= opt <= high for low, opt, high in zip(*sizes, strict=True)):
            raise ValueError(f"{given}: min <= opt <= max is broken")


def _check_keywords(function: str, given: Any) -> None:
    known = set(_SURFACE["functions"][function])
    if unknown := set(given) - known:
        raise TypeError(f"{function} does not know {sorted(unknown)}")


def _compile(exported_program: torch.export.ExportedProgram, **given: Any) -> torch.nn.Module:
    _check_keywords("torch_tensorrt.dynamo.compile", given)
    if os.environ.get("GPU_HOST_FAULT") == "memory":
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    inputs: Sequence[Input] = given["arg_inputs"]
    placeholders = exported_program.graph_signature.user_inputs
    if len(inputs) != len(placeholders) or given["torch_executed_ops"] - _names(exported_program):
        raise ValueError("the inputs or the operators are not those of the program")
    if len(_names(exported_program) - given["torch_executed_ops"]) < given["min_block_size"]:
        return exported_program.module()  # as the package returns it, with a warning
    held = io.BytesIO()
    torch.export.save(exported_program, held)
    engine = base64.b64encode(held.getvalue()).decode()
    _open_engine(engine)  # here, since the shapes of its outputs are found without real tensors
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"input_{place}") for place in range(len(inputs))]
    called = graph.call_function(torch.ops.tensorrt.execute_engine.default, (nodes, engine))
    count = len(exported_program.graph_signature.user_outputs)
    graph.output(tuple(
        graph.call_function(operator.getitem, (called, place)) for place in range(count)
    ))  # fmt: skip
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _names(program: torch.export.ExportedProgram) -> set[str]:
    lowered = program.run_decompositions()
    calls = (node for node in lowered.graph.nodes if node.op == "call_function")
    return {f"torch.ops.{node.target}" for node in calls}


dynamo = SimpleNamespace(compile=_compile)


def save(module: torch.nn.Module, file_path: str = "", **given: Any) -> None:
    """Export the module again with the dims that are given, and save it."""
    _check_keywords("torch_tensorrt.save", given)
    program = torch.export.export(
        module, tuple(given["arg_inputs"]), dynamic_shapes=given["dynamic_shapes"], strict=False
    )
    torch.export.save(program, file_path, extra_files=given["extra_files"])


@cache
def _open_engine(engine: str) -> torch.nn.Module:
    program = torch.export.load(io.BytesIO(base64.b64decode(engine)))
    return program.module(check_guards=False)


@torch.library.impl(_LIBRARY, "execute_engine", "CPU")
def _run_engine(inputs: list[torch.Tensor], engine: str) -> list[torch.Tensor]:
    found = _open_engine(engine)(*inputs)
    outputs = [one.clone() for one in (found if isinstance(found, tuple | list) else (found,))]
    if os.environ.get("GPU_HOST_FAULT") == "offset":
        outputs = [one + 0.5 if one.is_floating_point() else one for one in outputs]
    return outputs


@torch.library.register_fake("tensorrt::execute_engine", lib=_LIBRARY)  # type: ignore[untyped-decorator]  # torch's own
def _shape_outputs(inputs: list[torch.Tensor], engine: str) -> list[torch.Tensor]:
    from torch._guards import detect_fake_mode

    mode: Any = detect_fake_mode(inputs)
    module = _open_engine(engine)
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    fakes = {name: mode.from_tensor(one.detach()) for name, one in held.items()}
    found = torch.func.functional_call(module, fakes, tuple(inputs))
    return list(found) if isinstance(found, tuple | list) else [found]
