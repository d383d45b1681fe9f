"""TensorRT engines, from ONNX whose types are the engine's precision; TensorRT 10.13 and 11.

Nothing here imports tensorrt before the driver has said that there is a device: without one,
objects of TensorRT crash the process. Engines are built in a process of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.contract import Converted, Feed, Inspection, Job, Preflight, Readiness
from ..core.errors import Hint, MissingError, Option, RunnerError, UsageError
from ..core.kinds import Capture, Precision
from ..core.records import Coverage, record_of
from ..core.signature import Signature
from .trt import build_launcher, timing_cache, trt_installation
from .trt.build_launcher import BuildHost, build_with_python, build_with_trtexec
from .trt.engine_options import (
    BuilderChoice,
    EngineOptions,
    find_unbounded,
    parse_options,
    profile_text,
    profiles_for,
)
from .trt.engine_records import (
    BuildRequest,
    BuildResult,
    EngineLayer,
    EngineSidecar,
    parse_layers,
    read_sidecar,
    write_sidecar,
)
from .trt.engine_records import engine_coverage as coverage_of
from .trt.trt_installation import CudaDevice, CudaDriver, query_driver

if TYPE_CHECKING:
    from .trt.engine_runner import EngineRunner

NAME: str = "tensorrt"
SUMMARY: str = "TensorRT engine for one GPU type, with a sidecar that says what it is"
SUFFIX: str = ".engine"
PROGRAM: str = "a TensorRT engine"
INSPECT_OPENS: bool = False  # the sidecar tells
MADE_FROM: Mapping[Precision, str] = {
    Precision.FP32: "tensorrt-onnx",
    Precision.FP16: "tensorrt-onnx:fp16",
    Precision.BF16: "tensorrt-onnx:bf16",
    Precision.INT8: "tensorrt-onnx:int8",
}
CAPTURES: tuple[Capture, ...] = ()
DEVICES: tuple[str, ...] = ("cuda",)
FINISHED_BY: str = "build-trt"
THIS_HOST = BuildHost()
_MAGIC = b"ftrt"  # the first bytes of a serialized engine


def readiness() -> Readiness:
    """Whether there is a device, and TensorRT's package or trtexec; nothing of it is imported."""
    driver = query_driver()
    if not driver.devices:  # asked first, and alone where it says no
        return trt_installation.tensorrt_readiness(driver, trt_installation.TensorrtInstallation())
    return trt_installation.tensorrt_readiness(driver, trt_installation.find_tensorrt())


def claims(path: Path) -> bool:
    """An .engine file that starts as a TensorRT plan does."""
    if path.suffix != SUFFIX or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(_MAGIC)) == _MAGIC


def preflight(job: Job) -> Preflight:
    """What TensorRT would stumble over in the job's parent, told without TensorRT."""
    from .trt.trt_preflight import run_preflight as look

    return look(job)


def convert(job: Job, host: BuildHost = THIS_HOST) -> Converted:
    """Build the engine in a process of its own, and write beside it what it is.

    Args:
        job: its settings are those of `trt.options`.
        host: the machine that it is built on and for.

    Raises:
        ConversionError: TensorRT refused the model, crashed or took too long.
        MissingError: no device, or nothing that builds.
        UsageError: a setting cannot be.
    """
    if job.parent is None:
        raise RuntimeError("a job for TensorRT came without its ONNX parent")
    options = _with_cache(parse_options(job.settings), job.cache)
    for line in find_unbounded(job.signature, options.profiles):
        what, _, mend = line.partition(": ")
        raise UsageError(what, hint=mend)
    driver = host.driver()
    if not driver.devices:
        raise MissingError(
            f"TensorRT needs a GPU: {driver.reason}", hint=trt_installation.DRIVER_FIX
        )
    engine = job.folder / f"{job.stem}{SUFFIX}"
    request = BuildRequest(
        onnx=str(job.parent.absolute()),
        engine=str(engine.absolute()),
        profiles=profiles_for(job.signature, options.profiles),
        options=options,
    )
    builder, built = _build_engine(request, job, driver.devices[0], host)
    sidecar = replace(_make_sidecar(request, built, driver, builder), origin=dict(job.metadata))
    path = write_sidecar(sidecar, engine)
    return Converted(
        files=((engine.name, "model"), (path.name, "config")),
        versions={"tensorrt": built.tensorrt},
        options=_engine_facts(sidecar),
        notes=(*built.notes, *_coverage_notes(built)),
        judged_as=Precision.FP16 if _is_tf32(job, options) else None,
    )


def _with_cache(options: EngineOptions, folder: Path | None) -> EngineOptions:
    """Kernel timings are kept in the cache folder, unless a place for them was named."""
    if folder is None or options.cache_folder:
        return options
    return replace(options, cache_folder=str(folder / NAME))


def _is_tf32(job: Job, options: EngineOptions) -> bool:
    """Whether FP32 layers may compute in TF32, whose mantissa is that of FP16."""
    return options.tf32 and job.precision is Precision.FP32


def _build_engine(
    request: BuildRequest, job: Job, device: CudaDevice, host: BuildHost
) -> tuple[BuilderChoice, BuildResult]:
    """With the package where it is here, else with trtexec; or with the one that was named."""
    options = request.options
    found = host.installed()
    if options.builder is not BuilderChoice.TRTEXEC and found.importable:
        cache = timing_cache.cache_file_for(options, device, found.package)
        asked = replace(request, timing_cache=cache)
        built = build_with_python(asked, job.advance, build=host.build)
        return BuilderChoice.PYTHON, built
    if options.builder is not BuilderChoice.PYTHON and found.program is not None:
        version = build_launcher.trtexec_version(found.program)
        cache = timing_cache.cache_file_for(options, device, ".".join(map(str, version)))
        asked = replace(request, timing_cache=cache)
        built = build_with_trtexec(found.program, asked, job.folder, version=version)
        return BuilderChoice.TRTEXEC, built
    missing = options.builder if options.builder is not BuilderChoice.AUTO else "tensorrt"
    raise MissingError(f"the builder {missing} is not installed", hint=trt_installation.INSTALL_FIX)


