"""TorchScript: `torch.jit.trace` or `torch.jit.script`, run by torch itself."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from ..capture.framework_errors import call_framework
from ..core.atomic_write import require_room
from ..core.call import bind_inputs, parameters_of_schema
from ..core.contract import (
    EAGER,
    RECORD,
    Array,
    Converted,
    Feed,
    Inspection,
    Job,
    Readiness,
    Runner,
    TensorInfo,
)
from ..core.kinds import Capture, Precision
from ..core.signature import Signature
from ..core.target_extensions import FaultKind, PlantedFault, Probe
from ..core.untrusted_files import zip_members
from .archive_records import (
    build_call_record,
    parse_call_record,
    read_torch_metadata,
    record_origin,
    record_specs,
)
from .installed_packages import package_versions
from .planted_faults import plant_in_graph
from .runner_base import TorchRunner, check_device, float_tensors, runner_error, torch_settings
from .torch_faults import ScriptGraph
from .torchscript_graph import has_calls
from .torchscript_probe import SCOPE, ScriptProbe, TorchScriptProbe, parameters_by_input

if TYPE_CHECKING:
    import torch

NAME: str = "torchscript"
SUMMARY: str = "TorchScript archive for torch and libtorch"
SUFFIX: str = ".torchscript.pt"
MADE_FROM: Mapping[Precision, str] = {Precision.FP32: EAGER}
CAPTURES: tuple[Capture, ...] = (Capture.TRACE, Capture.SCRIPT, Capture.MIXED)
DEVICES: tuple[str, ...] = ("cpu", "cuda")
PLANTS_BY_DEFAULT: bool = True
PROGRAM: str = "a TorchScript program"
INSPECT_OPENS: bool = True
read_metadata = read_torch_metadata
judge_settings = torch_settings
_DEBUG = ".debug_pkl"
_BESIDE_WEIGHTS = 1 << 18  # bytes of code, constants and debug tables, at least


def readiness() -> Readiness:
    """Return the torch version: torch is a dependency of modelc."""
    return Readiness(ready=True, version=package_versions("torch").get("torch", ""))


def claims(path: Path) -> bool:
    """Return whether it is a zip with compiled code and its constants."""
    inner = [name.partition("/")[2] for name in zip_members(path)]
    return "constants.pkl" in inner and any(name.startswith("code/") for name in inner)


def convert(job: Job) -> Converted:
    """Capture and save. A trace takes flat tensors; a script keeps the model's own call."""
    import torch

    from ..capture.capture_strategies import capture_torchscript

    captured = capture_torchscript(job)
    name = job.stem + SUFFIX
    _check_space(job.folder, captured.module)
    call_framework(
        "torch.jit.save",
        lambda: torch.jit.save(
            captured.module,
            str(job.folder / name),
            _extra_files={RECORD: build_call_record(job, captured.call)},
        ),
    )
    strip_debug_files(job.folder / name)
    return Converted(
        files=((name, "model"),),
        versions=package_versions("torch"),
        options={"call": captured.call},
        notes=captured.notes,
        frozen=captured.frozen,
        warned=captured.warned,
    )


def _check_space(folder: Path, module: torch.jit.ScriptModule) -> None:
    """Check the disk space: on a full disk, torch's writer kills the process."""
    tensors = (*module.parameters(), *module.buffers())
    require_room(folder, sum(one.nbytes for one in tensors) + _BESIDE_WEIGHTS)


