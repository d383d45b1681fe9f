"""The contracts: Target (a format), Runner (an opened model), Job (a converter's input)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
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
    Array: TypeAlias = Any  # core does not import numpy at run time

Feed: TypeAlias = Mapping[str, Array]
Outputs: TypeAlias = dict[str, Array]

RECORD = "modelc.json"  # our record inside torch's archives
CAPTURE_TIMEOUT = 60.0  # seconds of torch's symbolic solver per attempt
EAGER = "checkpoint"  # the parent of targets that are captured from the eager model


Advance: TypeAlias = Callable[[int, int], None]  # done, total


def no_progress(done: int, total: int) -> None:
    """Ignore progress."""


class Runner(Protocol):
    """An opened model: named arrays in, named arrays out, in the model's own order.

    A context manager, because it may hold device memory. `inputs` are its input names.
    """

    inputs: tuple[str, ...]

    def run(self, feed: Feed) -> Outputs:
        """Run one feed, which holds at least `inputs` and stays unchanged.

        Raises:
            RunnerError: the runtime rejected the feed.
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

    @property
    def flat(self) -> torch.nn.Module:
        """The module as `forward(*tensors) -> tuple of tensors`, in the signature's order."""

    @property
    def scope(self) -> str:
        """The attribute under which `flat` holds `module`, which is cut from module paths."""
        ...


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """Whether a format can be converted here; if not, why, and the command that fixes it.

    A deferred target that is not ready may be one that `builds` here and is judged elsewhere.
    """

    ready: bool
    builds: bool = False
    version: str = ""
    reason: str = ""
    mend: str = ""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The complete input of a converter.

    `folder` is a work folder of its own; the pipeline moves judged files to their place. `example`
    is one feed at the opt sizes. Either `model` or `parent` is set; a parent's debug sidecar, if
    any, lies beside it. `feeds` are the validation feeds, `guard` asks for a check of the domain
    inside the file, `stateful` for a decoder's cache in states, `keep` are the `--keep-fp`
    patterns, `half_io` also makes inputs and outputs half, `rest` is the precision of the layers
    that INT8 leaves, `settings` are the format's own options, as text. `cache` is a folder that
    later runs may reuse; None disables it. `programs` are those captured earlier in this run, by
    capture: the formats share them. `custom_ops` are the functions that translate operators, by
    operator (`ns::op`), `runtimes` those that must load the file (`onnxruntime==1.20`).
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
    stateful: bool = False
    capture_timeout: float = CAPTURE_TIMEOUT
    metadata: Mapping[str, str] = field(default_factory=dict)
    feeds: tuple[Feed, ...] = ()
    keep: tuple[str, ...] = ()
    half_io: bool = False
    rest: Precision = Precision.FP32
    settings: Mapping[str, str] = field(default_factory=dict)
    programs: MutableMapping[str, object] = field(default_factory=dict)
    custom_ops: Mapping[str, Callable[..., object]] = field(default_factory=dict)
    runtimes: tuple[str, ...] = ()
    output_axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    cache: Path | None = None
    advance: Advance = no_progress


@dataclass(frozen=True, kw_only=True)
class Branch:
    """The user's file and line where a trace froze a Python value computed from a tensor."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Converted:
    """The result of a converter: file names in the job's folder with their roles, model first.

    `frozen` are the user's lines at which a tracer saw a tensor become a Python value, `warned` all
    its warnings there. `judged_as` is the precision whose tolerance applies, if not its own.
    `places` are additional sizes of the free dims to judge it at.
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
    """An input or output as the artifact declares it; a dim is a size, a name or '?'."""

    name: str
    dtype: str
    dims: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """An artifact's description of itself."""

    target: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    facts: Mapping[str, str]
    weights: Mapping[str, int]  # dtype -> number of weight elements
    operators: Mapping[str, int]  # operator -> count
    metadata: Mapping[str, str]
    quantized: Precision | None = None  # of its quantized layers, if it has any


class Target(Protocol):
    """A format: a module of `converters/` is one."""

    NAME: str
    SUMMARY: str
    SUFFIX: str  # of the model file
    # each precision, with its parent: EAGER, or an artifact's name such as `onnx` or
    # `tensorrt-onnx:fp16`
    MADE_FROM: Mapping[Precision, str]
    CAPTURES: tuple[Capture, ...]  # those that `auto` tries, in order; empty with a parent
    DEVICES: tuple[str, ...]  # the first is the default for judging

    def readiness(self) -> Readiness:
        """Return whether this format can be made and run here, without a heavy import."""
        ...

    def claims(self, path: Path) -> bool:
        """Return whether `path` is a model of this format, by suffix and content."""
        ...

    def convert(self, job: Job) -> Converted:
        """Convert to this format in `job.folder`.

        Raises:
            ConversionError: the framework rejected the model or crashed.
        """
        ...

    def open_runner(self, path: Path, device: str, signature: Signature) -> Runner:
        """Open a model file on a device.

        Raises:
            RunnerError: the runtime cannot open it.
            MissingError: the device is not available.
        """
        ...

    def inspect(self, path: Path) -> Inspection:
        """Describe a model file."""
        ...

    def coverage(self, path: Path, example: Feed, device: str) -> Coverage | None:
        """Return the compute dtypes of a model file; None for a format with one precision.

        Args:
            path: the model file.
            example: a feed at the opt sizes, to weight the layers by their work.
            device: the device to run on.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What is known about a conversion without its framework.

    `blockers` are what the framework will reject, `warnings` what it may; each names the operator
    and the module path. `memory` estimates the device bytes at the largest sizes (0: unknown).
    `source` names the origin of the rules and their version. `option` may help against blockers.
    """

    blockers: tuple[str, ...]
    warnings: tuple[str, ...]
    memory: int
    source: str
    option: str = ""


