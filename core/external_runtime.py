"""What runs artifacts outside this process, and the verdicts on their outputs there.

A server, a program in another language, or another version of a runtime: each is an
`ExternalRuntime`. Feeds, eager outputs and rules are those of `modelc validate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeAlias, runtime_checkable

from .contract import Array, Feed, Outputs, Runner, Target
from .errors import RunnerError
from .records import Artifact
from .signature import Signature
from .verdict import Reason, State, Verdict

Versions: TypeAlias = dict[str, str]


class ExternalRuntime(Protocol):
    """Something other than this process that runs artifacts.

    An implementation is a frozen dataclass, as it is sent to the child process that judges.
    """

    @property
    def name(self) -> str:
        """Its name in verdicts and tables, as `onnxruntime==1.20.1`; the same in later runs."""
        ...

    def decline_reason(self, artifact: Artifact) -> str:
        """Return why it cannot run this artifact, without starting anything; empty if it can."""
        ...

    def prepare(self, path: Path, artifact: Artifact) -> Versions:
        """Start or build what `open` requires, and return the versions of what will run.

        Raises:
            ModelcError: it is not available, or cannot be made here.
        """
        ...

    def open(self, path: Path, artifact: Artifact, signature: Signature) -> Runner:
        """Open an artifact there; called after `prepare`, maybe several times.

        The runner returns outputs under eager's names (`signature.outputs`), with the dtypes and
        shapes that the runtime gave.

        Raises:
            RunnerError: the runtime cannot open it.
        """
        ...


@runtime_checkable
class RuntimeFamily(Protocol):
    """Several runtimes, one for each kind of artifact, where each artifact has one at most.

    An implementation is a frozen dataclass, as the runtimes are.
    """

    def member_for(self, artifact: Artifact) -> ExternalRuntime:
        """Return the runtime of an artifact; one that declines it if there is none."""
        ...


@dataclass(frozen=True, kw_only=True)
class OutputForm:
    """Dtype and dims of an eager output over all feeds; a dim that varies is -1."""

    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """How a runtime's description of an artifact agrees with the artifact.

    `reasons` reject the artifact. It is run only if it is `runnable`.
    """

    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()
    runnable: bool = True


@runtime_checkable
class DescribingRuntime(ExternalRuntime, Protocol):
    """A runtime with a description of inputs and outputs that may differ from the artifact's."""

    def check_declared(
        self, artifact: Artifact, signature: Signature, outputs: Mapping[str, OutputForm]
    ) -> Declaration:
        """Compare the description with the signature; called after `prepare`.

        `outputs` are the forms of eager's outputs, except of those whose rank varies.

        Raises:
            RunnerError: there is no description to read.
        """
        ...


@runtime_checkable
class ConcurrentRuntime(ExternalRuntime, Protocol):
    """A runtime that takes several feeds at the same time, and may mix them up."""

    def run_together(
        self, artifact: Artifact, signature: Signature, feeds: Sequence[Feed]
    ) -> list[list[Outputs | None]]:
        """Run all feeds at the same time, each several times; return all outputs of each feed.

        None stands for a feed that was rejected.
        """
        ...


class TokenGenerator(Protocol):
    """A decoder opened in a runtime for generation; a context manager, as a runner is."""

    def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return the next tokens after a prompt: at each step the one with the largest logit.

        There may be fewer than `count`: an end token ends them.

        Raises:
            RunnerError: the runtime failed.
        """
        ...

    def __enter__(self) -> TokenGenerator: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class GeneratingRuntime(ExternalRuntime, Protocol):
    """A runtime that has the loop of a decoder, and takes no other feeds than prompts."""

    def open_generator(
        self, path: Path, artifact: Artifact, signature: Signature, end: int
    ) -> TokenGenerator:
        """Open an artifact there, with an end token that no text has; called after `prepare`.

        Raises:
            RunnerError: the runtime cannot open it.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ExternalVerdict:
    """The verdict on an artifact as an external runtime ran it, in a manifest.

    `runtime` is the runtime's name, `versions` what it reported of itself, and `sha256` the digest
    of the artifact's files: weights may lie beside the model. The verdict holds for these alone.
    """

    runtime: str
    verdict: Verdict
    sha256: str
    versions: Versions = field(default_factory=dict)

    def is_stale(self, artifact: Artifact | None) -> bool:
        """Return whether it is on other files than those of the artifact now."""
        return artifact is None or artifact.joint_digest != self.sha256