def strip_debug_files(path: Path) -> None:
    """Remove the files that only tracebacks use: they contain paths and lines of the user's source.

    In place, as torch writes the weights before the code, and they are not copied.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        debug = [entry.header_offset for entry in entries if entry.filename.endswith(_DEBUG)]
        if not debug:
            return
        first = min(debug)
        behind = [entry for entry in entries if entry.header_offset >= first]
        kept = [(e, archive.read(e)) for e in behind if not e.filename.endswith(_DEBUG)]
    with zipfile.ZipFile(path, "a") as archive:
        for entry in behind:
            archive.filelist.remove(archive.NameToInfo.pop(entry.filename))
        archive.start_dir = first  # where the next entry goes; closing truncates the file
        for entry, content in kept:
            slim = zipfile.ZipInfo(entry.filename)
            archive.writestr(slim, content, compress_type=entry.compress_type)


def open_runner(path: Path, device: str, signature: Signature) -> Runner:
    """Load the archive on the CPU or a CUDA device."""
    check_device(device)
    module, record = _load_archive(path, device)
    inputs = record.get("inputs") or [spec.name for spec in signature.inputs]
    call: Callable[..., object] = module
    if record.get("call") == "flat":
        return TorchRunner(
            lambda tensors: call(*tensors), inputs, outputs=record["outputs"], device=device
        )
    binding = bind_inputs(inputs, parameters_of_schema(_forward_schema(module)))
    return TorchRunner(
        lambda tensors: binding.call(call, tensors), inputs, outputs=None, device=device
    )


def open_probe(path: Path, signature: Signature) -> Probe:
    """Open a trace of modelc's for probing, or a script or foreign trace as it runs on a feed.

    Raises:
        UsageError: its inputs differ from the signature's.
    """
    module, record = _load_archive(path, "cpu")
    runner = open_runner(path, "cpu", signature)
    flat = record.get("call") == "flat"
    if flat and not has_calls(module):
        return TorchScriptProbe(module, record["inputs"], record["outputs"], runner)
    inputs = record.get("inputs") or [spec.name for spec in signature.inputs]
    parameters = [one.name for one in _forward_schema(module).arguments[1:]]
    given = parameters_by_input(inputs, parameters)
    return ScriptProbe(module, given, runner, scope=SCOPE if flat else "")


def _load_archive(path: Path, device: str) -> tuple[torch.jit.ScriptModule, dict[str, Any]]:
    import torch

    extra: dict[str, Any] = {RECORD: ""}
    try:
        module: torch.jit.ScriptModule = torch.jit.load(  # type: ignore[no-untyped-call]  # torch's own
            str(path), map_location=device, _extra_files=extra
        )
        return module, parse_call_record(extra[RECORD])
    except Exception as error:  # torch's reader raises anything on garbage
        raise runner_error("torch.jit.load", error) from error


def _forward_schema(module: torch.jit.ScriptModule) -> Any:
    """Return the schema of forward, which the type stubs of a script lack."""
    forward: Any = module.forward
    return forward.schema


def weights(path: Path) -> Iterator[Array]:
    """Yield the float32 tensors of its state."""
    module, _ = _load_archive(path, "cpu")
    yield from float_tensors(module.state_dict())


def plant_fault(
    path: Path, kind: FaultKind, random: Random, signature: Signature, folder: Path
) -> PlantedFault | None:
    """Write a copy with one fault of this kind: in its state, or in the graph of forward."""
    module, record = _load_archive(path, "cpu")
    names = record.get("inputs") or [spec.name for spec in signature.inputs]
    graph = ScriptGraph(module=module, record=record, inputs=names)
    _check_space(folder, module)
    return plant_in_graph(graph, kind, random, signature, folder / path.name)


def inspect(path: Path) -> Inspection:
    """Describe parameters, operators and the record without running anything."""
    module, record = _load_archive(path, "cpu")
    weights: Counter[str] = Counter()
    for tensor in [*module.parameters(), *module.buffers()]:
        weights[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    operators = _count_operators(module.inlined_graph)
    names = list(record.get("outputs") or ())
    facts = {"call": str(record.get("call", "native"))}
    return Inspection(
        target=NAME,
        inputs=tuple(_input_infos(module, record)),
        outputs=tuple(TensorInfo(name=name, dtype="Tensor", dims=()) for name in names),
        facts=facts,
        weights=weights,
        operators=operators,
        metadata=record_origin(record),
    )


def _input_infos(module: torch.jit.ScriptModule, record: Mapping[str, Any]) -> Iterator[TensorInfo]:
    """Return the inputs by the caller's names, with dtype and dims if known.

    Called natively, they are the parameters of the user's forward.
    """
    specs, arguments = record_specs(record), _forward_schema(module).arguments[1:]
    native = record.get("call", "native") == "native"
    names = [a.name for a in arguments] if native else [spec.name for spec in specs]
    if specs and len(names) == len(specs):
        for name, spec in zip(names, specs, strict=True):
            yield TensorInfo(name=name, dtype=spec.dtype, dims=tuple(map(str, spec.dims)))
    else:
        yield from (TensorInfo(name=a.name, dtype=str(a.type), dims=()) for a in arguments)


def coverage(path: Path, example: Feed, device: str) -> None:
    """Return None: torch computes in the dtypes of the module."""


def _count_operators(graph: Any) -> Counter[str]:
    """Count the operators of a graph, including nested blocks."""
    counts: Counter[str] = Counter()
    blocks = [graph]
    while blocks:
        for node in blocks.pop().nodes():
            if node.kind().startswith("aten::") or node.kind() in ("prim::If", "prim::Loop"):
                counts[node.kind()] += 1
            blocks.extend(node.blocks())
    return counts
