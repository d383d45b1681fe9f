"""torch-tensorrt: a program for torch whose parts run as TensorRT engines, the rest in torch.

It is for models that TensorRT does not take whole. The package compiles an exported program (pt2)
on a GPU and saves it as one again; `import torch_tensorrt` and `torch.export.load` open it. The
engines are pickled in the file and are machine code, so it is opened only if this process made it,
or if the user trusts its maker. torch_tensorrt is imported only once the driver reports a device.
"""

from __future__ import annotations

import inspect as signatures
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from ..capture.captured_program import example_tensors
from ..capture.framework_errors import call_framework
from ..capture.torch_export import dynamic_shapes
from ..core.contract import RECORD, Converted, Inspection, Job, Preflight, Readiness, Runner
from ..core.errors import (
    ConversionError,
    ErrorCode,
    Hint,
    MissingError,
    ModelcError,
    Option,
    first_line,
)
from ..core.kinds import Capture, Precision
from ..core.segments import SegmentOptions
from ..core.signature import InputSpec, Signature
from . import archive_records, tensorrt_engine
from .archive_records import (
    ENGINE_OPERATORS,
    INSIDE,
    build_call_record,
    check_trust,
    describe_program,
    inspect_record,
    read_record,
    read_targets,
    read_torch_metadata,
    trust_file,
)
from .exported_program import has_engines, is_archive, load_program, plan_program
from .installed_packages import package_versions
from .runner_base import TorchRunner, check_device, runner_error
from .trt.engine_options import (
    EngineOptions,
    HardwareLevel,
    options_for,
    parse_options,
    profile_text,
)
from .trt.engine_profiles import check_part_settings, profiles_for
from .trt.torch_segments import expand_operators
from .trt.trt_installation import (
    TrtLibrary,
    find_tensorrt,
    load_tensorrt,
    query_driver,
    read_host_versions,
    refuse_other_device,
    tensorrt_readiness,
)

if TYPE_CHECKING:
    import torch

    from ..core.contract import Feed

NAME: str = "torch-tensorrt"
SUMMARY: str = (
    "program for torch whose parts are TensorRT engines, for models that it takes in part"
)
SUFFIX: str = ".trt.pt2"
MADE_FROM: Mapping[Precision, str] = {
    Precision.FP32: "pt2",
    Precision.FP16: "pt2",
    Precision.BF16: "pt2",
}
CAPTURES: tuple[Capture, ...] = ()
DEVICES: tuple[str, ...] = ("cuda",)
FINISHED_BY: str = "build-trt"
FLOOR_FACTOR: float = tensorrt_engine.FLOOR_FACTOR
DEVICE = "cuda"  # the memory of inputs and weights
read_metadata = read_torch_metadata

LoadLibrary: TypeAlias = Callable[[], ModuleType]


def host_versions() -> Mapping[str, str]:
    """Return the versions of the library and the driver on this host, and its GPU."""
    return read_host_versions(TrtLibrary.TORCH)


def readiness() -> Readiness:
    """Check for a device and the package, without importing it."""
    return tensorrt_readiness(query_driver(), find_tensorrt(TrtLibrary.TORCH))


def claims(path: Path) -> bool:
    """Return whether it is a pt2 archive whose program calls engines."""
    return is_archive(path) and has_engines(path)


def limit_precision(precision: Precision, settings: Mapping[str, str]) -> Precision:
    """Return the precision whose limits apply, which TF32 lowers as in TensorRT."""
    return tensorrt_engine.limit_precision(precision, settings)


def check_settings(signature: Signature, settings: Mapping[str, str]) -> None:
    """Check that every dim has bounds, and that engines can be built for the GPUs asked for.

    Raises:
        UsageError: a dim has none, or only GPUs of the same compute capability were asked for.
    """
    check_part_settings(NAME, signature, settings)


