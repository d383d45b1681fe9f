"""The contracts: what a format file offers (Target), what it opens (Runner), what it gets (Job)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from .findings import Warned
from .kinds import Capture, Precision
from .records import CalibrationRecord, Coverage
from .signature import Signature

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]
else:
    Array: TypeAlias = Any  # the array type is numpy's; core stays free of it at run time

Feed: TypeAlias = Mapping[str, Array]
Outputs: TypeAlias = dict[str, Array]

RECORD = (
    "modelc.json"  # our record inside an archive of torch's: written by converters, read by sources
)
CAPTURE_TIMEOUT = 60.0  # seconds of torch's symbolic solver, in one attempt
EAGER = "checkpoint"  # what a target that is captured from the eager model is made from


Advance: TypeAlias = Callable[[int, int], None]  # done, total


def no_progress(done: int, total: int) -> None:
    """Progress that nobody listens to."""


class Runner(Protocol):
    """An opened model: named arrays in, named arrays out, in the model's own order.

    A context manager, because it may hold device memory. `inputs` are the names it takes.
    """

    inputs: tuple[str, ...]

    def run(self, feed: Feed) -> Outputs:
        """Run one feed; the feed holds at least `inputs` and is never written to.

        Raises:
            RunnerError: the runtime refused the feed.
        """
        ...

    def __enter__(self) -> Runner: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class EagerModel(Protocol):
    """The user's module, in eval mode on the CPU, ready to be captured."""

    @property
    def module(self) -> torch.nn.Module:
        """The module as the user wrote it."""
        ...

    @property
    def flat(self) -> torch.nn.Module:
        """The same as `forward(*tensors) -> tuple of tensors`, in the signature's order."""
        ...

    @property
    def scope(self) -> str:
        """The attribute under which `flat` holds `module`, to be cut from module paths."""
        ...


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """Whether a format can be made here; if not, why, and the line that makes it so."""

    ready: bool
    version: str = ""
    reason: str = ""
    mend: str = ""


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that one converter gets; it never goes looking for more.

    `folder` is a work folder of its own; files are moved to their place by the pipeline once
    they are proven. `example` is one feed at the opt sizes. Either `model` or `parent` is
    given; beside a parent lies its debug sidecar, where it has one. `feeds` are the validation
    feeds, `guard` asks for a check of the domain inside of the file, `keep` are the `--keep-fp`
    patterns, `half_io` whether inputs and outputs become half as well, `settings` the options
    that only this format has, as text. `cache` is a folder for what later runs may use again;
    None does without. `programs` are those taken down in this run already, by capture: the
    formats share them. `custom_ops` has the function that translates an operator, by the
    operator's name (`ns::op`), `runtimes` what the file must load in (`onnxruntime==1.20`).
    `output_axes` are the axes of outputs that follow a dim, by output.
    """

    signature: Signature
    precision: Precision
    folder: Path
    stem: str
    example: Feed
    model: EagerModel | None = None
    parent: Path | None = None
    capture: Capture | None = None
    opset: int | None = None
    external_data: bool = False
    guard: bool = False
    capture_timeout: float = CAPTURE_TIMEOUT
    metadata: Mapping[str, str] = field(default_factory=dict)
    feeds: tuple[Feed, ...] = ()
    keep: tuple[str, ...] = ()
    half_io: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    programs: MutableMapping[str, object] = field(default_factory=dict)
    custom_ops: Mapping[str, Callable[..., object]] = field(default_factory=dict)
    runtimes: tuple[str, ...] = ()
    output_axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    cache: Path | None = None
    advance: Advance = no_progress


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A place where a trace froze a Python value made of a tensor: the user's file and line."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What a converter made: file names in the job's folder with their roles, model first.

    `frozen` are the user's lines at which a tracer saw a tensor become a Python value, `warned` all
    that it said of them. `judged_as` is the precision whose tolerance it is held to, where that is
    not its own. `places` are sizes of the free dims at which it is to be judged beside all others.
    """

    files: tuple[tuple[str, str], ...]
    versions: Mapping[str, str]
    options: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    frozen: tuple[Branch, ...] = ()
    warned: tuple[Warned, ...] = ()
    judged_as: Precision | None = None
    places: tuple[Mapping[str, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """One input or output as the artifact itself declares it; a dim is a size, a name or '?'."""

    name: str
    dtype: str
    dims: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What an artifact says of itself."""

    target: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    facts: Mapping[str, str]
    weights: Mapping[str, int]  # dtype -> number of weight elements
    operators: Mapping[str, int]  # operator -> count
    metadata: Mapping[str, str]
    quantized: bool = False  # holds 8-bit layers already


class Target(Protocol):
    """What a format file offers. A module of `converters/` is one."""

    NAME: str
    SUMMARY: str
    SUFFIX: str  # of the model file
    # Each precision that it has, with what it is made from: EAGER, or an artifact's name, as
    # `onnx` or `tensorrt-onnx:fp16`.
    MADE_FROM: Mapping[Precision, str]
    CAPTURES: tuple[Capture, ...]  # what `auto` tries, in order; empty when made from another
    DEVICES: tuple[str, ...]  # the first is where it is judged unless another is asked for

    def readiness(self) -> Readiness:
        """Whether this format can be made and run here, asked without a heavy import."""
        ...

    def claims(self, path: Path) -> bool:
        """Whether `path` is a model of this format, by suffix and content."""
        ...

    def convert(self, job: Job) -> Converted:
        """Make the format in `job.folder`.

        Raises:
            ConversionError: the framework refused or broke.
        """
        ...

    def open_runner(self, path: Path, device: str, signature: Signature) -> Runner:
        """Open a model file on a device.

        Raises:
            RunnerError: the runtime would not open it.
            MissingError: the device is not here.
        """
        ...

    def inspect(self, path: Path) -> Inspection:
        """Read what the model file says of itself."""
        ...

    def coverage(self, path: Path, example: Feed, device: str) -> Coverage | None:
        """What the model file really computes in; None for a format of one precision.

        Args:
            path: the model file.
            example: a feed at the opt sizes, for the work that layers do.
            device: where it is to run.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What can be said of a conversion without the framework that does it.

    `blockers` are what the framework will refuse, `warnings` what it may; each names the operator
    and the module path. `memory` is an estimate of the device bytes that the artifact needs at
    its largest sizes. `source` says where the rules come from, with their version.
    """

    blockers: tuple[str, ...]
    warnings: tuple[str, ...]
    memory: int
    source: str


class Configured(Target, Protocol):
    """A target whose files are opened with options that only it has."""

    def open_runner(
        self,
        path: Path,
        device: str,
        signature: Signature,
        settings: Mapping[str, str] | None = None,
    ) -> Runner:
        """Open a model file on a device, with the options that only this format has."""
        ...


@runtime_checkable
class Deferred(Configured, Protocol):
    """A target that a host without its device can prepare, for another host to finish."""

    FINISHED_BY: str  # the command that finishes what was prepared, given the output folder

    def preflight(self, job: Job) -> Preflight:
        """Look at the job's parent for what `convert` would stumble over, without the framework.

        Raises:
            ConversionError: the parent cannot be read.
        """
        ...


@runtime_checkable
class Native(Configured, Protocol):
    """A target whose model files run code of their maker when they are opened."""

    def distrust_reason(self, path: Path, settings: Mapping[str, str]) -> str:
        """Why the file must not be opened; empty where its maker is trusted."""
        ...


@runtime_checkable
class Program(Target, Protocol):
    """A target whose model files are programs: opening one is trusting its maker.

    `PROGRAM` is what such a file is called, `INSPECT_OPENS` whether `inspect` opens it as well.
    """

    PROGRAM: str
    INSPECT_OPENS: bool


@runtime_checkable
class Lowered(Target, Protocol):
    """A target whose files can be made for runtimes that are named (`Job.runtimes`)."""

    def plan_opset(self, asked: int | None, runtimes: Sequence[str], precision: Precision) -> str:
        """What a plan says of the version to be written; nothing where no runtime is named.

        Raises:
            UsageError: `asked`, or the precision, is beyond what the runtimes load.
        """
        ...


@runtime_checkable
class Weighted(Target, Protocol):
    """A target whose FP32 artifacts hold the checkpoint's weights as constants."""

    def weights(self, path: Path) -> Iterator[Array]:
        """The float32 constants of a model file, one at a time; what is folded is as it is there.

        Raises:
            RunnerError: the file cannot be read.
        """
        ...


class CalibrationFeeds(Protocol):
    """The calibration samples, each one feed; every iteration reads them anew, one at a time."""

    @property
    def record(self) -> CalibrationRecord:
        """Where they come from, how many there are, and their digest."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Feed]: ...


@dataclass(frozen=True, kw_only=True)
class QuantizeJob:
    """All that one quantizer gets.

    `parent` is the FP32 ONNX, with its external data and debug sidecar beside it. `consumer` is the
    NAME of the target that the result is for. `method` is one of the quantizer's METHODS for
    that consumer; None is its first. `keep` are names of ONNX nodes that stay in floating
    point. `folder` is an empty work folder.
    """

    parent: Path
    consumer: str
    signature: Signature
    calibration: CalibrationFeeds
    folder: Path
    method: str | None = None
    keep: tuple[str, ...] = ()
    advance: Advance = no_progress


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """What a quantizer made: a model file in the job's folder that the consumer's target reads.

    It is an ONNX with Q/DQ nodes, or what else the consumer's `convert` takes for a parent.
    """

    path: Path
    versions: Mapping[str, str]
    options: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Quantizer(Protocol):
    """A library that makes an INT8 model of an FP32 one by calibration."""

    NAME: str
    SUMMARY: str
    # By consumer (a target's NAME): the calibration methods that it offers, its default first.
    METHODS: Mapping[str, tuple[str, ...]]

    def readiness(self) -> Readiness:
        """Whether the library is here, asked without importing it."""
        ...

    def quantize(self, job: QuantizeJob) -> Quantized:
        """Calibrate and quantize.

        Raises:
            ConversionError: the library refused the model, or what it made cannot be right.
        """
        ...
