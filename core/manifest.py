"""The Manifest: the record of one output folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .compile_records import CompiledVerdict
from .errors import Hint, MissingError, Option, RunnerError
from .external_runtime import ExternalVerdict
from .findings import BranchRecord, FeedRecord, Localisation, PipelineComparison, Warned
from .generation import TokenPlan
from .kinds import Precision
from .model_meta import ModelMeta
from .records import Artifact, Attempt, Checkpoint, Dependencies, FileRecord, artifact_names
from .signature import Signature
from .verdict import Limits, State, Verdict

SCHEMA_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class FeedPlan:
    """How the validation feeds were drawn, to draw them again.

    `samples` is the user's sample file, relative to the manifest's folder. `drawn` are the feeds,
    including those that eager rejected. `tokens` are the sequences of a decoder.
    """

    count: int
    seed: int
    samples: str | None = None
    samples_digest: str | None = None
    drawn: tuple[FeedRecord, ...] = ()
    tokens: TokenPlan | None = None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A step without an artifact to judge; `exit_code` is its error's.

    `key` is the step's, as an artifact's is, if the same step would fail again; empty for a failure
    that may pass. `advice` is the hint with its options separate, for other spellings of them.
    `orphan_of` is the rejected step that it was to be made from.
    """

    step: str
    message: str
    hint: str
    exit_code: int
    advice: tuple[str | Option, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    key: str = ""
    orphan_of: str = ""

    @property
    def full_hint(self) -> Hint:
        """The hint with its options separate, if recorded."""
        return Hint(*(self.advice or (self.hint,)))


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A step that this host prepared and another must finish: nothing of it is judged.

    `files` are in `pending/` if the step was built here and only has to run, with `versions`,
    `options`, `notes` and `judged_as` of the conversion. `made_from` and `parent` are name and
    SHA-256 of the artifact to build from, `reason` is why it was not finished here; `command` with
    the folder appended finishes it. `warnings` and `memory` (estimated bytes) are the results of
    the pre-flight, by the rules of `source`. `references` are files with the feeds and eager's
    outputs, with which the step is judged where the checkpoint or its code is missing. `limits` are
    those that were asked for, by output; `""` is for all.
    """

    step: str
    target: str
    precision: Precision
    made_from: str
    parent: str
    reason: str
    command: str
    warnings: tuple[str, ...] = ()
    memory: int = 0
    source: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    files: tuple[FileRecord, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    judged_as: Precision | None = None
    references: tuple[FileRecord, ...] = ()
    limits: dict[str, Limits] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Request, checkpoint, signature, artifacts with lineage, verdicts, versions.

    `fingerprint` is eager's result on a fixed feed, by output: mean and L2 norm; it identifies the
    same weights in other code. `branches` are those of the user's forward code that depend on
    tensor data, `warned` the frameworks' warnings at the user's lines, `localisations` the results
    of `modelc debug`. `needs` are the dependencies besides the request, `replaced` what
    `--overwrite` moved aside, if still there. `compiled` are the verdicts on torch.compile,
    `external` those on artifacts as other runtimes ran them.
    `meta` is what was declared of the model; each artifact has it inside. `pipeline` is the user's
    Python pipeline that eager agrees with.
    """

    modelc: str
    created: str
    order: dict[str, str]
    checkpoint: Checkpoint
    signature: Signature
    feeds: FeedPlan
    environment: dict[str, str]
    fingerprint: dict[str, tuple[float, float]] = field(default_factory=dict)
    artifacts: tuple[Artifact, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    failures: tuple[Failure, ...] = ()
    pending: tuple[Pending, ...] = ()
    notes: tuple[str, ...] = ()
    branches: tuple[BranchRecord, ...] = ()
    warned: tuple[Warned, ...] = ()
    localisations: tuple[Localisation, ...] = ()
    steps: tuple[str, ...] = ()  # what the last run converted or judged, by artifact name
    needs: Dependencies = field(default_factory=Dependencies)
    replaced: tuple[FileRecord, ...] = ()
    compiled: tuple[CompiledVerdict, ...] = ()
    external: tuple[ExternalVerdict, ...] = ()
    meta: ModelMeta = field(default_factory=ModelMeta)
    pipeline: PipelineComparison | None = None
    schema_version: int = field(default=SCHEMA_VERSION)
    seal: str = field(default="", compare=False)  # last: it covers the text before it

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """The files of all artifacts, including rejected ones, and of pending steps; each once."""
        made = (file for artifact in self.artifacts for file in artifact.files)
        waiting = (file for one in self.pending for file in (*one.files, *one.references))
        return tuple(dict.fromkeys((*made, *waiting)))

    def verdict_of(self, artifact: str) -> Verdict | None:
        """Return the verdict on an artifact, if it was judged."""
        return next((v for v in self.verdicts if v.artifact == artifact), None)

    def signature_of(self, artifact: Artifact) -> Signature:
        """Return the inputs of an artifact's domain, and the outputs."""
        domain = artifact.domain
        return self.signature if domain is None else replace(self.signature, inputs=domain.inputs)

    @property
    def steps_pending(self) -> tuple[Pending, ...]:
        """The pending steps, except those that were tried and failed."""
        broken = {failure.step for failure in self.failures}
        return tuple(pending for pending in self.pending if pending.step not in broken)

    @property
    def unmade(self) -> tuple[str, ...]:
        """The steps of the last run that a killed process did not come to."""
        known = {artifact.name for artifact in self.artifacts}
        known |= {name.removeprefix("rejected/") for name in known}
        known |= {one.step for one in self.failures} | {one.step for one in self.pending}
        return tuple(step for step in self.steps if step not in known)

    @property
    def passed(self) -> bool:
        """Whether every artifact passed, and no step failed, is pending or was not reached."""
        verdicts = [self.verdict_of(artifact.name) for artifact in self.artifacts]
        judged = bool(verdicts) and all(v is not None and v.passed for v in verdicts)
        return judged and not self.failures and not self.pending and not self.unmade

    @property
    def exit_code(self) -> int:
        """The last run's exit code: 0 passed; 1 rejected; else the failed step's own code.

        A pending step gives 4, as a dependency is missing here; one that was not reached gives 6.
        """
        mine = artifact_names(self.steps)
        states = [verdict.state for verdict in self.verdicts if verdict.artifact in mine]
        if State.FAILED in states:
            return 1
        codes = [failure.exit_code for failure in self.failures if failure.step in mine]
        if codes:
            return codes[0]
        if State.ERROR in states:
            return RunnerError.exit_code
        if any(pending.step in mine for pending in self.pending):
            return MissingError.exit_code
        return 0 if states and not self.unmade else RunnerError.exit_code