def preflight(job: Job) -> Preflight:
    """Plan which parts of the job's parent run in TensorRT, without the package.

    A program of which no part does is a blocker; what stays in torch is a warning.

    Raises:
        ConversionError: the parent cannot be read.
        UsageError: the program lacks an operator of `--torch-ops`.
    """
    program, _ = load_program(_parent_of(job))
    options = parse_options(job.settings)
    asked = SegmentOptions(min_block_size=options.min_block_size, torch_ops=options.torch_ops)
    plan = plan_program(program, asked)
    return Preflight(
        blockers=plan.describe_no_engine(),
        warnings=plan.describe_left_out(),
        memory=0,
        source=plan.source,
        option="min-block-size",
    )


def convert(job: Job, load: LoadLibrary | None = None) -> Converted:
    """Compile the parent program and save it as a program with engines.

    FP16 and BF16 are the package's autocast, which leaves operators in FP32 that would overflow.

    Args:
        job: its settings are those of `trt.engine_options`.
        load: imports the package.

    Raises:
        ConversionError: the package rejected the program, or made no engine of it.
        MissingError: no device or no package.
        UsageError: an invalid setting.
    """
    import torch
    from torch.export.passes import move_to_device_pass

    package = (load or _load_package)()
    options = options_for(parse_options(job.settings), TrtLibrary.TORCH)
    check_settings(job.signature, job.settings)
    program, _ = load_program(_parent_of(job))
    record: dict[str, Any] = json.loads(build_call_record(job, "flat"))
    record[INSIDE] = describe_program(program, record)
    moved = move_to_device_pass(program, DEVICE)
    keywords = compile_keywords(options, job.precision, moved)
    inputs = [_make_input(package, spec) for spec in job.signature.inputs]
    module = call_framework(
        "torch_tensorrt.dynamo.compile",
        lambda: package.dynamo.compile(moved, arg_inputs=inputs, **keywords),
    )
    path = job.folder / (job.stem + SUFFIX)
    _save_module(package, module, job, path, json.dumps(record))
    engines = sum(ENGINE_OPERATORS in target for target in read_targets(path))
    if not engines:
        raise ConversionError(
            "torch_tensorrt made no engine: no part of the program runs in TensorRT",
            hint=Hint("see which operators it takes: modelc inspect FILE.pt2 --segments; or lower ",
                      Option("min-block-size")),
            option="min-block-size",
            code=ErrorCode.NO_EFFECT,
        )  # fmt: skip
    trust_file(path)
    limits = limit_precision(job.precision, job.settings)
    profile = profiles_for(job.signature, ())[0]
    torch.cuda.empty_cache()
    return Converted(
        files=((path.name, "model"),),
        versions={str(TrtLibrary.TORCH): str(package.__version__), **package_versions("torch")},
        options={"engines": str(engines), "profiles": profile_text(profile)},
        judged_as=None if limits is job.precision else limits,
    )


def _load_package() -> ModuleType:
    """Import the package, which raises anything where torch has no CUDA.

    Raises:
        MissingError: it cannot be imported, or there is no device.
    """
    try:
        return load_tensorrt(TrtLibrary.TORCH)
    except ModelcError:
        raise
    except Exception as error:
        raise MissingError(
            f"{NAME} cannot be imported: {first_line(error)}",
            hint="install a CUDA build of torch of the version that it needs",
            code=ErrorCode.NOT_INSTALLED,
        ) from error


def _parent_of(job: Job) -> Path:
    if job.parent is None:
        raise RuntimeError(f"a job of {NAME} needs an exported program")
    return job.parent


