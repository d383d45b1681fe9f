"""Records of a manifest: files with their digests, checkpoints, artifacts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .domain import Domain
from .findings import Accuracy, TradeOff
from .hub_ids import HubOrigin
from .kinds import Precision
from .verdict import Tolerance

UNKNOWN_DTYPE = "unknown"  # of layers whose compute dtype cannot be read
PENDING_FOLDER = "pending"  # of files that are built and not judged yet
REJECTED_FOLDER = (
    "rejected"  # the folder of rejected files, and the prefix of a rejected artifact's name
)
_CLOCK_ERROR = 0.05  # milliseconds: less is the call, not the model


def step_of(artifact: str) -> str:
    """Return the step that made an artifact, which may be rejected."""
    return artifact.removeprefix(f"{REJECTED_FOLDER}/")


def artifact_names(steps: Iterable[str]) -> frozenset[str]:
    """Return all names that artifacts of the steps may have, including those of rejected ones."""
    own = frozenset(steps)
    return own | {f"{REJECTED_FOLDER}/{step}" for step in own}


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """One file: `name` is relative to the folder of its owner, `size` is in bytes."""

    name: str
    size: int
    sha256: str
    role: str = "model"  # model | data | debug | weights | config | samples | references


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Weights on disk and how to build their module. Holds no torch object.

    `path` is relative to the manifest's folder once written there, or the id of a commit on the
    hub. `digest` is the SHA-256 of the one file, or of the sorted list of names and SHA-256s of
    several. `hub` is the commit that it was downloaded from.
    """

    path: str
    kind: str
    digest: str
    files: tuple[FileRecord, ...]
    factory: str | None = None
    factory_args: dict[str, str] = field(default_factory=dict)
    strict: bool = True
    allow_pickle: bool = False
    method: str | None = None  # called instead of forward
    drop_outputs: tuple[str, ...] = ()  # names of outputs to drop
    weights_key: str | None = None  # the one used of several sets of weights
    preprocess: str = ""  # steps inside the model, before it, as `--preprocess` writes them
    preprocess_input: str = ""  # the input that they make
    postprocess: str = ""  # steps inside the model, after it
    hub: HubOrigin | None = None

    @property
    def title(self) -> str:
        """Its id on the hub, or the last part of its path."""
        return self.hub.id if self.hub else self.path.replace("\\", "/").rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """What a run read besides its request: the user's modules and files, loaded packages.

    `files` is SHA-256 by path, with `/`, relative to the folder where the run started if it is
    below that; `absent` for a missing file. `packages` is version by distribution name. `declared`
    is one digest per entry of `depends`: a glob, or `env:NAME`.
    """

    files: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    declared: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A capture or quantizer that was tried for an artifact, and why it was kept or not.

    `rest` is the precision of the layers that a quantizer left, where it was tried with another
    than asked for.
    """

    capture: str
    outcome: str  # passed | failed | error
    reason: str
    seconds: float
    sqnr: float | None = None  # dB, the worst of the feeds that it was judged on
    latency: Latency | None = None
    size: int | None = None  # bytes
    rewrites: tuple[str, ...] = ()
    rest: Precision | None = None

    @property
    def label(self) -> str:
        """The capture or quantizer, with the rest if it differs: `modelopt, rest fp32`."""
        return self.capture if self.rest is None else f"{self.capture}, rest {self.rest}"


@dataclass(frozen=True, kw_only=True)
class CalibrationRecord:
    """The samples that a quantized artifact was calibrated with.

    `source` is a path relative to the manifest's folder, a `package.module:loader` or `random`.
    `digest` is the SHA-256 over the samples as fed: names, dtypes, shapes and bytes, in order.
    `held_out` samples were kept from calibration to judge with.
    """

    source: str
    kind: str  # folder | shards | loader | random
    found: int
    used: int
    held_out: int
    selection: str  # first | random
    seed: int
    digest: str
    preprocess: str = ""
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """The compute dtypes of an artifact, measured on the artifact itself.

    `layers` counts compute layers (convolutions, matrix products, recurrent cells) by dtype, where
    `unknown` stands for layers that could not be read; `share` is each dtype's part of the work,
    0 to 1, where `work` is the unit.
    """

    layers: dict[str, int]
    share: dict[str, float]
    work: str  # FLOPs | time | layers
    source: str  # ONNX types | OpenVINO runtime model | TensorRT engine inspector


# Two processes of one model may differ for good, by where their memory lies: at most by 0.4 % in
# 20 runs of `benchmarks/benchmark_noise.py` on two idle cores. Within this of 1, a ratio says
# nothing.
LEAST_RATIO = 1.03


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Both ends of a confidence interval, in the unit of its statistic."""

    low: float
    high: float

    def is_above(self, other: Interval) -> bool:
        """Whether all of this interval of a ratio is above another by more than `LEAST_RATIO`."""
        return self.low > other.high * LEAST_RATIO

    @property
    def is_difference(self) -> bool:
        """Whether a ratio with this interval is one: all of it is beyond `LEAST_RATIO`."""
        return self.is_above(_EQUAL) or _EQUAL.is_above(self)


