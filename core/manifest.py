"""The Manifest: the record of one output folder."""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import Hint, MissingError, Option, RunnerError
from .findings import BranchRecord, FeedRecord, Localisation, Warned
from .kinds import Precision
from .records import Artifact, Attempt, Checkpoint, Dependencies, FileRecord, artifact_names
from .signature import Signature
from .verdict import State, Verdict

SCHEMA_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class FeedPlan:
    """How the validation feeds were drawn, so that they can be drawn again.

    `samples` is the user's own sample file, relative to the manifest's folder. `drawn` are the
    feeds themselves, those that eager rejected among them.
    """

    count: int
    seed: int
    samples: str | None = None
    samples_digest: str | None = None
    drawn: tuple[FeedRecord, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A step that gave no artifact to judge; `exit_code` is its error's.

    `key` is that of its step, as an artifact's is, where the same step would end so again; of a
    failure that may pass it is empty. `advice` is the hint with its options apart, for those who
    spell them in another way. `orphan_of` is the step that it was to be made from, where
    that was refused.
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
        """The hint with its options apart, where these are on record."""
        return Hint(*(self.advice or (self.hint,)))


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A step that this host prepared and another must finish: nothing of it was built or proven.

    `made_from` and `parent` are name and SHA-256 of the artifact to build from, `reason` is why
    it was not built here; `command`, followed by the folder, finishes it. `warnings` and `memory`
    (bytes, an estimate) are what the pre-flight found, by the rules of `source`.
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


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Order, checkpoint, signature, artifacts with lineage, verdicts, versions.

    `fingerprint` is what eager gave on a fixed feed, by output: mean and L2 norm. It tells the
    same weights in other code. `branches` are those of the user's forward code that depend on
    tensor data, `warned` what frameworks said of the user's lines, `localisations` what
    `modelc debug` found. `needs` is what was read beside the order, `replaced` what `--overwrite`
    moved aside and is there still.
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
    steps: tuple[str, ...] = ()  # what the last run made or judged, by artifact name
    needs: Dependencies = field(default_factory=Dependencies)
    replaced: tuple[FileRecord, ...] = ()
    schema_version: int = field(default=SCHEMA_VERSION)
    seal: str = field(default="", compare=False)  # the last of all: it covers the text before it

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """The files of all artifacts, rejected ones included."""
        return tuple(file for artifact in self.artifacts for file in artifact.files)

    def verdict_of(self, artifact: str) -> Verdict | None:
        """The verdict on the artifact of that name, if it was judged."""
        return next((v for v in self.verdicts if v.artifact == artifact), None)

    @property
    def steps_pending(self) -> tuple[Pending, ...]:
        """The pending steps, less those that were tried and failed."""
        broken = {failure.step for failure in self.failures}
        return tuple(pending for pending in self.pending if pending.step not in broken)

    @property
    def unmade(self) -> tuple[str, ...]:
        """The steps of the last run that it never came to the end of, as it was killed."""
        known = {artifact.name for artifact in self.artifacts}
        known |= {name.removeprefix("rejected/") for name in known}
        known |= {one.step for one in self.failures} | {one.step for one in self.pending}
        return tuple(step for step in self.steps if step not in known)

    @property
    def passed(self) -> bool:
        """Whether every artifact was judged and passed, and no step failed, waits or is unmade."""
        verdicts = [self.verdict_of(artifact.name) for artifact in self.artifacts]
        judged = bool(verdicts) and all(v is not None and v.passed for v in verdicts)
        return judged and not self.failures and not self.pending and not self.unmade

    @property
    def exit_code(self) -> int:
        """Of the last run: 0 proven; 1 judged and wrong; else the failed step's own code.

        A pending step is 4, as what it needs is missing here; one that was not come to is 6.
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