def compile_keywords(
    options: EngineOptions, precision: Precision, program: torch.export.ExportedProgram
) -> dict[str, Any]:
    """Return the keywords of `torch_tensorrt.dynamo.compile`, besides the program and its inputs.

    It takes any keyword and ignores those that it does not know, so a test compares them with the
    recorded signature.
    """
    import torch

    lowered = {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}.get(precision)
    autocast = {} if lowered is None else {
        "enable_autocast": True, "autocast_low_precision_type": lowered,
    }  # fmt: skip
    return {
        "device": torch.device(DEVICE),
        "disable_tf32": not options.tf32,
        "workspace_size": options.workspace or 0,  # 0 is no limit
        "min_block_size": options.min_block_size,
        "torch_executed_ops": expand_operators(program, options.torch_ops),
        "optimization_level": options.optimization_level,
        "version_compatible": options.version_compatible,
        "hardware_compatible": options.hardware_compatible is HardwareLevel.AMPERE_PLUS,
        "immutable_weights": not options.refittable,
        **autocast,
    }


def _make_input(package: ModuleType, spec: InputSpec) -> Any:
    """Return the package's description of an input: its least, typical and greatest sizes."""
    import torch

    shapes = {
        name: tuple(getattr(dim, end) for dim in spec.dims)
        for name, end in (("min_shape", "low"), ("opt_shape", "opt"), ("max_shape", "high"))
    }
    dtype = getattr(torch, spec.dtype)
    if any(dim.dynamic for dim in spec.dims):
        return package.Input(**shapes, dtype=dtype, name=spec.name)
    return package.Input(shape=shapes["opt_shape"], dtype=dtype, name=spec.name)


def _save_module(
    package: ModuleType, module: torch.fx.GraphModule, job: Job, path: Path, record: str
) -> None:
    """Save the compiled module as a program with the dims of the signature.

    The package infers no dims that inputs share: they are given as torch.export takes them.
    """
    tensors = [one.to(DEVICE) for one in example_tensors(job)]
    shapes = dynamic_shapes(job.signature)
    kinds = [one.kind for one in signatures.signature(module.forward).parameters.values()]
    packed = signatures.Parameter.VAR_POSITIONAL in kinds
    call_framework(
        "torch_tensorrt.save",
        lambda: package.save(
            module,
            str(path),
            output_format="exported_program",
            arg_inputs=tensors,
            dynamic_shapes=((shapes,) if packed else shapes) if any(shapes) else None,
            extra_files={RECORD: record},
        ),
        job.signature,
    )


def distrust_reason(path: Path, settings: Mapping[str, str]) -> str:
    """Return why the file must not be opened; empty if its maker is trusted or this process.

    Args:
        path: the program.
        settings: `trust_engine` trusts its maker.
    """
    return archive_records.distrust_reason(path, settings, "a program with engines")


def open_runner(
    path: Path, device: str, signature: Signature, settings: Mapping[str, str] | None = None
) -> Runner:
    """Load the program and its engines on the GPU.

    Args:
        path: the program.
        device: `cuda`.
        signature: gives the names of the inputs, if the file has no record.
        settings: `trust_engine` allows a file that this process did not make.

    Raises:
        MissingError: another device, or no GPU or package.
        RunnerError: the file is not trusted, or torch cannot load it.
    """
    import torch

    refuse_other_device(NAME, device)
    _load_package()  # registers the operators that run engines
    record = read_record(path)
    check_trust(distrust_reason(path, settings or {}))
    check_device(device)
    try:
        module = torch.export.load(str(path)).module()
    except Exception as error:  # torch raises anything here
        raise runner_error("torch.export.load", error) from error
    inputs = record.get("inputs") or [spec.name for spec in signature.inputs]
    return TorchRunner(
        lambda tensors: module(*tensors), inputs, outputs=record.get("outputs"), device=DEVICE
    )


def inspect(path: Path) -> Inspection:
    """Describe the file from its record and its graph; the engines stay unloaded."""
    targets = read_targets(path)
    engines = sum(ENGINE_OPERATORS in target for target in targets)
    facts = {"engines": str(engines), "operators in torch": str(len(targets) - engines)}
    return inspect_record(NAME, read_record(path), facts)


def coverage(path: Path, example: Feed, device: str) -> None:
    """Return None: which dtypes the layers of its engines compute in is not recorded."""
