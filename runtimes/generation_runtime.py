"""A runtime for generation in an environment of its own: its loop, from prompts to tokens."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.contract import Runner
from ..core.errors import LOGGED, RunnerError
from ..core.external_runtime import Versions
from ..core.generation import PAST, find_cached_loop
from ..core.process import thread_limit
from ..core.records import Artifact
from ..core.signature import Signature
from .environment_runner import EnvironmentRunner
from .generation_files import (
    GENAI_CONFIG,
    OPENVINO_GENAI,
    OPENVINO_MODEL,
    GenerationSettings,
    make_genai_config,
)
from .runtime_environments import find_environment, provide_environment
from .runtime_requirement import RuntimeRequirement


@dataclass(frozen=True, kw_only=True)
class GenerationRuntime:
    """A release of onnxruntime-genai or openvino-genai: a `GeneratingRuntime`.

    `cache` is the folder of the cache that its environment lies in.
    """

    requirement: RuntimeRequirement
    cache: Path

    @property
    def name(self) -> str:
        """The requirement, as `onnxruntime-genai==0.18.0`."""
        return str(self.requirement)

    def decline_reason(self, artifact: Artifact) -> str:
        """Return why it cannot run this artifact."""
        package, opens = self.requirement.package, self.requirement.definition.targets
        if artifact.target not in opens:
            return f"{package} opens {' and '.join(opens)}, not {artifact.target}"
        if package == OPENVINO_GENAI and not artifact.is_stateful:
            return "its cache is not in states: export it with --stateful"
        inputs = () if artifact.domain is None else artifact.domain.inputs
        if not any(spec.name.startswith(f"{PAST}.") for spec in inputs):
            return "it is no decoder with a cache: --model-arg task=text-generation-merged"
        return ""

    def prepare(self, path: Path, artifact: Artifact) -> Versions:  # noqa: ARG002 - the contract's
        """Make its environment if it is not there, and return the versions in it.

        Raises:
            MissingError: it cannot be made.
        """
        found = provide_environment(self.requirement, self.cache)
        names = [n for n in found.installed if n.startswith(("onnxruntime", "openvino"))]
        return {**{name: found.installed[name] for name in sorted(names)}, "python": found.python}

    def open(self, path: Path, artifact: Artifact, signature: Signature) -> Runner:  # noqa: ARG002 - the contract's
        """Raise: it takes prompts alone."""
        raise RunnerError(f"{self.name} takes prompts, no feeds", hint="generate tokens")

    def open_generator(
        self, path: Path, artifact: Artifact, signature: Signature, end: int
    ) -> FolderGenerator:
        """Open the artifact in a process of its own.

        Raises:
            RunnerError: the runtime cannot open it.
        """
        found = find_environment(self.requirement, self.cache)
        folder = tempfile.TemporaryDirectory(prefix="modelc-generation-")
        try:
            if self.requirement.package == OPENVINO_GENAI:
                _link_openvino(path, Path(folder.name))
            else:
                _link_onnx(path, artifact, Path(folder.name))
                config = _make_config(path.name, signature, end)
                Path(folder.name, GENAI_CONFIG).write_text(json.dumps(config), encoding="utf-8")
            request = {
                "open": folder.name, "runtime": self.requirement.definition.module,
                "threads": thread_limit(), "end": end,
            }  # fmt: skip
            return FolderGenerator(EnvironmentRunner(found.interpreter, request), folder)
        except BaseException:
            folder.cleanup()
            raise


class FolderGenerator:
    """A folder that is open in a process of another environment."""

    def __init__(
        self, process: EnvironmentRunner, folder: tempfile.TemporaryDirectory[str]
    ) -> None:
        self._process, self._folder = process, folder

    def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return the next tokens after a prompt, at most `count`.

        Raises:
            RunnerError: the runtime failed, or gave no tokens.
        """
        answer = self._process.ask({"prompt": [int(one) for one in prompt], "count": count})
        given = answer.get("tokens")
        tokens = [one for one in given if type(one) is int] if isinstance(given, list) else []
        if not tokens or len(tokens) > count:
            raise RunnerError(f"it gave {len(tokens)} tokens, not {count}", hint=LOGGED)
        return tokens

    def __enter__(self) -> FolderGenerator:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()
        self._folder.cleanup()


def _link_openvino(path: Path, folder: Path) -> None:
    for suffix in (".xml", ".bin"):
        _link(path.with_suffix(suffix), (folder / OPENVINO_MODEL).with_suffix(suffix))
    (folder / "config.json").write_text("{}", encoding="utf-8")


def _link_onnx(path: Path, artifact: Artifact, folder: Path) -> None:
    for file in artifact.files:
        own = path.parent / Path(file.name).name
        if file.role != "debug" and own.is_file():
            _link(own, folder / own.name)


def _make_config(model_file: str, signature: Signature, end: int) -> dict[str, Any]:
    """Return the configuration as `modelc pack` writes it, of this end token.

    The runtime hides each token that is the one for padding.

    Raises:
        RunnerError: it is no decoder with a cache.
    """
    loop = find_cached_loop(signature)
    if loop is None:
        raise RunnerError("it is no decoder with a cache", hint="export it as one")
    values = next(spec.values for spec in signature.inputs if spec.name == loop.ids)
    size = None if values is None else int(values.high) + 1
    settings = GenerationSettings(vocabulary=size, ends=(end,), pad=end)
    config = make_genai_config(settings, signature, loop, model_file)
    if (threads := thread_limit()) is not None:
        config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
    return config


def _link(source: Path, place: Path) -> None:
    """Link a file: some releases reject weights behind symbolic links, which other disks need."""
    try:
        os.link(source, place)
    except OSError:
        place.symlink_to(source.absolute())
