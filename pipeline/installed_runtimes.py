"""Provide the environments of other runtimes that can run artifacts of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..core.errors import ErrorCode, Hint, Option, UsageError
from ..core.events import Tell, ignore_events
from ..core.external_runtime import ExternalRuntime
from ..runtimes.installed_runtime import make_runtime
from ..runtimes.runtime_environments import provide_environment
from ..runtimes.runtime_requirement import parse_requirement
from .recorded_run import load_manifest


def provide_runtimes(
    folder: Path, texts: Sequence[str], cache: Path, on_event: Tell = ignore_events
) -> tuple[ExternalRuntime, ...]:
    """Return the runtimes that `--in` names, installed; each opens an artifact of the folder.

    Args:
        folder: an output folder.
        texts: as `onnxruntime==1.20.1`.
        cache: the folder of the cache.
        on_event: receives progress events.

    Raises:
        UsageError: a text names no release of a known runtime, or it opens no artifact.
        MissingError: a runtime cannot be installed.
    """
    requirements = tuple(dict.fromkeys(map(parse_requirement, texts)))
    found = {one.target for one in load_manifest(folder).artifacts if not one.rejected}
    for one in requirements:
        if not found.intersection(one.definition.targets):
            raise UsageError(
                f"--in {one}: {one.package} opens {' and '.join(one.definition.targets)}, "
                f"and {folder} has {', '.join(sorted(found)) or 'no artifact'}",
                hint=Hint("export it with ", Option("to", one.definition.targets[0])),
                option="in",
                code=ErrorCode.UNSUPPORTED,
            )
    for one in requirements:
        provide_environment(one, cache, on_event)
    return tuple(make_runtime(one, cache) for one in requirements)
