"""`.pt2`: the program that torch.export captured, saved whole and run by torch."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from ..capture.captured_program import example_tensors
from ..capture.framework_errors import call_framework
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
)
from ..core.errors import CheckpointError, ConversionError, ModelcError, RunnerError, first_line
from ..core.kinds import Capture, Precision
from ..core.segments import SegmentOptions, SegmentPlan
from ..core.signature import Signature
from ..core.target_extensions import FaultKind, PlantedFault
from ..core.torch_file import refuse_archive_code, register_operators
from ..core.untrusted_files import find_archive_fault, zip_members
from .archive_records import (
    ENGINE_OPERATORS,
    build_call_record,
    count_operators,
    count_weights,
    parse_call_record,
    read_targets,
    read_torch_metadata,
    record_origin,
    record_specs,
    size_ranges,
    tensor_infos,
)
from .installed_packages import package_versions
from .planted_faults import plant_in_graph
from .runner_base import TorchRunner, check_device, float_tensors, runner_error, torch_settings
from .torch_faults import ProgramGraph
from .trt.torch_segments import plan_segments

if TYPE_CHECKING:
    import torch

NAME: str = "pt2"
SUMMARY: str = "torch.export program for torch"
SUFFIX: str = ".pt2"
MADE_FROM: Mapping[Precision, str] = {Precision.FP32: EAGER}
CAPTURES: tuple[Capture, ...] = (Capture.EXPORT, Capture.EXPORT_STRICT)
DEVICES: tuple[str, ...] = ("cpu", "cuda")
PLANTS_BY_DEFAULT: bool = False  # torch.export.load takes a second
PROGRAM: str = "an exported program"
INSPECT_OPENS: bool = True


def readiness() -> Readiness:
    """Return the torch version: torch is a dependency of modelc."""
    return Readiness(ready=True, version=package_versions("torch").get("torch", ""))


def claims(path: Path) -> bool:
    """Return whether it is a pt2 archive with a program that torch runs alone."""
    names = zip_members(path) if is_archive(path) else ()
    compiled = any("data/aotinductor/" in name for name in names)
    return bool(names) and not compiled and not has_engines(path)


def has_engines(path: Path) -> bool:
    """Return whether a program in a pt2 archive calls engines of TensorRT."""
    return any(ENGINE_OPERATORS in target for target in read_targets(path))


def is_archive(path: Path) -> bool:
    """Return whether it is a zip that declares itself a pt2 archive of any content."""
    names = [n for n in zip_members(path) if n.partition("/")[2] == "archive_format"]
    if not names:
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(names[0]).startswith(b"pt2")
    except Exception:  # noqa: BLE001 - zipfile raises anything at a damaged member: it is none
        return False


def convert(job: Job) -> Converted:
    """Export and save without stack traces and their paths."""
    import torch

    from ..capture.capture_strategies import capture_exported_program

    captured = capture_exported_program(job)
    name = job.stem + SUFFIX
    with _strip_user_data(captured.program) as program:
        call_framework(
            "torch.export.save",
            lambda: torch.export.save(
                program,
                str(job.folder / name),
                extra_files={RECORD: build_call_record(job, "flat")},
            ),
        )
    return Converted(
        files=((name, "model"),),
        versions=package_versions("torch"),
        notes=captured.notes,
        places=captured.places,
    )


@contextmanager
def _strip_user_data(
    program: torch.export.ExportedProgram,
) -> Iterator[torch.export.ExportedProgram]:
    """Remove the user's data and paths from the program for the block."""
    traces = {node: node.meta.pop("stack_trace", None) for node in program.graph.nodes}
    examples, program.example_inputs = (
        program.example_inputs,
        _zero_examples(program.example_inputs),
    )
    try:
        yield program
    finally:
        program.example_inputs = examples
        for node, trace in traces.items():
            if trace is not None:
                node.meta["stack_trace"] = trace


@contextmanager
def with_examples(
    program: torch.export.ExportedProgram, job: Job
) -> Iterator[torch.export.ExportedProgram]:
    """Return the program with the job's example as inputs and without stack traces."""
    with _strip_user_data(program) as bare:
        bare.example_inputs = (example_tensors(job), {})
        yield bare