@dataclass(frozen=True, kw_only=True)
class DeclinedArtifact:
    """An artifact that an external runtime did not run, and why."""

    runtime: str
    artifact: str
    reason: str


HERE = "here"  # this process, as a side of a drift


@dataclass(frozen=True, kw_only=True)
class RuntimeDrift:
    """How far an artifact's outputs in two runtimes are apart, on the feeds nearest to a limit.

    `first` and `second` are names of runtimes, or `here`. `feed` and `output` are those farthest
    apart, `sqnr` is the distance in dB from the first, None if they are equal or cannot be
    subtracted, and `limit` the SQNR below which they are farther apart than the noise of the
    artifact allows. `fault` says why they cannot be compared.
    """

    artifact: str
    first: str
    second: str
    feed: str
    output: str
    max_abs: float | None
    sqnr: float | None
    limit: float
    fault: str = ""

    @property
    def beyond(self) -> bool:
        """Whether they are farther apart than the noise."""
        return bool(self.fault) or (self.sqnr is not None and self.sqnr < self.limit)


@dataclass(frozen=True, kw_only=True)
class ExternalReport:
    """The result of `validate_external`: each artifact judged in each runtime, or declined.

    `here` are the verdicts of the manifest on the judged artifacts, made in this process. `drift`
    is measured on demand.
    """

    judged: tuple[ExternalVerdict, ...]
    declined: tuple[DeclinedArtifact, ...] = ()
    here: tuple[Verdict, ...] = ()
    drift: tuple[RuntimeDrift, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 if every judged artifact passed, 1 if one was rejected, else that of a failed run."""
        states = {one.verdict.state for one in self.judged}
        if State.FAILED in states:
            return 1
        return 0 if states == {State.PASSED} else RunnerError.exit_code


def keep_latest(
    known: tuple[ExternalVerdict, ...], fresh: tuple[ExternalVerdict, ...]
) -> tuple[ExternalVerdict, ...]:
    """Return all verdicts; a fresh one replaces that on the same artifact in the same runtime."""
    keys = {(one.runtime, one.verdict.artifact) for one in fresh}
    return (*(one for one in known if (one.runtime, one.verdict.artifact) not in keys), *fresh)


def facts_of(versions: Mapping[str, str]) -> str:
    """Return versions in one line: `onnxruntime 1.20.1, python 3.11.7`."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


# A model file that takes eager's place, as its own runtime runs it.


class OpenedReference(Runner, Protocol):
    """A model file opened as the reference of others: its outputs, and how roundoff moves them."""

    @property
    def runtime(self) -> str:
        """The runtime with its version, for people."""
        ...

    @property
    def tests_nonfinite(self) -> bool:
        """Whether the graph tests for NaN or Inf."""
        ...

    @property
    def rounds_to_integers(self) -> bool:
        """Whether the graph may make integers of floats."""
        ...

    def run_exact(self, feed: Feed) -> Outputs:
        """Run one feed in float64.

        Raises:
            RunnerError: the graph has no float64.
        """
        ...

    def run_sequential_sums(self, feed: Feed) -> Outputs:
        """Run one feed in float32 with sequential sums and means; errors as of `run_exact`."""
        ...

    def run_perturbed(self, feed: Feed, share: float, seed: int) -> Outputs:
        """Run one feed with weights perturbed by a random `share` of themselves."""
        ...

    def weights(self) -> dict[str, Array]:
        """Return the float32 constants that an artifact of the same model holds, by name."""
        ...


@runtime_checkable
class ReferenceMaker(Target, Protocol):
    """A target whose files can be the reference with a noise floor."""

    def open_reference(self, path: Path) -> OpenedReference:
        """Open a model file as a reference on the CPU.

        Raises:
            RunnerError: the runtime cannot open it.
        """
        ...
