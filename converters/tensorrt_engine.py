"""TensorRT engines, from ONNX whose types are the engine's precision; TensorRT 10.13 and 11.

tensorrt is imported only once the driver reports a device: without one, objects of TensorRT crash
the process. Engines are built in a child process.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.contract import Converted, Feed, Inspection, Job, Preflight, Readiness
from ..core.errors import ErrorCode, MissingError, RunnerError, first_line
from ..core.kinds import Capture, Precision
from ..core.records import Coverage, record_of
from ..core.signature import Signature
from .trt import build_launcher, timing_cache, trt_installation
from .trt.build_launcher import BuildHost, build_with_python, build_with_trtexec
from .trt.engine_inspection import inspect_with_python
from .trt.engine_layers import EngineLayer, parse_layers, read_operators
from .trt.engine_layers import engine_coverage as coverage_of
from .trt.engine_options import (
    BuilderChoice,
    EngineOptions,
    options_for,
    parse_options,
    profile_text,
)
from .trt.engine_profiles import find_unbounded, profiles_for, read_size_inputs
from .trt.engine_records import (
    BuildRequest,
    BuildResult,
    EngineSidecar,
    external_files,
    is_engine_for,
    list_option_changes,
    read_eager_dtypes,
    read_sidecar,
    write_sidecar,
)
from .trt.parser_support import LEAST_BY_TYPE, LEAST_OF_PRODUCTS
from .trt.trt_callbacks import BUILDER_LOG_SOURCE
from .trt.trt_installation import TrtLibrary, builder_readiness, query_driver

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
    Precision.FP8: "tensorrt-onnx:fp8",
    Precision.INT4: "tensorrt-onnx:int4",
}
CAPTURES: tuple[Capture, ...] = ()
DEVICES: tuple[str, ...] = ("cuda",)
FINISHED_BY: str = "build-trt"
# Twice FP32's own, until it is measured on GPUs: their kernels add up more products one after
# another than a CPU's. Without --no-tf32 an FP32 engine is judged as FP16 instead.
FLOOR_FACTOR: float = 10.0
RUN_SETTINGS: frozenset[str] = frozenset({"trust_engine", "weights"})
THIS_HOST = BuildHost()
_LOG = logging.getLogger(__name__)
_MAGIC = b"ftrt"  # the first bytes of a serialized engine
_SUFFIXES = {TrtLibrary.TENSORRT: SUFFIX, TrtLibrary.RTX: ".rtx.engine"}


def readiness() -> Readiness:
    """Check for a device and for TensorRT's package or trtexec, without importing it."""
    return trt_installation.tensorrt_readiness(query_driver(), trt_installation.find_tensorrt())


def claims(path: Path) -> bool:
    """Return whether an .engine file starts with the magic of a TensorRT plan."""
    if path.suffix != SUFFIX or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(_MAGIC)) == _MAGIC


def is_for_host(path: Path, host: BuildHost = THIS_HOST) -> bool:
    """Return whether an engine was built for the GPU and the TensorRT of this host."""
    driver, package = host.driver(), host.installed(TrtLibrary.TENSORRT).package
    here = driver.devices[0] if driver.devices else None
    try:
        return is_engine_for(read_sidecar(path), here, package)
    except RunnerError:
        return False


def preflight(job: Job, library: TrtLibrary = TrtLibrary.TENSORRT) -> Preflight:
    """Find what the library or its GPU would reject: by RTX's parser if installed, or a table."""
    from .trt.parser_verdict import ask_parser
    from .trt.trt_preflight import run_preflight

    rtx = trt_installation.find_tensorrt(TrtLibrary.RTX)
    gpus = parse_options(job.settings).compute_capabilities
    if library is TrtLibrary.TENSORRT:
        gpus = tuple(device.capability_text for device in query_driver().devices[:1])
    return run_preflight(job, library, ask_parser if builder_readiness(rtx).ready else None, gpus)


def limit_precision(precision: Precision, settings: Mapping[str, str]) -> Precision:
    """Return FP16 for FP32 with TF32, which has the mantissa of FP16."""
    tf32 = precision is Precision.FP32 and parse_options(settings).tf32
    return Precision.FP16 if tf32 else precision


def check_settings(signature: Signature, settings: Mapping[str, str]) -> None:
    """Check the optimization profiles against the inputs.

    Raises:
        UsageError: a profile names an unknown input, has another rank, or varies a fixed dim.
    """
    profiles_for(signature, parse_options(settings).profiles)


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
    gpu = _find_gpu(host) if library is TrtLibrary.TENSORRT else _rtx_gpus(options, job)
    engine = job.folder / f"{job.stem}{_SUFFIXES[library]}"
    request = BuildRequest(
        onnx=str(job.parent.absolute()),
        engine=str(engine.absolute()),
        profiles=profiles_for(job.signature, options.profiles),
        options=options,
        library=library,
    )
    builder, built = _build_engine(request, job, gpu, host)
    found, unreadable = parse_layers(built.layers, read_operators(job.parent))
    described = bool(built.layers) or builder is BuilderChoice.TRTEXEC
    sidecar = replace(
        _make_sidecar(request, built, gpu, builder),
        layers=found.layers,
        origin=dict(job.metadata),
    )
    path = write_sidecar(sidecar, engine)
    limits = limit_precision(job.precision, job.settings)
    return Converted(
        files=((engine.name, "model"), (path.name, "config")),
        versions={str(library): built.tensorrt},
        options=_engine_facts(sidecar),
        notes=(*built.notes, *([unreadable] if described and unreadable else [])),
        judged_as=None if limits is job.precision else limits,
    )


