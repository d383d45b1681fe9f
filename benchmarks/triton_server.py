"""Start NVIDIA's tritonserver of the `nvidia-pytriton` wheel on a model repository.

`make test-serve` makes its environment in `build/serve`; `MODELC_SERVE_HOST` names another one.
The wheel has no backend but that for Python models: those of `tests/serving_host/backends` take the
names of Triton's own, so that a repository loads unchanged.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).absolute().parents[1]
_HOST_FILES = _ROOT / "tests/serving_host"
_START_SECONDS = 120.0  # each model's process imports its framework
_STOP_SECONDS = 20.0


def host_environment() -> Path | None:
    """Return the environment with tritonserver; None if it was not made."""
    named = os.environ.get("MODELC_SERVE_HOST")
    folder = Path(named) if named else _ROOT / "build/serve"
    return folder.absolute() if _package(folder).is_dir() else None


def _package(environment: Path) -> Path:
    found = sorted(environment.glob("lib/python3.*/site-packages/pytriton"))
    return found[-1] if found else environment / "missing"


@dataclass(frozen=True, kw_only=True)
class TritonHost:
    """A running server; `log` has what it printed."""

    http: str
    grpc: str
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def run_triton(
    repository: Path, work: Path, *options: str, ready: bool = True
) -> Iterator[TritonHost]:
    """Serve a repository until the end of the context; `work` is an empty folder.

    Raises:
        RuntimeError: there is no environment, or the server did not start; with its last lines.
    """
    environment = host_environment()
    if environment is None:
        raise RuntimeError("tritonserver is not installed: run make test-serve")
    work.mkdir(parents=True, exist_ok=True)
    ports = _free_ports(2)
    log = work / "server.log"
    command = [
        str(_package(environment) / "tritonserver/bin/tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={_make_backends(environment, work / 'backends')}",
        f"--http-port={ports[0]}", f"--grpc-port={ports[1]}", "--allow-metrics=false",
        "--http-address=127.0.0.1", "--grpc-address=127.0.0.1",
        f"--exit-on-error={str(ready).lower()}",
        "--disable-auto-complete-config", "--http-thread-count=4", *options,
    ]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=_variables(environment),
            start_new_session=True,
        )  # fmt: skip
    try:
        _wait_until_live(process, ports[0], log, ready=ready)
        yield TritonHost(
            http=f"http://127.0.0.1:{ports[0]}", grpc=f"grpc://127.0.0.1:{ports[1]}",
            process=process, log=log,
        )  # fmt: skip
    finally:
        _stop(process)


def _make_backends(environment: Path, place: Path) -> Path:
    """Lay out the backends: the wheel's own for Python, and ours for three formats."""
    server = _package(environment) / "tritonserver"
    python = place / "python"
    shutil.copytree(server / "backends/python", python)
    version = next(environment.glob("lib/python3.*")).name.removeprefix("python")
    shutil.copy(server / "python_backend_stubs" / version / "triton_python_backend_stub", python)
    for folder in (_HOST_FILES / "backends").iterdir():
        if (folder / "model.py").is_file():
            shutil.copytree(folder, place / folder.name)
            shutil.copy(_HOST_FILES / "batched_model.py", place / folder.name)
    return place


def _variables(environment: Path) -> dict[str, str]:
    """Return the variables of the server: the environment's Python for the models' processes."""
    package = _package(environment)
    libraries = package.parent / "nvidia_pytriton.libs"
    return {
        "PATH": f"{environment / 'bin'}:{os.environ.get('PATH', '')}",
        "LD_LIBRARY_PATH": str(libraries),
        "PYTHONPATH": str(package.parent),
        "HOME": os.environ.get("HOME", "/"),
        "OMP_NUM_THREADS": "1",
    }


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def _wait_until_live(
    process: subprocess.Popen[bytes], port: int, log: Path, *, ready: bool
) -> None:
    path = "ready" if ready else "live"
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/{path}", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    lines = log.read_text(errors="replace").splitlines()[-40:]
    raise RuntimeError("\n".join(["tritonserver did not start", *lines]))


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and the processes of its models."""
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