def _zero_examples(examples: Any) -> Any:
    """Return zeros in place of the user's data, each stored as one number.

    Without example inputs, torch omits the size checks of a loaded program.
    """
    import torch
    from torch.utils._pytree import tree_map_only

    return tree_map_only(
        torch.Tensor, lambda one: torch.zeros((), dtype=one.dtype).expand(one.shape), examples
    )


def load_program(path: Path) -> tuple[torch.export.ExportedProgram, dict[str, Any]]:
    """Load a program, and its record of how to call it.

    Raises:
        RunnerError: torch cannot open it, or would run code in the file.
    """
    import torch

    extra: dict[str, Any] = {RECORD: ""}
    if fault := find_archive_fault(path):
        raise RunnerError(f"{path} cannot be read: {fault}", hint="export it again")
    try:
        refuse_archive_code(path)
        register_operators(path)
        program = torch.export.load(str(path), extra_files=extra)
        _drop_derived_ranges(program)
        return program, parse_call_record(extra[RECORD])
    except ModelcError:
        raise
    except Exception as error:
        raise runner_error("torch.export.load", error) from error


def _drop_derived_ranges(program: torch.export.ExportedProgram) -> None:
    """Remove the ranges of sizes such as 2*seq from the loaded program's table of symbols.

    torch 2.13 loads them as keys of that table, and its decompositions accept symbols alone. The
    program still checks them: it keeps `range_constraints` of its own.
    """
    for node in program.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            ranges = mode.shape_env.var_to_range
            for size in [one for one in ranges if not one.is_Symbol]:
                del ranges[size]
            return


def judge_settings(device: str) -> Mapping[str, str]:
    """Return the torch settings used in judging."""
    return torch_settings(device)


def open_runner(path: Path, device: str, signature: Signature) -> Runner:
    """Load the program on the CPU or a CUDA device; it checks the ranges of its dims itself.

    Raises:
        RunnerError: torch cannot open it, or would run code in the file.
    """
    check_device(device)
    try:
        program, record = load_program(path)
    except CheckpointError as error:  # an artifact, not a checkpoint
        raise RunnerError(error.message, hint=error.hint) from error
    call: Callable[..., object] = program.module().to(device)
    inputs = record.get("inputs") or [spec.name for spec in signature.inputs]
    return TorchRunner(
        lambda tensors: call(*tensors), inputs, outputs=record.get("outputs"), device=device
    )


def weights(path: Path) -> Iterator[Array]:
    """Yield the float32 tensors of its state."""
    program, _ = load_program(path)
    yield from float_tensors(program.state_dict)


def plant_fault(
    path: Path, kind: FaultKind, random: Random, signature: Signature, folder: Path
) -> PlantedFault | None:
    """Write a copy with one fault of this kind."""
    program, record = load_program(path)
    graph = ProgramGraph(program=program, record=record)
    return plant_in_graph(graph, kind, random, signature, folder / path.name)


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata that the job embedded in the archive."""
    return read_torch_metadata(path)


def inspect(path: Path) -> Inspection:
    """Describe parameters, operators, ranges and the record without running anything."""
    program, record = load_program(path)
    inputs, outputs = tensor_infos(program, record)
    return Inspection(
        target=NAME,
        inputs=inputs,
        outputs=outputs,
        facts={"ranges": size_ranges(program, record_specs(record))},
        weights=count_weights(program),
        operators=count_operators(program),
        metadata=record_origin(record),
    )


def plan_path(path: Path, options: SegmentOptions) -> SegmentPlan:
    """Return the segments that torch-tensorrt would make of the program.

    Raises:
        ConversionError: torch cannot lower it.
        RunnerError: torch cannot open it.
        UsageError: the program lacks an operator of `options`.
    """
    return plan_program(load_program(path)[0], options)


def plan_program(program: torch.export.ExportedProgram, options: SegmentOptions) -> SegmentPlan:
    """Return the segments that torch-tensorrt would make of a loaded program.

    Raises:
        ConversionError: torch cannot lower it.
        UsageError: the program lacks an operator of `options`.
    """
    try:
        return plan_segments(program, options)
    except ModelcError:
        raise
    except Exception as error:  # torch raises anything
        raise ConversionError(
            f"torch cannot lower the program: {type(error).__name__}: {first_line(error)}",
            hint="export it again with the installed torch, or with --static for its dims",
        ) from error


def coverage(path: Path, example: Feed, device: str) -> None:
    """Return None: torch computes in the dtypes of the module."""
