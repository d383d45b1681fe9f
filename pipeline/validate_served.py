"""Judge an artifact of a folder as a server serves it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import ErrorCode, Hint, Option, UsageError, unknown_name_error
from ..core.events import Tell, ignore_events
from ..core.external_runtime import ExternalReport
from ..core.manifest import Manifest
from ..core.records import Artifact
from ..runtimes.served_runtime import FoundModel, ServedRuntime, find_model, find_target
from ..runtimes.v2_client import ServerAddress, parse_address
from .order import Judging
from .recorded_run import Moved, load_manifest
from .validate_external import validate_external

_DIGEST = "modelc_sha256"  # of a model of Triton: the parameter that `modelc pack` writes
_VERSION_DIGEST = re.compile(rf"{_DIGEST}_\d+")


@dataclass(frozen=True, kw_only=True)
class ServedRequest:
    """Which model on which server; `artifact` is the artifact that it is said to serve.

    `url` is `http://HOST:PORT` or `grpc://HOST:PORT`, or the same with https or grpcs. None of
    `model` and `artifact` means the only one that fits. `headers` are sent with each request, as
    `NAME: VALUE`, and shown nowhere. `timeout` is in seconds, of one request.
    """

    url: str
    model: str | None = None
    version: str = ""
    artifact: str | None = None
    headers: tuple[str, ...] = field(default=(), repr=False)
    timeout: float = 60.0

    @property
    def address(self) -> ServerAddress:
        """The address with what every request carries.

        Raises:
            UsageError: it is not an address of a server, or a header is not one.
        """
        return parse_address(self.url, self.headers, self.timeout)


def validate_served(  # noqa: PLR0913 - the options of `modelc validate FOLDER`
    folder: Path | str,
    served: ServedRequest,
    on_event: Tell = ignore_events,
    *,
    moved: Moved | None = None,
    judging: Judging | None = None,
    settings: Mapping[str, str] | None = None,
) -> ExternalReport:
    """Judge an artifact of a folder as a server serves it, and record the verdict.

    Args:
        folder: an output folder.
        served: the model on the server.
        on_event: receives progress events.
        moved: the current places of checkpoint and samples.
        judging: feeds, seed and tolerances; as recorded where not set.
        settings: options of the artifacts' formats, such as consent.

    Raises:
        UsageError: the model or the artifact is unknown, or several fit.
        RunnerError: the server does not answer, or the model is not ready.
        ModelcError: the folder or the checkpoint cannot be used.
    """
    folder, address = Path(folder), served.address
    manifest = load_manifest(folder)
    if served.artifact is not None:
        check_artifact(manifest, served.artifact)
    found = find_model(address, served.model, served.version)
    artifact = served.artifact or choose_artifact(manifest, found)
    runtime = ServedRuntime(
        address=address, model=found.name, version=served.version, pinned=found.version
    )
    return validate_external(
        folder, [runtime], on_event, artifacts=[artifact], moved=moved, judging=judging,
        settings=settings,
    )  # fmt: skip


def check_artifact(manifest: Manifest, name: str) -> None:
    """Check that a folder has an artifact.

    Raises:
        UsageError: it has none of this name.
    """
    names = [one.name for one in manifest.artifacts]
    if name not in names:
        raise unknown_name_error("artifact", name, names or ["(none)"])


def choose_artifact(manifest: Manifest, found: FoundModel) -> str:
    """Return the name of the artifact that the server says it serves.

    By a digest among the parameters of the model's configuration, else by its platform, else the
    only one.

    Raises:
        UsageError: several fit, or none.
    """
    passed = [one for one in manifest.artifacts if _has_passed(manifest, one)]
    config = found.model.config
    digests = _list_digests(config.parameters if config is not None else {}, found.version)
    stated = [one for one in passed if one.files[0].sha256 in digests]
    target = find_target(found)
    fitting = stated or [one for one in passed if one.target == target] or passed
    if len(fitting) == 1:
        return fitting[0].name
    names = ", ".join(one.name for one in fitting)
    raise UsageError(
        f"the server may serve any of {names}" if fitting
        else "no artifact of the folder passed in modelc",
        hint=Hint("name the artifact that it serves: ", Option("artifact", "NAME")) if fitting
        else "export again, and look at the reasons of the verdicts",
        option="artifact", code=ErrorCode.UNKNOWN_NAME,
    )  # fmt: skip


def _list_digests(parameters: Mapping[str, str], version: str) -> set[str]:
    """Return the parameters that may be the digest of a version: its own, else of no version."""
    own = {key: text for key, text in parameters.items() if _VERSION_DIGEST.fullmatch(key)}
    known = own.get(f"{_DIGEST}_{version}")
    others = {text for key, text in parameters.items() if key not in own}
    return others if known is None else {known}


def _has_passed(manifest: Manifest, artifact: Artifact) -> bool:
    verdict = manifest.verdict_of(artifact.name)
    return verdict is not None and verdict.passed
