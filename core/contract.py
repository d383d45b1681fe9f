"""The contracts: what a format file offers (Target), what it opens (Runner), what it gets (Job)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from .capture import Capture
from .precision import Precision
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
EAGER = "checkpoint"  # what a target that is captured from the eager model is made from


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
    they are proven. `example` is one feed at the opt sizes. Either `model` or `parent` is given.
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
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A Python branch on tensor data that a trace froze: the user's file and line."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What a converter made: file names in the job's folder with their roles, model first."""

    files: tuple[tuple[str, str], ...]
    versions: Mapping[str, str]
    options: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    frozen: tuple[Branch, ...] = ()


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


class Target(Protocol):
    """What a format file offers. A module of `converters/` is one."""

    NAME: str
    SUMMARY: str
    SUFFIX: str  # of the model file
    MADE_FROM: str  # EAGER or another target's NAME
    CAPTURES: tuple[Capture, ...]  # what `auto` tries, in order; empty when made from another
    PRECISIONS: tuple[Precision, ...]
    DEVICES: tuple[str, ...]

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