@dataclass(frozen=True, kw_only=True)
class _EngineGpus:
    """The GPUs of an engine, as its sidecar says them; `key` is a part of a file name."""

    name: str
    capability: str
    key: str = ""
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
        capability=device.capability_text,
        key=timing_cache.device_key(device),
        memory=device.memory,
        cuda=driver.cuda,
    )


def _rtx_gpus(options: EngineOptions, job: Job) -> _EngineGpus:
    """Return the GPUs that an engine of TensorRT-RTX is for: by default all that have the type."""
    named = ", ".join(options.compute_capabilities)
    least = LEAST_BY_TYPE["FLOAT8E4M3FN"] if job.precision is Precision.FP8 else LEAST_OF_PRODUCTS
    return _EngineGpus(name="RTX GPUs", capability=named or f"{least} and later")


def _build_engine(
    request: BuildRequest, job: Job, gpu: _EngineGpus, host: BuildHost
) -> tuple[BuilderChoice, BuildResult]:
    """Build with the Python package if installed, else with trtexec, or with the named one."""
    options, library = request.options, request.library
    found = host.installed(library)

    def with_cache(version: str) -> BuildRequest:
        if library is TrtLibrary.RTX:
            return request
        folder = job.cache and job.cache / library
        name = f"{library}-{version}"
        cache = timing_cache.cache_file_for(options.timing_cache, folder, gpu.key, name)
        return replace(request, timing_cache=cache)

    if options.builder is not BuilderChoice.TRTEXEC and found.importable:
        cached = with_cache(found.package)
        built = build_with_python(cached, job.advance, build=host.build)
        # TensorRT-RTX compiles the kernels when an engine is loaded: no layers are known before.
        if library is TrtLibrary.TENSORRT:
            inspection = inspect_with_python(cached, inspect=host.inspect)
            notes = (*built.notes, *([inspection.note] if inspection.note else []))
            built = replace(built, layers=inspection.layers, notes=notes)
        return BuilderChoice.PYTHON, built
    if options.builder is not BuilderChoice.PYTHON and found.program is not None:
        version = build_launcher.trtexec_version(found.program)
        sizes = read_size_inputs(Path(request.onnx))
        cached = replace(with_cache(".".join(map(str, version))), size_inputs=sizes)
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
    options, onnx = request.options, Path(request.onnx)
    return EngineSidecar(
        engine=record_of(Path(request.engine)),
        onnx=record_of(onnx),
        external=external_files(onnx) if options.strip_weights else (),
        eager_dtypes=read_eager_dtypes(onnx),
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
        options=list_option_changes(options),
        stripped=options.strip_weights,
        library=request.library,
    )


def _engine_facts(sidecar: EngineSidecar) -> dict[str, str]:
    """Return the facts about the engine for the manifest."""
    return {
        "gpu": f"{sidecar.gpu} (compute capability {sidecar.capability})",
        **({"cuda driver": sidecar.cuda} if sidecar.cuda else {}),
        "builder": sidecar.builder,
        "profiles": "; ".join(sidecar.profiles),
        **({"plugins": ", ".join(sidecar.plugins)} if sidecar.plugins else {}),
        # TensorRT's are in the coverage of its artifact, which a pending step does not have
        **(_layer_facts(sidecar) if sidecar.library is TrtLibrary.RTX else {}),
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
    trt_installation.refuse_other_device(library, device)
    trt = trt_installation.load_tensorrt(library)

    import torch

    from .runner_base import check_device
    from .trt.engine_runner import EngineRunner, gpu_errors, load_engine
    from .trt.trt_callbacks import make_error_log

    check_device(device)
    options = parse_options(settings or {})
    with gpu_errors():
        loaded = load_engine(trt, path, options, make_error_log(trt))
        return EngineRunner(trt, loaded, signature, torch.device(device))


def inspect(path: Path) -> Inspection:
    """Read the sidecar; the engine is code and is not loaded."""
    sidecar = read_sidecar(path)
    facts = {
        "gpu": f"{sidecar.gpu} (compute capability {sidecar.capability})",
        str(sidecar.library): sidecar.tensorrt,
        **({"cuda driver": sidecar.cuda} if sidecar.cuda else {}),
        "built with": sidecar.builder,
        **_layer_facts(sidecar),
        **{f"profile {i}": profile for i, profile in enumerate(sidecar.profiles)},
        **({"plugins": ", ".join(sidecar.plugins)} if sidecar.plugins else {}),
        **({"weights": f"none: they come from {sidecar.onnx.name}"} if sidecar.stripped else {}),
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


def _layer_facts(sidecar: EngineSidecar) -> dict[str, str]:
    """Return the number of layers, and those that compute by dtype, with what it is known from."""
    if not sidecar.layers:
        return {}
    dtypes = Counter(layer.dtype for layer in sidecar.layers if layer.computes)
    known = ", ".join(f"{count} {dtype}" for dtype, count in dtypes.items())
    source = f" ({BUILDER_LOG_SOURCE})" if sidecar.library is TrtLibrary.RTX else ""
    return {"layers": str(len(sidecar.layers)), "compute layers": (known or "unknown") + source}


def host_versions() -> Mapping[str, str]:
    """Return the versions of TensorRT and the driver on this host, and its GPU."""
    return trt_installation.read_host_versions(TrtLibrary.TENSORRT)


def read_metadata(path: Path) -> Mapping[str, str]:
    """Return the metadata of the job from the sidecar."""
    return read_sidecar(path).origin


def coverage(path: Path, example: Feed, device: str) -> Coverage | None:
    """Return the compute dtypes from the sidecar, weighted by time if the engine runs here."""
    sidecar = read_sidecar(path)
    if not any(layer.computes for layer in sidecar.layers):
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
    except Exception as error:  # noqa: BLE001 - the shares are then by layers
        _LOG.warning("the layers of %s were not timed: %s", path.name, first_line(error))
        return None
