"""Write KServe's InferenceService beside a repository of Triton, and check both."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from ..core.errors import ErrorCode, UsageError
from .repository_reader import RepositoryReader
from .repository_records import ServingOptions
from .triton_check import check_triton

SERVICE_FILE = "inferenceservice.yaml"
_RUNTIME = "kserve-tritonserver"
_MAX_NAME = 63  # characters of a DNS label


def plan_service(repository: Path, options: ServingOptions, *, gpu: bool) -> dict[str, bytes]:
    """Return the manifest of the service; none if there is one, which may have been edited.

    Raises:
        UsageError: no `storage_uri` is given for a new one.
    """
    if (repository / SERVICE_FILE).exists():
        return {}
    if not options.storage_uri:
        raise UsageError(
            "--to kserve needs the place where the cluster finds the repository",
            hint="give it, as --storage-uri pvc://models/repository or s3://bucket/repository",
            option="storage-uri",
            code=ErrorCode.INVALID_VALUE,
        )
    lines = _service_lines(service_name(repository.resolve().name), options.storage_uri, gpu=gpu)
    return {SERVICE_FILE: "".join(f"{line}\n" for line in lines).encode()}


def service_name(folder: str) -> str:
    """Return a name that Kubernetes accepts, made of the folder's."""
    plain = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")[:_MAX_NAME].strip("-")
    return plain if plain and plain[0].isalpha() else f"models-{plain}".strip("-")


def _service_lines(name: str, uri: str, *, gpu: bool) -> Iterable[str]:
    yield from (
        "apiVersion: serving.kserve.io/v1beta1",
        "kind: InferenceService",
        "metadata:",
        f"  name: {json.dumps(name)}",
        "spec:",
        "  predictor:",
        "    model:",
        "      modelFormat:",
        '        name: "triton"',
        f"      runtime: {json.dumps(_RUNTIME)}",
        '      protocolVersion: "v2"',
        f"      storageUri: {json.dumps(uri)}",
    )
    if gpu:
        yield from ("      resources:", "        limits:", '          nvidia.com/gpu: "1"')


def check_kserve(reader: RepositoryReader) -> tuple[str, ...]:
    """Check the models of the repository, and that the service's manifest is a file."""
    reader.find_file(reader.root, SERVICE_FILE, ("", ""))
    return check_triton(reader)
