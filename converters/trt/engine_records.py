"""Records of an engine: build request and result, and the sidecar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from ...core.atomic_write import atomic_write
from ...core.contract import TensorInfo
from ...core.errors import ErrorCode, RunnerError
from ...core.records import FileRecord, record_of, sha256_of
from ..onnx_guard import list_model_files, read_graph
from ..onnx_half_emulation import has_half_io
from .engine_layers import EngineLayer
from .engine_options import BuilderChoice, EngineOptions, Profile
from .trt_installation import CudaDevice, TrtLibrary


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """One engine to build.

    `engine` is written atomically. `timing_cache` is a file, empty for none. `size_inputs` are the
    inputs whose values set a size, which trtexec does not ask for.
    """

    onnx: str
    engine: str
    profiles: tuple[Profile, ...]
    options: EngineOptions
    timing_cache: str = ""
    library: TrtLibrary = TrtLibrary.TENSORRT
    size_inputs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """A finished build. `layers` is the JSON of TensorRT's inspector."""

    tensorrt: str
    layers: str = ""
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    notes: tuple[str, ...] = ()


SIDECAR_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class EngineSidecar:
    """The record of one engine.

    `capability` is the GPU's compute capability, `memory` its bytes, `cuda` the newest CUDA that
    its driver runs; an engine of TensorRT-RTX is for several GPUs and names capabilities alone.
    `onnx` is the source model, which holds the weights of a stripped engine, with `external` files
    named from its folder. `options` are those that differ from the defaults, as text. `origin` is
    the metadata of the job. `eager_dtypes` are those of eager's inputs and outputs that the engine
    has in another type: the runner converts them.
    """

    engine: FileRecord
    onnx: FileRecord
    gpu: str
    capability: str
    memory: int
    cuda: str
    tensorrt: str
    builder: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    profiles: tuple[str, ...]
    layers: tuple[EngineLayer, ...] = ()
    plugins: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    stripped: bool = False
    external: tuple[FileRecord, ...] = ()
    eager_dtypes: Mapping[str, str] = field(default_factory=dict)
    origin: Mapping[str, str] = field(default_factory=dict)
    library: TrtLibrary = TrtLibrary.TENSORRT
    schema_version: int = SIDECAR_VERSION


def read_eager_dtypes(onnx: Path) -> dict[str, str]:
    """Return eager's dtype of each input and output that an engine of this model has in another.

    TensorRT has no float64, and `--half-io` makes the ends of a float32 model half.
    """
    from onnx import TensorProto

    model = read_graph(onnx)
    others = {TensorProto.DOUBLE: "float64"}
    if has_half_io(model):
        others |= dict.fromkeys((TensorProto.FLOAT16, TensorProto.BFLOAT16), "float32")
    ends = (*model.graph.input, *model.graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in ends}
    return {name: others[code] for name, code in types.items() if code in others}


def engine_sidecar_path(engine: Path) -> Path:
    """Return `model.fp16.engine.json` for `model.fp16.engine`."""
    return engine.with_name(f"{engine.name}.json")


def write_sidecar(sidecar: EngineSidecar, engine: Path) -> Path:
    """Write the sidecar beside the engine; return its path."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(sidecar), indent=1) + b"\n"
    return atomic_write(engine_sidecar_path(engine), text)


def read_sidecar(engine: Path) -> EngineSidecar:
    """Read the sidecar of an engine and check the engine's digest.

    Raises:
        RunnerError: the sidecar is missing, unreadable or of another engine.
    """
    import msgspec

    path = engine_sidecar_path(engine)
    try:
        sidecar = msgspec.json.decode(path.read_bytes(), type=EngineSidecar)
    except FileNotFoundError as error:
        raise RunnerError(
            f"{engine.name} has no {path.name}, and inspection does not load an engine: it is code",
            hint="keep the two files together, or build the engine again",
            code=ErrorCode.NOT_FOUND,
        ) from error
    except (OSError, ValueError) as error:
        raise RunnerError(
            f"{path.name} cannot be read: {error}",
            hint="build the engine again",
            code=ErrorCode.CORRUPT_FILE,
        ) from error
    if sidecar.engine.sha256 != sha256_of(engine):
        raise RunnerError(
            f"{path.name} describes another engine than {engine.name}",
            hint="keep the two files together, or build the engine again",
            code=ErrorCode.FILE_CHANGED,
        )
    return sidecar


def external_files(onnx: Path) -> tuple[FileRecord, ...]:
    """Return the files that hold weights of an ONNX, named from its folder.

    Raises:
        ConversionError: the model cannot be read, or names files outside its folder.
    """
    files = list_model_files(onnx)[1:]
    return tuple(record_of(one, name=one.relative_to(onnx.parent).as_posix()) for one in files)


def is_engine_for(sidecar: EngineSidecar, device: CudaDevice | None, package: str) -> bool:
    """Return whether an engine was built for this GPU and this version of TensorRT's package.

    An engine for several GPUs or versions, by its options, is for this one too, and so is one of
    trtexec or of a package without a version.
    """
    same_gpu = device is not None and (device.name, device.capability_text) == (
        sidecar.gpu,
        sidecar.capability,
    )
    known = package and sidecar.builder != BuilderChoice.TRTEXEC
    # a package's version may end in `.post1`
    same_version = not known or package.startswith(sidecar.tensorrt)
    return (same_gpu or "hardware_compatible" in sidecar.options) and (
        same_version or "version_compatible" in sidecar.options
    )


def list_option_changes(options: EngineOptions) -> dict[str, str]:
    """Return the options that differ from their defaults, as text."""
    plain = EngineOptions()
    excluded = {"compute_capabilities", "profiles", "plugins", "timing_cache", "weights"}
    return {
        one.name: str(getattr(options, one.name))
        for one in fields(options)
        if one.name not in excluded and getattr(options, one.name) != getattr(plain, one.name)
    }
