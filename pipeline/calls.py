"""Calls of the Python API as data: what a command does in this process, or in a child."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..core.contract import Inspection
from ..core.events import Tell, silence
from ..sources.weight_sets import WeightSetSummary

if TYPE_CHECKING:
    from ..core.findings import Localisation
    from ..core.manifest import Manifest
    from ..core.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class InspectedFile:
    """What `inspect` found: the artifact's own words, its bytes, and its manifest's words."""

    inspection: Inspection
    size: int
    lineage: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class CheckpointContents:
    """What `inspect` found in a checkpoint of weights: its kind, its bytes, its sets of weights."""

    kind: str
    size: int
    sets: tuple[WeightSetSummary, ...]


@dataclass(frozen=True, kw_only=True)
class ApiCall:
    """One function of `pipeline/api.py`, with its keyword arguments."""

    function: Literal["validate", "localise", "inspect", "inspect_checkpoint"]
    arguments: Mapping[str, object] = field(default_factory=dict)


CallValue: TypeAlias = "Manifest | Verdict | Localisation | InspectedFile | CheckpointContents"


def perform_call(call: ApiCall, tell: Tell = silence) -> CallValue:
    """Call the function in this process.

    Raises:
        ModelcError: what the function raises.
    """
    from . import api

    arguments: dict[str, Any] = dict(call.arguments)
    match call.function:
        case "inspect":
            return api.inspect(**arguments)
        case "inspect_checkpoint":
            return api.inspect_checkpoint(**arguments)
        case "localise":
            return api.localise(**arguments, tell=tell)
        case "validate":
            return api.validate(**arguments, tell=tell)
