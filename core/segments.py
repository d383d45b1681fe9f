"""The plan of a program that a runtime takes only in part: segments, and what is left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from .contract import Target

DEFAULT_MIN_BLOCK = 5  # operators of an engine; the default of torch-tensorrt
_MOST_LINES = 5  # on operators outside TensorRT; `modelc inspect --segments` has all


class LeftOutReason(StrEnum):
    """Why an operator runs outside TensorRT."""

    NO_CONVERTER = "no converter"
    NO_IMPORTER = "TensorRT's ONNX parser does not have it"
    RESTRICTED = "TensorRT's ONNX parser does not take it in this form"
    TYPE = "TensorRT does not have its type"
    BODY = "its body has operators that TensorRT does not take"
    DYNAMIC_SIZES = "its converter needs fixed sizes"
    ARGUMENTS = "its converter takes no such arguments"
    COMPLEX = "it reads or returns complex numbers"
    REQUESTED = "requested by --torch-ops"
    SMALL_BLOCK = "its block is smaller than --min-block-size"


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Operators outside TensorRT.

    `module` is the path of the first, `detail` says more of the reason.
    """

    operator: str
    reason: LeftOutReason
    count: int
    module: str = ""
    detail: str = ""

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"outside TensorRT, {self.count} {self.operator}: {self.reason}{detail}"


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of a model that runs as one engine, or outside TensorRT.

    `share` is of the work, 0 to 1.

    `operators` are counts by operator.
    """

    engine: bool
    operators: dict[str, int]
    nodes: int
    share: float


@dataclass(frozen=True, kw_only=True)
class SegmentPlan:
    """Segments in the order in which they run.

    `switches` counts the changes between TensorRT and `rest`, which runs what is left out. `share`
    is the part of the work in engines, in the unit `work`: FLOPs, or operators where no operator
    has FLOPs. `uncertain` operators, by count, may run in `rest` after all: what takes them looks
    at their arguments, that depends on the host, or each stands for several operators. The sizes in
    engines of `data_dependent` operators depend on the data.
    """

    segments: tuple[Segment, ...]
    switches: int
    share: float
    work: str
    min_block_size: int
    left_out: tuple[LeftOut, ...]
    uncertain: dict[str, int]
    data_dependent: dict[str, int]
    source: str
    rest: str = "torch"

    @property
    def engines(self) -> int:
        """The number of engines."""
        return sum(one.engine for one in self.segments)

    def describe_no_engine(self) -> tuple[str, ...]:
        """Return why TensorRT would run nothing; empty where it would run something."""
        if self.engines:
            return ()
        reasons = Counter(one.reason for one in self.left_out)
        most = f": {reasons.most_common(1)[0][0]}" if reasons else ""
        return (f"no part of the model would run in TensorRT{most}",)

    def describe_left_out(self) -> tuple[str, ...]:
        """Return a line on the engines, and one for each operator outside TensorRT."""
        lines = [str(one) + f" ({one.module})" * bool(one.module) for one in self.left_out]
        more = len(lines) - _MOST_LINES
        if not lines:
            return ()
        share = f"{self.share:.0%} of the {self.work} in {self.engines} engines"
        return (
            f"TensorRT takes it in part: {share}, {self.switches} switches to {self.rest}",
            *lines[:_MOST_LINES],
            *([f"{more} more kinds stay in {self.rest}"] if more > 0 else []),
        )


@dataclass(frozen=True, kw_only=True)
class SegmentOptions:
    """The fewest operators of an engine, and operators that stay in torch, as `aten.add.Tensor`."""

    min_block_size: int = DEFAULT_MIN_BLOCK
    torch_ops: tuple[str, ...] = ()


@runtime_checkable
class Segmented(Target, Protocol):
    """A target whose model files can be planned for a runtime that gives parts to TensorRT."""

    def plan_path(self, path: Path, options: SegmentOptions) -> SegmentPlan:
        """Return the segments that the runtime would make of a model file.

        Raises:
            ModelcError: it cannot be opened.
            UsageError: the model lacks an operator of the options.
        """
        ...