class Configured(Target, Protocol):
    """A target whose files are opened with options of their own."""

    def open_runner(
        self,
        path: Path,
        device: str,
        signature: Signature,
        settings: Mapping[str, str] | None = None,
    ) -> Runner:
        """Open a model file on a device, with the format's own options."""
        ...


@runtime_checkable
class Deferred(Configured, Protocol):
    """A target that a host without its device can prepare for another host to finish."""

    FINISHED_BY: str  # the command that finishes the prepared steps, given the output folder

    def preflight(self, job: Job) -> Preflight:
        """Check the job's parent for what `convert` would fail on, without the framework.

        Raises:
            ConversionError: the parent cannot be read.
        """
        ...


@runtime_checkable
class Native(Configured, Protocol):
    """A target whose model files run their maker's code when opened."""

    def distrust_reason(self, path: Path, settings: Mapping[str, str]) -> str:
        """Return why the file must not be opened; empty if its maker is trusted."""
        ...


@runtime_checkable
class Program(Target, Protocol):
    """A target whose model files are programs: opening one means trusting its maker.

    `PROGRAM` is the name of such a file, `INSPECT_OPENS` whether `inspect` opens it too.
    """

    PROGRAM: str
    INSPECT_OPENS: bool


@runtime_checkable
class Lowered(Target, Protocol):
    """A target that can be lowered to the runtimes given (`Job.runtimes`)."""

    def plan_opset(self, asked: int | None, runtimes: Sequence[str], precision: Precision) -> str:
        """Return the plan's note on the version to be written; empty without runtimes.

        Raises:
            UsageError: the runtimes cannot load `asked` or the precision.
        """
        ...


class CalibrationFeeds(Protocol):
    """The calibration samples, one feed each; every iteration reads them again, one at a time."""

    @property
    def record(self) -> CalibrationRecord:
        """Their origin, number and digest."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Feed]: ...


@dataclass(frozen=True, kw_only=True)
class QuantizeJob:
    """The complete input of a quantizer.

    `parent` is the FP32 ONNX, its external data and debug sidecar beside it. `consumer` is the NAME
    of the target that uses the result. `calibration` is None where the quantizer needs no samples
    for that consumer and precision. `method` is one of the quantizer's METHODS for that
    consumer and precision; None means its first. `keep` are names of ONNX nodes that stay in
    floating point. `folder` is an empty work folder. `others` are the run's other consumers of the
    same parent. `memory` keeps results for later jobs, by what they depend on. `group_size` is the
    number of weights with one scale, where the user chose it.
    """

    parent: Path
    consumer: str
    signature: Signature
    calibration: CalibrationFeeds | None
    folder: Path
    precision: Precision = Precision.INT8
    method: str | None = None
    keep: tuple[str, ...] = ()
    group_size: int | None = None
    advance: Advance = no_progress
    others: tuple[str, ...] = ()
    memory: MutableMapping[tuple[Hashable, ...], Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """The result of a quantizer: a model file in the job's folder that the consumer's target reads.

    An ONNX with Q/DQ nodes, or another parent that the consumer's `convert` accepts.
    """

    path: Path
    versions: Mapping[str, str]
    options: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Quantizer(Protocol):
    """A library that quantizes an FP32 model, by calibration or from its weights alone."""

    NAME: str
    SUMMARY: str
    # by consumer (a target's NAME) and precision: its calibration methods, the default first
    METHODS: Mapping[tuple[str, Precision], tuple[str, ...]]
    DATA_FREE: frozenset[tuple[str, Precision]]  # the keys of METHODS that need no samples
    # of these, the methods that use samples, the default with samples first
    SAMPLE_METHODS: Mapping[tuple[str, Precision], tuple[str, ...]]

    def readiness(self) -> Readiness:
        """Return whether the library is installed, without importing it."""
        ...

    def quantize(self, job: QuantizeJob) -> Quantized:
        """Calibrate and quantize.

        Raises:
            ConversionError: the library rejected the model, or its result cannot be right.
        """
        ...
