"""The plan of a program that a runtime takes only in part: segments, and what is left out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from .contract import Target

DEFAULT_MIN_BLOCK = 5  # operators of an engine; the default of torch-tensorrt


class LeftOutReason(StrEnum):
    """Why an operator stays in torch although a block could hold it."""

    NO_CONVERTER = "no converter"
    DYNAMIC_SIZES = "its converter needs fixed sizes"
    ARGUMENTS = "its converter takes no such arguments"
    COMPLEX = "it reads or returns complex numbers"
    REQUESTED = "requested by --torch-ops"
    SMALL_BLOCK = "its block is smaller than --min-block-size"


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Operators that stay in torch; `module` is the path of the first."""

    operator: str
    reason: LeftOutReason
    count: int
    module: str = ""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of the program that runs as one engine, or in torch; `share` is of the work, 0 to 1.

    `operators` are counts by operator.
    """

    engine: bool
    operators: dict[str, int]
    nodes: int
    share: float


@dataclass(frozen=True, kw_only=True)
class SegmentPlan:
    """Segments in the order in which they run.

    `switches` counts the changes between TensorRT and torch, `share` is the part of the work in
    engines, in the unit `work`: FLOPs, or operators where no operator has FLOPs. `uncertain`
    operators, by count, may run in torch after all: that depends on the host, or each stands for
    several operators. The sizes in engines
    of `data_dependent` operators depend on the data.
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


@dataclass(frozen=True, kw_only=True)
class SegmentOptions:
    """The fewest operators of an engine, and operators that stay in torch, as `aten.add.Tensor`."""

    min_block_size: int = DEFAULT_MIN_BLOCK
    torch_ops: tuple[str, ...] = ()


@runtime_checkable
class Segmented(Target, Protocol):
    """A target whose model files can be planned for torch-tensorrt."""

    def plan_path(self, path: Path, options: SegmentOptions) -> SegmentPlan:
        """Return the segments that torch-tensorrt would make of a model file.

        Raises:
            RunnerError: it cannot be opened.
            UsageError: the program lacks an operator of the options.
        """
        ...
