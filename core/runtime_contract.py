"""What a format offers beside its contract: runtime settings, default runs, planted faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Protocol, runtime_checkable

from .contract import Runner, Target
from .signature import Signature


@runtime_checkable
class Settled(Target, Protocol):
    """A target whose artifacts are judged under settings of its runtime that can be named."""

    def judge_settings(self, device: str) -> Mapping[str, str]:
        """The settings, by the runtime's own names."""
        ...


def runtime_settings(target: Target, device: str) -> dict[str, str]:
    """The device, and the settings of the runtime, under which artifacts of a format are judged."""
    settings = target.judge_settings(device) if isinstance(target, Settled) else {}
    return {"device": device, **settings}


@dataclass(frozen=True, kw_only=True)
class OpenedByDefault:
    """A model opened without settings, where its runtime then computes in less precision.

    `compute` is what it computes in, as `bf16`; `advice` the line of code that opens it as it is
    judged, with `PATH` for the model file.
    """

    runner: Runner
    compute: str
    advice: str


@runtime_checkable
class SelfTuned(Target, Protocol):
    """A target whose runtime may pick a lower precision by itself where nobody sets one."""

    def open_by_default(
        self, path: Path, device: str, signature: Signature
    ) -> OpenedByDefault | None:
        """Open a model file without settings; None where it then computes as it is judged.

        Raises:
            RunnerError: the runtime would not open it.
        """
        ...


class FaultKind(StrEnum):
    """What a planted fault alters.

    An element of a weight; two things that change places; an attribute of an operator; an epsilon;
    an output at one size of a dynamic dim.
    """

    WEIGHT = "weight"
    SIZE = "size"
    SWAP = "swap"
    ATTRIBUTE = "attribute"
    EPSILON = "epsilon"


@dataclass(frozen=True, kw_only=True)
class PlantedFault:
    """A copy of a model file with one fault in it.

    `place` names the tensor, node or output, `change` says what was done to it. `sizes` are sizes
    of free dims, by name, at which the fault acts, and `where` says for which sizes it does; both
    are empty where it acts at any.
    """

    path: Path
    place: str
    change: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    where: str = ""


@runtime_checkable
class FloatEnds(Target, Protocol):
    """A target whose half precision is of weights: inputs and outputs stay float32."""

    FLOAT_ENDS: bool


@runtime_checkable
class Plantable(Target, Protocol):
    """A target in whose model files faults can be planted, to see what a verdict can find.

    `PLANTS_BY_DEFAULT` says that a copy is quickly made and opened.
    """

    PLANTS_BY_DEFAULT: bool

    def plant_fault(
        self, path: Path, kind: FaultKind, random: Random, signature: Signature, folder: Path
    ) -> PlantedFault | None:
        """Write a copy of a model file with one fault of this kind in `folder`.

        Args:
            path: the model file; it stays as it is.
            kind: what is altered.
            random: draws the place.
            signature: the inputs, with their dims, and the outputs.
            folder: an empty folder for the copy.

        Returns:
            None where the model has no place for such a fault.

        Raises:
            RunnerError: the file cannot be read.
        """
        ...
