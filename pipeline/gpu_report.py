"""What to send back when something fails on a GPU host: `modelc doctor --gpu-report FILE`.

Everything in it is on a list below; a secret in a log line or a value is masked as far as its form
shows it. Nothing is sent anywhere.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from .. import __version__
from ..converters.library_checks import LibraryHost
from ..converters.trt.trt_installation import CudaDevice
from ..core.installation import Diagnosis
from ..core.manifest import Failure, Manifest, Pending
from ..core.records import Artifact, size_text
from ..core.verdict import OutputVerdict, Verdict
from .output_folder import LOGS_FOLDER
from .recorded_run import load_manifest

CONTENTS = (
    "versions of modelc, Python, the system, the NVIDIA driver and CUDA",
    "name, compute capability and memory of each GPU",
    "versions of packages of NVIDIA, torch, ONNX, ONNX Runtime, OpenVINO, numpy and polygraphy",
    "the checks of modelc doctor, with the names of the working folder and the cache folder",
    "environment variables, these alone: {variables}",
    "of an output folder that was given: its steps, artifacts and verdicts",
    "with it the names of inputs, outputs, feeds and layers, sidecars of engines, ends of logs",
    "no weights, feeds, outputs or source code; messages and logs may name paths",
    "the home folder is written as ~, and what looks like a password or a token as ***",
)
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_PACKAGES = re.compile(
    r"(tensorrt|nvidia-|cuda-|torch|onnx|numpy|polygraphy|openvino|modelc|triton)", re.IGNORECASE
)
VARIABLES = (
    "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "LD_PRELOAD", "MODELC_ISOLATE",
    "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS", "PYTHONPATH", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)  # fmt: skip
_LAST_LINES, _LAST_BYTES = 200, 1 << 16  # of a log
_MAX_SIDECAR = 4 << 20  # bytes; layers of a large engine at full verbosity
_MAX_OUTPUTS = 20  # of a verdict: those that failed, then those with the smallest margin
_SIDECAR_SUFFIX = ".engine.json"
_SECRETS = (
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(r"\b(?:hf_|ghp_|github_pat_|sk-|AKIA)[A-Za-z0-9_-]{8,}"),
    re.compile(r"(?i)(?:password|passwd|secret|token|api[_-]?key)\w*[\"']?\s*[=:]\s*\S+"),
)


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """An artifact with the figures of its verdict; `outputs` are the worst ones."""

    artifact: Artifact
    verdict: Verdict | None
    outputs: tuple[OutputVerdict, ...]


@dataclass(frozen=True, kw_only=True)
class FolderReport:
    """An output folder, without its source. `logs` are the last lines of each log, by file."""

    modelc: str
    created: str
    checkpoint: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    environment: dict[str, str]
    steps: tuple[StepReport, ...]
    pending: tuple[Pending, ...]
    failures: tuple[Failure, ...]
    missing: tuple[str, ...]
    sidecars: dict[str, object]
    logs: dict[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class GpuReport:
    """The report; `contains` says what is in it, for whoever sends it."""

    contains: tuple[str, ...]
    created: str
    modelc: str
    python: str
    system: str
    driver: str
    cuda: str
    no_devices: str
    devices: tuple[CudaDevice, ...]
    packages: dict[str, str]
    environment: dict[str, str]
    diagnosis: Diagnosis
    folder: FolderReport | None = None


def make_gpu_report(
    host: LibraryHost,
    diagnosis: Diagnosis,
    folder: Path | None = None,
    variables: Mapping[str, str] = os.environ,
) -> GpuReport:
    """Collect the report of this host; it needs neither a GPU nor TensorRT.

    Raises:
        UsageError: `folder` has no manifest.
    """
    listed = ", ".join(VARIABLES)
    return GpuReport(
        contains=tuple(text.format(variables=listed) for text in CONTENTS),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        modelc=__version__,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        system=f"{platform.platform()} {platform.machine()}",
        driver=_read_driver(),
        cuda=host.driver.cuda,
        no_devices=host.driver.reason,
        devices=host.driver.devices,
        packages={n: v for n, v in sorted(host.packages.versions.items()) if _PACKAGES.match(n)},
        environment={name: mask(variables[name]) for name in VARIABLES if name in variables},
        diagnosis=diagnosis,
        folder=None if folder is None else _report_folder(folder),
    )


def encode_report(report: GpuReport) -> bytes:
    """Return the report as JSON, with every text masked."""
    import msgspec

    plain = json.loads(msgspec.json.encode(report))
    return msgspec.json.format(msgspec.json.encode(_mask_all(plain)), indent=1) + b"\n"


def mask(text: str) -> str:
    """Replace the home folder by `~`, and what looks like a secret by `***`."""
    home = str(Path.home())
    if len(home) > 1:
        text = text.replace(home, "~")
    for pattern in _SECRETS:
        text = pattern.sub("***", text)
    return text


def _mask_all(value: object) -> object:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, list):
        return [_mask_all(one) for one in value]
    if isinstance(value, dict):
        return {mask(name): _mask_all(one) for name, one in value.items()}
    return value


def _read_driver() -> str:
    """Return the line of the kernel module; empty without one."""
    try:
        return _DRIVER_FILE.read_text("utf-8", "replace").partition("\n")[0].strip()
    except OSError:
        return ""


def _report_folder(folder: Path) -> FolderReport:
    manifest = load_manifest(folder)
    files = {file.name for file in manifest.files}
    return FolderReport(
        modelc=manifest.modelc,
        created=manifest.created,
        checkpoint=f"{manifest.checkpoint.kind} {manifest.checkpoint.digest}",
        inputs=tuple(map(str, manifest.signature.inputs)),
        outputs=manifest.signature.outputs,
        environment=manifest.environment,
        steps=tuple(_iter_steps(manifest)),
        pending=manifest.pending,
        failures=manifest.failures,
        missing=tuple(sorted(name for name in files if not (folder / name).is_file())),
        sidecars=dict(_iter_sidecars(folder, files)),
        logs=dict(_iter_logs(folder)),
    )


def _iter_steps(manifest: Manifest) -> Iterator[StepReport]:
    """Yield the artifacts without what was measured of calibration data or by layers of eager."""
    for artifact in manifest.artifacts:
        found = manifest.verdict_of(artifact.name)
        outputs = () if found is None else _pick_outputs(found)
        short = found and replace(
            found, outputs=(), channels=(), groups=(), histograms=(), worst=None
        )
        plain = replace(artifact, calibration=None, accuracy=None, tradeoffs=(), frozen=None)
        yield StepReport(artifact=plain, verdict=short, outputs=outputs)


def _pick_outputs(verdict: Verdict) -> tuple[OutputVerdict, ...]:
    def rank(output: OutputVerdict) -> tuple[bool, float]:
        margin = float("inf") if output.headroom is None else output.headroom
        return output.passed, margin

    return tuple(sorted(verdict.outputs, key=rank)[:_MAX_OUTPUTS])


def _iter_sidecars(folder: Path, files: Iterable[str]) -> Iterator[tuple[str, object]]:
    """Yield the sidecars of engines, which the manifest names, by file."""
    for name in sorted(files):
        path = folder / name
        if not name.endswith(_SIDECAR_SUFFIX) or not path.is_file():
            continue
        size = path.stat().st_size
        if size > _MAX_SIDECAR:
            yield name, f"left out: {size_text(size)}"
            continue
        try:
            yield name, json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            yield name, f"not JSON: {type(error).__name__}"


def _iter_logs(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the last lines of each log that has any."""
    for path in sorted((folder / LOGS_FOLDER).glob("*.log")):
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _LAST_BYTES))
            lines = stream.read().decode("utf-8", "replace").splitlines()
        if lines:
            yield path.name, tuple(lines[-_LAST_LINES:])
