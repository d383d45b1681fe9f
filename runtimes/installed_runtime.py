"""Another release of a runtime, in an environment of its own, as something that runs artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..converters.onnx_compatibility import explain_incompatibility
from ..converters.onnx_guard import read_graph
from ..converters.onnx_half_emulation import has_half_io
from ..converters.onnx_sessions import has_float8
from ..core.contract import Runner
from ..core.errors import LOGGED, RunnerError
from ..core.events import Tell, ignore_events
from ..core.external_runtime import Versions
from ..core.kinds import Precision
from ..core.process import thread_limit
from ..core.records import Artifact
from ..core.signature import Signature
from .environment_runner import EnvironmentRunner
from .generation_files import OPENVINO_GENAI
from .generation_runtime import GenerationRuntime
from .outside_programs import PRECISION_REASONS
from .runtime_environments import find_environment, provide_environment
from .runtime_requirement import RuntimeRequirement, parse_requirement


@dataclass(frozen=True, kw_only=True)
class InstalledRuntime:
    """A release of a runtime that is installed in an environment: an `ExternalRuntime`.

    `cache` is the folder of the cache that the environment lies in.
    """

    requirement: RuntimeRequirement
    cache: Path

    @property
    def name(self) -> str:
        """The requirement, as `onnxruntime==1.20.1`."""
        return str(self.requirement)

    def decline_reason(self, artifact: Artifact) -> str:
        """Return which formats it opens if this is none of them, or that it has no kernels."""
        opens = self.requirement.definition.targets
        if artifact.target not in opens:
            return f"{self.requirement.package} opens {' and '.join(opens)}, not {artifact.target}"
        if artifact.is_stateful:
            return f"its cache is in states: use {OPENVINO_GENAI}"
        runs = artifact.precision is not Precision.BF16 or not _is_onnx(artifact)
        return "" if runs else PRECISION_REASONS[Precision.BF16]

    def prepare(self, path: Path, artifact: Artifact) -> Versions:  # noqa: ARG002 - the contract's
        """Make its environment if it is not there, and return the versions in it.

        Raises:
            MissingError: it cannot be made.
        """
        found = provide_environment(self.requirement, self.cache)
        names = (self.requirement.package, "numpy")
        versions = {name: found.installed.get(name, "?") for name in names}
        return {**versions, "python": found.python}

    def open(self, path: Path, artifact: Artifact, signature: Signature) -> Runner:
        """Open the artifact in a process of its own.

        Raises:
            RunnerError: the runtime cannot open it.
        """
        found = find_environment(self.requirement, self.cache)
        request = {
            "open": str(path.absolute()), "runtime": self.requirement.definition.module,
            "format": artifact.target, "inputs": [one.name for one in signature.inputs],
            "outputs": list(signature.outputs), "threads": thread_limit(),
            **_onnx_facts(path, artifact),
        }  # fmt: skip
        try:
            return EnvironmentRunner(found.interpreter, request)
        except RunnerError as error:
            version = found.installed.get(self.requirement.package, "")
            release = f"{self.requirement.definition.module}=={version}"
            limits = explain_incompatibility(path, release) if _is_onnx(artifact) else ""
            if not limits:
                raise
            raise RunnerError(f"{limits} ({error.message})", hint=LOGGED) from error


def _is_onnx(artifact: Artifact) -> bool:
    return "onnx" in artifact.target


def _onnx_facts(path: Path, artifact: Artifact) -> Mapping[str, bool]:
    """Return what decides on the settings of a session, as for a session in this process."""
    if not _is_onnx(artifact):
        return {}
    graph = read_graph(path)
    return {"float8": has_float8(graph), "half_io": has_half_io(graph)}


def make_runtime(
    requirement: RuntimeRequirement, cache: Path
) -> InstalledRuntime | GenerationRuntime:
    """Return the runtime of a requirement, whose environment is in the cache or will be."""
    kind = GenerationRuntime if requirement.definition.generates else InstalledRuntime
    return kind(requirement=requirement, cache=cache)


def install_runtime(
    text: str, cache: Path | str, on_event: Tell = ignore_events
) -> InstalledRuntime | GenerationRuntime:
    """Install a release of a runtime, unless the cache has it.

    Args:
        text: as `onnxruntime==1.20.1`.
        cache: the folder of the cache.
        on_event: receives progress events.

    Raises:
        UsageError: the text names no release of a known runtime.
        MissingError: it cannot be installed.
    """
    requirement, cache = parse_requirement(text), Path(cache)
    provide_environment(requirement, cache, on_event)
    return make_runtime(requirement, cache)