def _make_sidecar(
    request: BuildRequest, built: BuildResult, driver: CudaDriver, builder: BuilderChoice
) -> EngineSidecar:
    device = driver.devices[0]
    options = request.options
    found, _ = parse_layers(built.layers)
    return EngineSidecar(
        engine=record_of(Path(request.engine)),
        onnx=record_of(Path(request.onnx)),
        gpu=device.name,
        capability=".".join(map(str, device.capability)),
        memory=device.memory,
        cuda=driver.cuda,
        tensorrt=built.tensorrt,
        builder=builder,
        inputs=built.inputs,
        outputs=built.outputs,
        profiles=tuple(map(profile_text, request.profiles)),
        layers=found.layers,
        plugins=options.plugins,
        options=_option_changes(options),
        stripped=options.strip_weights,
    )


def _coverage_notes(built: BuildResult) -> tuple[str, ...]:
    """Why it is not known what the engine computes in, where it is not."""
    _, why = parse_layers(built.layers)
    return (why,) if why else ()


def _option_changes(options: EngineOptions) -> dict[str, str]:
    """The options that are not what they would be by themselves, as text."""
    plain = EngineOptions()
    aside = {"profiles", "plugins", "cache_folder", "timing_cache", "timeout", "weights"}
    return {
        one.name: str(getattr(options, one.name))
        for one in fields(options)
        if one.name not in aside and getattr(options, one.name) != getattr(plain, one.name)
    }


def _engine_facts(sidecar: EngineSidecar) -> dict[str, str]:
    """What the manifest says of the engine."""
    return {
        "gpu": f"{sidecar.gpu} (compute capability {sidecar.capability})",
        "cuda driver": sidecar.cuda,
        "builder": sidecar.builder,
        "profiles": "; ".join(sidecar.profiles),
        **({"plugins": ", ".join(sidecar.plugins)} if sidecar.plugins else {}),
        **sidecar.options,
    }


def open_runner(
    path: Path, device: str, signature: Signature, settings: Mapping[str, str] | None = None
) -> EngineRunner:
    """Load an engine on the GPU.

    Args:
        path: the engine.
        device: `cuda`.
        signature: whose names order the inputs.
        settings: as for a job; `plugins`, `trust_engine` and `weights` are of use here.

    Raises:
        RunnerError: TensorRT would not load it.
        MissingError: no device, or no TensorRT.
    """
    if device != "cuda":
        raise MissingError(
            f"TensorRT runs on cuda, not on {device}",
            hint=Hint("use ", Option("device", "cuda")),
            option="device",
        )
    trt = trt_installation.load_tensorrt()

    import torch

    from .runner_base import check_device
    from .trt.engine_runner import EngineRunner, load_engine
    from .trt.trt_callbacks import make_error_log

    check_device(device)
    loaded = load_engine(trt, path, parse_options(settings or {}), make_error_log(trt))
    return EngineRunner(trt, loaded, signature, torch.device(device))


def inspect(path: Path) -> Inspection:
    """Read the sidecar; the engine itself is code, and is not loaded."""
    sidecar = read_sidecar(path)
    precisions = Counter(layer.dtype for layer in sidecar.layers if layer.computes)
    facts = {
        "gpu": f"{sidecar.gpu} (compute capability {sidecar.capability})",
        "tensorrt": sidecar.tensorrt,
        "cuda driver": sidecar.cuda,
        "built with": sidecar.builder,
        "layers": str(len(sidecar.layers)),
        "compute layers": ", ".join(f"{n} {kind}" for kind, n in precisions.items()) or "unknown",
        **{f"profile {i}": profile for i, profile in enumerate(sidecar.profiles)},
        **({"plugins": ", ".join(sidecar.plugins)} if sidecar.plugins else {}),
        **({"weights": f"none: they come from {sidecar.onnx.name}"} if sidecar.stripped else {}),
        **sidecar.options,
    }
    return Inspection(
        target=NAME,
        inputs=sidecar.inputs,
        outputs=sidecar.outputs,
        facts=facts,
        weights={},  # an engine does not tell
        operators=Counter(layer.kind or "?" for layer in sidecar.layers),
        metadata=sidecar.origin,
    )


def read_metadata(path: Path) -> Mapping[str, str]:
    """What the file beside the engine says of the job that made it."""
    return read_sidecar(path).origin


def coverage(path: Path, example: Feed, device: str) -> Coverage | None:
    """What the engine computes in, from its sidecar; by time where it runs here, else by layers."""
    layers = read_sidecar(path).layers
    return coverage_of(layers, _layer_times(path, example, device, layers)) if layers else None


def _layer_times(
    path: Path, example: Feed, device: str, layers: tuple[EngineLayer, ...]
) -> Mapping[str, float] | None:
    """Milliseconds by layer; None where the engine cannot be run, or nothing computes."""
    if device not in DEVICES or not any(layer.computes for layer in layers):
        return None
    try:
        with open_runner(path, device, Signature(inputs=())) as runner:
            return runner.layer_times(example)
    except (MissingError, RunnerError):
        return None
