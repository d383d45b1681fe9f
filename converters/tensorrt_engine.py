"""TensorRT engines, from ONNX whose types are the engine's precision; TensorRT 10.13 and 11.

tensorrt is imported only once the driver reports a device: without one, objects of TensorRT crash
the process. Engines are built in a child process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.contract import Converted, Feed, Inspection, Job, Preflight, Readiness
from ..core.errors import ErrorCode, Hint, MissingError, Option, RunnerError
from ..core.kinds import Capture, Precision
from ..core.records import Coverage, record_of
from ..core.signature import Signature
from .trt import build_launcher, timing_cache, trt_installation
from .trt.build_launcher import BuildHost, build_with_python, build_with_trtexec
from .trt.engine_options import (
    BuilderChoice,
    EngineOptions,
    find_unbounded,
    options_for,
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
from .trt.shape_inputs import find_doubles, value_ranges
from .trt.trt_installation import TrtLibrary, query_driver

if TYPE_CHECKING:
    from .trt.engine_runner import EngineRunner

NAME: str = "tensorrt"
SUMMARY: str = "TensorRT engine for one GPU type, with a sidecar that describes it"
SUFFIX: str = ".engine"
PROGRAM: str = "a TensorRT engine"
INSPECT_OPENS: bool = False  # inspect reads the sidecar
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
_SUFFIXES = {TrtLibrary.TENSORRT: SUFFIX, TrtLibrary.RTX: ".rtx.engine"}
RTX_CAPABILITIES = "8.0 and later"  # of an engine for which no compute capabilities are named


def readiness() -> Readiness:
    """Check for a device and for TensorRT's package or trtexec, without importing it."""
    return trt_installation.tensorrt_readiness(query_driver(), trt_installation.find_tensorrt())


def claims(path: Path) -> bool:
    """Return whether an .engine file starts with the magic of a TensorRT plan."""
    if path.suffix != SUFFIX or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(_MAGIC)) == _MAGIC


def preflight(job: Job) -> Preflight:
    """Find what TensorRT would reject in the job's parent, without TensorRT."""
    from .trt.trt_preflight import run_preflight

    return run_preflight(job)


def convert(
    job: Job, host: BuildHost = THIS_HOST, library: TrtLibrary = TrtLibrary.TENSORRT
) -> Converted:
    """Build the engine in a child process and write its sidecar.

    Args:
        job: its settings are those of `trt.engine_options`.
        host: the machine that the engine is built on; TensorRT's is also for its GPU.
        library: what builds it.

    Raises:
        ConversionError: TensorRT rejected the model, crashed or took too long.
        MissingError: no device or no builder.
        UsageError: an invalid setting.
    """
    if job.parent is None:
        raise RuntimeError("a TensorRT job needs an ONNX parent")
    options = options_for(parse_options(job.settings), library)
    for error in find_unbounded(job.signature, options.profiles):
        raise error
    gpu = _find_gpu(host) if library is TrtLibrary.TENSORRT else _rtx_gpus(options)
    engine = job.folder / f"{job.stem}{_SUFFIXES[library]}"
    request = BuildRequest(
        onnx=str(job.parent.absolute()),
        engine=str(engine.absolute()),
        profiles=profiles_for(job.signature, options.profiles),
        options=options,
        library=library,
        values=value_ranges(job.signature),
    )
    builder, built = _build_engine(request, job, gpu, host)
    found, unreadable = parse_layers(built.layers)
    doubles = find_doubles(job.parent)
    sidecar = replace(
        _make_sidecar(request, built, gpu, builder),
        layers=found.layers,
        doubles=doubles,
        origin=dict(job.metadata),
    )
    path = write_sidecar(sidecar, engine)
    return Converted(
        files=((engine.name, "model"), (path.name, "config")),
        versions={str(library): built.tensorrt},
        options=_engine_facts(sidecar),
        notes=(
            *built.notes,
            *([unreadable] if unreadable and library is TrtLibrary.TENSORRT else []),
            *(
                [f"float32 in the engine, float64 in the model: {', '.join(doubles)}"]
                if doubles
                else []
            ),
        ),
        # TF32 has the mantissa of FP16
        judged_as=Precision.FP16 if options.tf32 and job.precision is Precision.FP32 else None,
    )


