"""Records of a model repository: what is packed, what is written, what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from ..core.contract import Array
from ..core.records import FileRecord
from ..core.signature import Signature
from .version_folders import PlannedFile

VERSION_FILE = "modelc.json"  # beside the model file of each version
ENSEMBLE_FILE = "ensemble.json"  # in the version folder of an ensemble of Triton
RECORD_SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ServedTensor:
    """An input or output as a server offers it; a dim is a size, or -1 for any.

    `source` is its name in the signature of the model, which may differ from the file's.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelInterface:
    """The inputs and outputs of an artifact, read from the file and seen in runs of it.

    `batch` is the largest batch if the first dim of every tensor is the batch, else 0. `rows_apart`
    says whether a row's result depends on no other row, None if that was not measured. `has_run`
    says whether the artifact ran here. `gpus` are the compute capabilities that it is built for.
    """

    inputs: tuple[ServedTensor, ...]
    outputs: tuple[ServedTensor, ...]
    batch: int = 0
    rows_apart: bool | None = None
    has_run: bool = False
    gpus: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def tensors(self) -> tuple[ServedTensor, ...]:
        """The inputs, then the outputs."""
        return (*self.inputs, *self.outputs)


@dataclass(frozen=True, kw_only=True)
class VerdictSummary:
    """What the verdict on a packed artifact says; `margin` is in dB."""

    state: str
    device: str
    feeds: int
    margin: float | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PackedVersion:
    """The record beside a packed model: which artifact it is, what was found, and its interface.

    `files` are those of the version's folder. `domain` is the domain of the verdict in the form of
    `--input`. `manifest` is the SHA-256 of the manifest that it was packed from. `allowed` means
    that the artifact had not passed and was packed on request. `settings` are those of the runtime
    that judged it. `classes` are the names of the classes of the output `classes_of`, if one has
    a value for each. Of a folder of several models, `members` are their records by file, with the
    files that each was made from.
    """

    modelc: str
    artifact: str
    target: str
    precision: str
    files: tuple[FileRecord, ...]
    checkpoint: str
    manifest: str
    domain: str
    interface: ModelInterface
    verdict: VerdictSummary | None = None
    allowed: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    classes_of: str = ""
    members: dict[str, PackedVersion] = field(default_factory=dict)
    schema_version: int = RECORD_SCHEMA_VERSION

    @property
    def digests(self) -> tuple[str, ...]:
        """The SHA-256 of its files, sorted: equal for the same artifact."""
        return tuple(sorted(file.sha256 for file in self.files))


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """An artifact on its way into a repository, under the name that clients use.

    `folder` holds `files`, of which the first is the model. `feed` is a recorded feed at the
    typical sizes. `signature` is that of the verdict's domain, `checkpoint` the place of the
    checkpoint if it is on this disk, `config_digest` that of its `config.json`. `beside` are files
    that its runtime reads beside the model. `twins` are further engines of the same model for other
    GPUs, or models that run together with it; `group` is then the name of all together.
    """

    name: str
    folder: Path
    files: tuple[FileRecord, ...]
    record: PackedVersion
    feed: dict[str, Array] = field(default_factory=dict, compare=False)
    signature: Signature = field(default_factory=lambda: Signature(inputs=()))
    checkpoint: Path | None = None
    config_digest: str = ""
    beside: tuple[PlannedFile, ...] = field(default=(), compare=False)
    twins: tuple[ServedModel, ...] = ()
    group: str = ""

    @property
    def interface(self) -> ModelInterface:
        """Its inputs and outputs."""
        return self.record.interface


@dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """How a repository serves its models.

    `gpu` runs them on GPUs, None as they were judged. `instances` is the number of copies of a
    model, `keep` the number of newest versions to serve. `storage_uri` is where a cluster finds the
    repository.
    """

    gpu: bool | None = None
    instances: int = 1
    keep: int = 1
    storage_uri: str = ""


class FaultCode(StrEnum):
    """The rule that a repository breaks."""

    CONFIG = "config"  # missing, unreadable, or not of the server's schema
    UNKNOWN_FIELD = "unknown-field"
    NAME = "name"  # the model's name is not that of its folder, or repeats
    BACKEND = "backend"
    NO_VERSION = "no-version"
    MISSING_FILE = "missing-file"
    UNSAFE_FILE = "unsafe-file"  # a link out of the repository, not a regular file, or too large
    UNREADABLE = "unreadable"  # the model file cannot be read by its runtime
    OTHER_FILE = "other-file"  # a file is not the recorded one
    TENSOR_NAME = "tensor-name"
    TENSOR_ORDER = "tensor-order"
    TENSOR_DTYPE = "tensor-dtype"
    TENSOR_DIMS = "tensor-dims"
    BATCH = "batch"
    WARMUP = "warmup"
    LABELS = "labels"  # other class names than those recorded
    ENSEMBLE = "ensemble"
    VERSION_POLICY = "version-policy"


@dataclass(frozen=True, kw_only=True)
class RepositoryFault:
    """One thing that is wrong in a repository; `place` is a file, a tensor or a field."""

    code: FaultCode
    model: str
    message: str
    hint: str
    version: str = ""
    place: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckedRepository:
    """The result of checking a repository.

    `versions` are those whose model file was compared with the configuration; `unchecked` says of
    the others why not.
    """

    repository: str
    kind: str
    models: tuple[str, ...]
    versions: tuple[str, ...] = ()
    faults: tuple[RepositoryFault, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 if anything is wrong, else 0."""
        return 1 if self.faults else 0


@dataclass(frozen=True, kw_only=True)
class PackedModel:
    """One model of a repository after packing; `is_new` is False where that version was there."""

    name: str
    version: int
    artifact: str
    is_new: bool
    batch: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OmittedArtifact:
    """An artifact that was not packed, why, and what would pack it."""

    model: str
    artifact: str
    reason: str
    hint: str

    @property
    def text(self) -> str:
        """The artifact and the reason."""
        return f"{self.model}: {self.artifact}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class PackReport:
    """What `modelc pack` wrote; `written` are the files beside the models, and changed ones."""

    repository: str
    kind: str
    models: tuple[PackedModel, ...]
    left_out: tuple[OmittedArtifact, ...] = ()
    written: tuple[str, ...] = ()
