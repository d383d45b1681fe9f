"""Record the segments of torch-tensorrt: python -m modelc.benchmarks.torch_tensorrt_segments.

The package's own lowering and partitioner run on a CPU, on the Python sources of a wheel: its
compiled libraries are left out, and `tensorrt` is a stand-in whose names exist and do nothing. No
engine is built. The nets are those of `tests/nets/segment_nets.py`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.machinery
import json
import logging
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from modelc.converters.trt.torch_lowering import operator_name
from modelc.core.segments import DEFAULT_MIN_BLOCK

if TYPE_CHECKING:
    import torch

Segments = list[dict[str, Any]]  # in the order in which they run: engine, operators by count
_BLOCK_SIZES = (1, DEFAULT_MIN_BLOCK)
_OWN_NAMES = ("tensorrt_rtx",)  # by which the package would recognise another library
_CAPABILITY = (9, 0)  # of the GPU that the package is told of


class _AnyName(type):
    """The type of names of the stand-in: each has any name, and stands for a number."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _AnyName(name, (_Nothing,), {})
        setattr(cls, name, made)
        return made

    def __int__(cls) -> int:
        return 0

    def __rlshift__(cls, other: int) -> int:
        return other


class _Nothing(metaclass=_AnyName):
    """A class of the stand-in, which takes all arguments."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


class _StandIn(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in _OWN_NAMES:
            raise AttributeError(name)
        made = _AnyName(name, (_Nothing,), {})
        setattr(self, name, made)
        return made


def import_package(wheel: Path, folder: Path) -> ModuleType:
    """Import torch_tensorrt from a wheel, of which the Python sources go to a folder."""
    import torch

    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith((".py", "METADATA"))]
        archive.extractall(folder, names)
    version: dict[str, str] = {}
    exec((folder / "torch_tensorrt" / "_version.py").read_text("utf-8"), version)
    module = _StandIn("tensorrt")
    module.__dict__.update(
        __version__=version["__tensorrt_version__"], __path__=[], __file__="stand-in",
        __loader__=None, __package__="tensorrt", tensorrt=module,
        __spec__=importlib.machinery.ModuleSpec("tensorrt", None),
    )  # fmt: skip
    libraries = ModuleType("dllist")
    libraries.__dict__["dllist"] = list  # no library is loaded
    sys.modules.update({"tensorrt": module, "dllist": libraries})
    sys.modules["modelopt"] = None  # type: ignore[assignment]  # its operators are not of torch
    found = SimpleNamespace(name="", major=_CAPABILITY[0], minor=_CAPABILITY[1])
    for name, value in {
        "get_device_capability": _CAPABILITY, "current_device": 0, "get_device_properties": found,
    }.items():  # fmt: skip
        setattr(torch.cuda, name, lambda *_, answer=value: answer)
    torch._C.__dict__.setdefault("_CudaDeviceProperties", object)
    sys.path.insert(0, str(folder))
    package = importlib.import_module("torch_tensorrt")
    decompositions = importlib.import_module("torch_tensorrt.dynamo.lowering._decompositions")
    decompositions.__dict__["to_torch_device"] = lambda _: torch.device("cpu")
    return package


def partition(
    program: torch.export.ExportedProgram, block: int, torch_ops: Iterable[str] = ()
) -> Segments:
    """Return the segments that the package makes of a program; torch_ops as `aten.sin.default`."""
    lowering = importlib.import_module("torch_tensorrt.dynamo.lowering")
    partitioning = importlib.import_module("torch_tensorrt.dynamo.partitioning")
    settings_of = importlib.import_module("torch_tensorrt.dynamo._settings").CompilationSettings
    registry = importlib.import_module("torch_tensorrt.dynamo.conversion._ConverterRegistry")
    kept = {f"torch.ops.{name}" for name in torch_ops}
    settings = settings_of(min_block_size=block, torch_executed_ops=kept)
    program = lowering.pre_export_lowering(program, settings)
    program = program.run_decompositions(lowering.get_decompositions(False, False, False))
    module = lowering.post_lowering(program.module(), settings)
    registry.DYNAMO_CONVERTERS.set_compilation_settings(settings)
    known, total = partitioning.get_graph_converter_support(module, kept)
    if known == 0 or known < block:
        return [_segment(module.graph.nodes, engine=False)]
    parts, _ = partitioning.fast_partition(
        module,
        min_block_size=block,
        torch_executed_ops=kept,
        require_full_compilation=False,
        skip_fusion=known == total,
    )
    return [
        _segment(getattr(parts, node.target).graph.nodes, engine="_run_on_acc" in node.target)
        for node in parts.graph.nodes
        if node.op == "call_module"
    ]


def _segment(nodes: Iterable[torch.fx.Node], *, engine: bool) -> dict[str, Any]:
    names = (operator_name(node) for node in nodes if node.op == "call_function")
    return {"engine": engine, "operators": dict(sorted(Counter(names).items()))}


def record_nets() -> list[dict[str, Any]]:
    """Return the segments of the nets, with fixed and dynamic sizes and two sizes of blocks."""
    from modelc.tests.nets.segment_nets import SHAPES, export_net

    return [
        {
            "net": kind.__name__,
            "dynamic": dynamic,
            "min_block_size": block,
            "segments": partition(export_net(kind, dynamic=dynamic), block),
        }
        for kind in SHAPES
        for dynamic in (False, True)
        for block in _BLOCK_SIZES
    ]


def main() -> None:
    """Write the segments of the nets to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", type=Path, help="a wheel of torch-tensorrt")
    parser.add_argument("--write", type=Path, required=True, metavar="FILE", help="the record")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        import_package(given.wheel, Path(folder))
        logging.disable(logging.ERROR)
        given.write.write_text(json.dumps(record_nets(), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