@dataclass(frozen=True, kw_only=True)
class _EngineGpus:
    """The GPUs of an engine, as its sidecar says them; `key` is a part of a file name."""

    name: str
    capability: str
    key: str
    memory: int = 0
    cuda: str = ""


def _find_gpu(host: BuildHost) -> _EngineGpus:
    """Return the GPU of this host.

    Raises:
        MissingError: there is none.
    """
    driver = host.driver()
    if not driver.devices:
        raise MissingError(
            f"TensorRT needs a GPU: {driver.reason}",
            hint=trt_installation.DRIVER_FIX,
            code=ErrorCode.NO_DEVICE,
        )
    device = driver.devices[0]
    return _EngineGpus(
        name=device.name,
        capability=".".join(map(str, device.capability)),
        key=timing_cache.device_key(device),
        memory=device.memory,
        cuda=driver.cuda,
    )


def _rtx_gpus(options: EngineOptions) -> _EngineGpus:
    """Return the GPUs that an engine of TensorRT-RTX is for."""
    capabilities = options.compute_capabilities
    key = "-".join(f"sm{one.replace('.', '')}" for one in capabilities)
    return _EngineGpus(
        name="RTX GPUs",
        capability=", ".join(capabilities) or RTX_CAPABILITIES,
        key=key or "sm80-and-later",
    )


def _build_engine(
    request: BuildRequest, job: Job, gpu: _EngineGpus, host: BuildHost
) -> tuple[BuilderChoice, BuildResult]:
    """Build with the Python package if installed, else with trtexec, or with the named one."""
    options, library = request.options, request.library
    found = host.installed(library)

    def with_cache(version: str) -> BuildRequest:
        if library is TrtLibrary.RTX:  # times no kernels
            return request
        folder = job.cache and job.cache / library
        name = f"{library}-{version}"
        cache = timing_cache.cache_file_for(options.timing_cache, folder, gpu.key, name)
        return replace(request, timing_cache=cache)

    if options.builder is not BuilderChoice.TRTEXEC and found.importable:
        built = build_with_python(with_cache(found.package), job.advance, build=host.build)
        return BuilderChoice.PYTHON, built
    if options.builder is not BuilderChoice.PYTHON and found.program is not None:
        version = build_launcher.trtexec_version(found.program)
        cached = with_cache(".".join(map(str, version)))
        built = build_with_trtexec(found.program, cached, job.folder, version=version)
        return BuilderChoice.TRTEXEC, built
    missing = options.builder if options.builder is not BuilderChoice.AUTO else library
    raise MissingError(
        f"the builder {missing} is not installed",
        hint=library.install,
        option="builder",
        code=ErrorCode.NOT_INSTALLED,
    )


def _make_sidecar(
    request: BuildRequest, built: BuildResult, gpu: _EngineGpus, builder: BuilderChoice
) -> EngineSidecar:
    options = request.options
    return EngineSidecar(
        engine=record_of(Path(request.engine)),
        onnx=record_of(Path(request.onnx)),
        gpu=gpu.name,
        capability=gpu.capability,
        memory=gpu.memory,
        cuda=gpu.cuda,
        tensorrt=built.tensorrt,
        builder=builder,
        inputs=built.inputs,
        outputs=built.outputs,
        profiles=tuple(map(profile_text, request.profiles)),
        plugins=options.plugins,
        options=_option_changes(options),
        stripped=options.strip_weights,
        library=request.library,
    )


def _option_changes(options: EngineOptions) -> dict[str, str]:
    """Return the options that differ from their defaults, as text."""
    plain = EngineOptions()
    excluded = {"profiles", "plugins", "timing_cache", "weights"}
    return {
        one.name: str(getattr(options, one.name))
        for one in fields(options)
        if one.name not in excluded and getattr(options, one.name) != getattr(plain, one.name)
    }