_EQUAL = Interval(low=1.0, high=1.0)


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Milliseconds of a run at the smallest batch, beside the FP32 parent in the same rounds.

    `ratio` is the median over `rounds` of its time divided by the parent's, `low` and `high` its
    99 % interval. `noise` is half of the interval's width as a share of the ratio. Records of older
    versions have nothing but that: two standard errors, or the 5 % that was assumed. `other_load`
    is the share of the cores that other processes used, `loaded` whether it was much.
    """

    milliseconds: float
    parent: float
    device: str
    runs: int
    noise: float = 0.05
    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    rounds: int = 0
    other_load: float = 0.0
    loaded: bool = False

    def __post_init__(self) -> None:
        """Derive the ratio of a record of an older version."""
        if not self.ratio and self.parent > 0:
            ratio = self.milliseconds / self.parent
            object.__setattr__(self, "ratio", ratio)
            object.__setattr__(self, "low", ratio * (1 - self.noise))
            object.__setattr__(self, "high", ratio * (1 + self.noise))

    @property
    def interval(self) -> Interval:
        """The interval of the ratio."""
        return Interval(low=self.low, high=self.high)

    @property
    def slower(self) -> bool:
        """Whether it is slower than its parent by more than the noise and the clock explain."""
        late = self.milliseconds > self.parent + _CLOCK_ERROR
        return late and self.interval.is_above(_EQUAL)

    @property
    def ratio_text(self) -> str:
        """The ratio with its interval, and the load that disturbed it."""
        load = f", while {load_text(self.other_load)}" if self.loaded else ""
        return f"{self.ratio:.3f} x ({self.low:.3f} to {self.high:.3f}){load}"


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One model in one format and precision.

    `files[0]` is the model itself. `parent` is the SHA-256 of its source: the checkpoint or another
    artifact's first file. `tolerance` is its tolerance at export. `accuracy` is on labelled data;
    `tradeoffs` are the points that accuracy-aware INT8 tried. `frozen` are the places (`file:line`)
    of the user's code where its capture, or its parent's, froze tensor data; None if unknown, as in
    records of older versions. `key` is the SHA-256 of the step's cache key, empty if not computed.
    `domain` is the domain of its verdict; None in records of older versions. `judged_as` is the
    precision whose limits apply, if not its own. `rewrites` are the changes in a copy of the model
    before its capture, by name. `places` are additional feeds that it was judged on, by name with
    the sizes of the free dims. `seal` binds its files to its verdict; it is computed when the
    manifest is written.
    """

    name: str
    target: str
    precision: Precision
    files: tuple[FileRecord, ...]
    parent: str
    made_from: str
    capture: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    attempts: tuple[Attempt, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    rejected: bool = False
    rewrites: tuple[str, ...] = ()
    tolerance: Tolerance | None = None
    calibration: CalibrationRecord | None = None
    coverage: Coverage | None = None
    latency: Latency | None = None
    accuracy: Accuracy | None = None
    tradeoffs: tuple[TradeOff, ...] = ()
    frozen: tuple[str, ...] | None = None
    domain: Domain | None = None
    judged_as: Precision | None = None
    places: dict[str, dict[str, int]] = field(default_factory=dict)
    key: str = ""
    seal: str = field(default="", compare=False)

    @property
    def limit_precision(self) -> Precision:
        """The precision that it is judged as: mostly its own, unlike an engine's with TF32."""
        return self.judged_as or self.precision

    @property
    def step(self) -> str:
        """The step that made it."""
        return step_of(self.name)

    @property
    def digest(self) -> str:
        """SHA-256 of the model file."""
        return self.files[0].sha256

    @property
    def is_stateful(self) -> bool:
        """Whether its runtime keeps a decoder's cache between calls (`--stateful`)."""
        return self.options.get("stateful") == "true"

    @property
    def joint_digest(self) -> str:
        """One digest of all of its files but the optional debug sidecar."""
        return joint_digest(file for file in self.files if file.role != "debug")

    @property
    def size(self) -> int:
        """Bytes of everything that ships, without the debug sidecar and held-out samples."""
        return sum(file.size for file in self.files if file.role not in ("debug", "samples"))


def load_text(share: float) -> str:
    """Say what share of the cores other processes used."""
    return f"other processes used {share:.0%} of the cores"


def size_text(size: float) -> str:
    """Format bytes in powers of 1000, as `12.3 MB`."""
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if abs(amount) < 1000:  # noqa: PLR2004 - of SI units
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.2f} GB"


_BLOCK = 1 << 20


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def record_of(path: Path, *, name: str | None = None, role: str = "model") -> FileRecord:
    """Return a record of the file's current state."""
    return FileRecord(
        name=name or path.name, size=path.stat().st_size, sha256=sha256_of(path), role=role
    )


def is_as_recorded(path: Path, file: FileRecord) -> bool:
    """Return whether a file exists with the recorded bytes."""
    there = path.is_file() and path.stat().st_size == file.size
    return there and sha256_of(path) == file.sha256


def joint_digest(files: Iterable[FileRecord]) -> str:
    """Return a digest of several files' sorted lines "name sha256"; of one file, its own."""
    records = sorted(files, key=lambda file: file.name)
    if len(records) == 1:
        return records[0].sha256
    text = "".join(f"{file.name} {file.sha256}\n" for file in records)
    return hashlib.sha256(text.encode()).hexdigest()
