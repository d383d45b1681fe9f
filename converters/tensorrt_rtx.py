"""Engines of TensorRT-RTX: built on this host without a GPU, for RTX GPUs of several generations.

The builder is TensorRT's with strongly typed networks. It logs the layers of the engine with the
types of their operands. Kernels are compiled when an engine is loaded, so a host with a GPU must
judge it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.contract import Converted, Feed, Inspection, Job, Preflight, Readiness
from ..core.kinds import Capture, Precision
from ..core.records import Coverage
from ..core.signature import Signature
from . import tensorrt_engine
from .trt.build_launcher import BuildHost
from .trt.engine_layers import engine_coverage
from .trt.engine_records import read_sidecar
from .trt.trt_callbacks import BUILDER_LOG_SOURCE
from .trt.trt_installation import (
    TrtLibrary,
    builder_readiness,
    find_tensorrt,
    query_driver,
    read_host_versions,
    tensorrt_readiness,
)

if TYPE_CHECKING:
    from .trt.engine_runner import EngineRunner

NAME: str = "tensorrt-rtx"
SUMMARY: str = "TensorRT-RTX engine for RTX GPUs, built without one, with a sidecar"
SUFFIX: str = ".rtx.engine"
PROGRAM: str = "a TensorRT-RTX engine"
INSPECT_OPENS: bool = False  # inspect reads the sidecar
MADE_FROM: Mapping[Precision, str] = tensorrt_engine.MADE_FROM
CAPTURES: tuple[Capture, ...] = ()
DEVICES: tuple[str, ...] = ("cuda",)
FINISHED_BY: str = "build-trt"
FLOOR_FACTOR: float = tensorrt_engine.FLOOR_FACTOR
_MAGIC = b"vtrt"  # the first bytes of an engine; measured with 1.7.1


def readiness() -> Readiness:
    """Check for the package, and for a device to judge an engine; nothing is imported."""
    installed, driver = find_tensorrt(TrtLibrary.RTX), query_driver()
    builder = builder_readiness(installed)
    if not builder.ready or driver.devices:
        return builder
    return replace(tensorrt_readiness(driver, installed), builds=True, version=builder.version)


def claims(path: Path) -> bool:
    """Return whether an .rtx.engine file starts with the magic of TensorRT-RTX."""
    if not path.name.endswith(SUFFIX) or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(_MAGIC)) == _MAGIC


def preflight(job: Job) -> Preflight:
    """Find what TensorRT-RTX would reject in the job's parent."""
    return tensorrt_engine.preflight(job, TrtLibrary.RTX)


def limit_precision(precision: Precision, settings: Mapping[str, str]) -> Precision:
    """Return the precision whose limits apply, which TF32 lowers as in TensorRT."""
    return tensorrt_engine.limit_precision(precision, settings)


def check_settings(signature: Signature, settings: Mapping[str, str]) -> None:
    """Check the optimization profiles against the inputs; errors as for TensorRT's."""
    tensorrt_engine.check_settings(signature, settings)


def convert(job: Job, host: BuildHost = tensorrt_engine.THIS_HOST) -> Converted:
    """Build the engine in a child process and write its sidecar.

    Raises:
        ConversionError: TensorRT-RTX rejected the model, crashed or took too long.
        MissingError: the package is not installed.
        UsageError: an invalid setting, or one that TensorRT-RTX lacks.
    """
    return tensorrt_engine.convert(job, host, TrtLibrary.RTX)


def open_runner(
    path: Path, device: str, signature: Signature, settings: Mapping[str, str] | None = None
) -> EngineRunner:
    """Load an engine on the GPU, which compiles its kernels; errors as for TensorRT's."""
    return tensorrt_engine.open_runner(path, device, signature, settings, TrtLibrary.RTX)


def inspect(path: Path) -> Inspection:
    """Read the sidecar; the engine is code and is not loaded."""
    return tensorrt_engine.inspect(path)


def host_versions() -> Mapping[str, str]:
    """Return the versions of TensorRT-RTX and the driver on this host, and its GPU."""
    return read_host_versions(TrtLibrary.RTX)


def read_metadata(path: Path) -> Mapping[str, str]:
    """Return the metadata of the job from the sidecar."""
    return tensorrt_engine.read_metadata(path)


def coverage(path: Path, example: Feed, device: str) -> Coverage | None:  # noqa: ARG001 - contract
    """Return the dtypes of the layers' operands, which the builder logged; None if it did not.

    The kernels are chosen when the engine is loaded: an FP32 product may then compute in TF32.
    """
    sidecar = read_sidecar(path)
    if not any(layer.computes for layer in sidecar.layers):
        return None
    return replace(engine_coverage(sidecar.layers), source=BUILDER_LOG_SOURCE)