def _engine_facts(sidecar: EngineSidecar) -> dict[str, str]:
    """Return the facts about the engine for the manifest."""
    return {
        "gpu": f"{sidecar.gpu} (compute capability {sidecar.capability})",
        **({"cuda driver": sidecar.cuda} if sidecar.cuda else {}),
        "builder": sidecar.builder,
        "profiles": "; ".join(sidecar.profiles),
        **({"plugins": ", ".join(sidecar.plugins)} if sidecar.plugins else {}),
        **sidecar.options,
    }


def open_runner(
    path: Path,
    device: str,
    signature: Signature,
    settings: Mapping[str, str] | None = None,
    library: TrtLibrary = TrtLibrary.TENSORRT,
) -> EngineRunner:
    """Load an engine on the GPU.

    Args:
        path: the engine.
        device: `cuda`.
        signature: gives the order of the inputs.
        settings: as for a job; only `plugins`, `trust_engine` and `weights` matter here.
        library: what built it.

    Raises:
        RunnerError: TensorRT cannot load it.
        MissingError: no device or no TensorRT.
    """
    if device != "cuda":
        raise MissingError(
            f"{library} runs on cuda, not on {device}",
            hint=Hint("use ", Option("device", "cuda")),
            option="device",
            code=ErrorCode.UNSUPPORTED,
        )
    trt = trt_installation.load_tensorrt(library)

    import torch

    from .runner_base import check_device
    from .trt.engine_runner import EngineRunner, load_engine
    from .trt.trt_callbacks import make_error_log

    check_device(device)
    loaded = load_engine(trt, path, parse_options(settings or {}), make_error_log(trt))
    return EngineRunner(trt, loaded, signature, torch.device(device))


def inspect(path: Path) -> Inspection:
    """Read the sidecar; the engine is code and is not loaded."""
    sidecar = read_sidecar(path)
    facts = {
        "gpu": f"{sidecar.gpu} (compute capability {sidecar.capability})",
        str(sidecar.library): sidecar.tensorrt,
        **({"cuda driver": sidecar.cuda} if sidecar.cuda else {}),
        "built with": sidecar.builder,
        **(_layer_facts(sidecar.layers) if sidecar.layers else {}),
        **{f"profile {i}": profile for i, profile in enumerate(sidecar.profiles)},
        **({"plugins": ", ".join(sidecar.plugins)} if sidecar.plugins else {}),
        **({"weights": f"none: they come from {sidecar.onnx.name}"} if sidecar.stripped else {}),
        **({"float64 in the model": ", ".join(sidecar.doubles)} if sidecar.doubles else {}),
        **sidecar.options,
    }
    return Inspection(
        target=str(sidecar.library),
        inputs=sidecar.inputs,
        outputs=sidecar.outputs,
        facts=facts,
        weights={},  # not readable from an engine
        operators=Counter(layer.kind or "?" for layer in sidecar.layers),
        metadata=sidecar.origin,
    )


def _layer_facts(layers: tuple[EngineLayer, ...]) -> dict[str, str]:
    dtypes = Counter(layer.dtype for layer in layers if layer.computes)
    known = ", ".join(f"{count} {dtype}" for dtype, count in dtypes.items())
    return {"layers": str(len(layers)), "compute layers": known or "unknown"}


def read_metadata(path: Path) -> Mapping[str, str]:
    """Return the metadata of the job from the sidecar."""
    return read_sidecar(path).origin


def coverage(path: Path, example: Feed, device: str) -> Coverage | None:
    """Return the compute dtypes from the sidecar, weighted by time if the engine runs here."""
    sidecar = read_sidecar(path)
    if not sidecar.layers:
        return None
    return coverage_of(sidecar.layers, _layer_times(path, example, device, sidecar.layers))


def _layer_times(
    path: Path, example: Feed, device: str, layers: tuple[EngineLayer, ...]
) -> Mapping[str, float] | None:
    """Return milliseconds by layer; None if the engine cannot run here or no layer computes."""
    if device not in DEVICES or not any(layer.computes for layer in layers):
        return None
    try:
        with open_runner(path, device, Signature(inputs=())) as runner:
            return runner.layer_times(example)
    except (MissingError, RunnerError):
        return None
