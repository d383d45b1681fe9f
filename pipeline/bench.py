"""What the steps of one run share, and what goes in and out of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..core.contract import CalibrationFeeds
from ..core.domain import Domain
from ..core.findings import Warned
from ..core.manifest import Failure, Pending
from ..core.records import Artifact, CalibrationRecord
from ..core.verdict import Verdict
from ..sources.checkpoint_files import NO_GUARD, ChangeGuard
from ..validators.judge import ReferenceOutputs
from .accuracy import LabelledFeeds
from .caching.read_tracker import ReadTracker
from .calibration_cache import CalibrationCache
from .folder import OutputFolder
from .order import Order
from .stage import Progress
from .subject import EagerReference


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What every step of one run shares.

    `held_out` is eager on the calibration samples that no quantizer saw: INT8 is judged on them.
    `record` is of the calibration of this run, or of the parent's where that is quantized.
    `labelled` is the labelled data with eager's answers, where accuracy is measured. `programs` are
    those taken down already, by the rewrites of the model and the capture. `stamp` is of the
    checkpoint when it was read. `tracker` knows what was read beside the order. `narrowed` are the
    eager sides within smaller domains, by these as `--input` reads them. `places` are sizes that
    every artifact is judged at beside the feeds', by what they were found for. `held` are sets of
    rewrites with which an artifact passed, the latest first.
    """

    order: Order
    subject: EagerReference
    folder: OutputFolder
    stage: Progress
    metadata: dict[str, str]
    calibration: CalibrationFeeds | None = None
    record: CalibrationRecord | None = None
    held_out: tuple[ReferenceOutputs, ...] = ()
    cache: CalibrationCache | None = None
    labelled: LabelledFeeds | None = None
    programs: dict[tuple[str, ...], dict[str, object]] = field(default_factory=dict)
    stamp: ChangeGuard = NO_GUARD
    tracker: ReadTracker | None = None
    narrowed: dict[str, EagerReference] = field(default_factory=dict)
    places: dict[str, tuple[Mapping[str, int], ...]] = field(default_factory=dict)
    held: list[tuple[str, ...]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Parent:
    """What a step starts from: the eager model (no path) or another artifact's file.

    `frozen` are the places where its capture froze tensor data, None where nobody knows; `traced`
    says that it was a trace all the same, which may have frozen any. `capture` is how it, or what
    it was made from, was taken from eager; empty where nobody knows. `domain` is its own.
    """

    name: str
    digest: str
    path: Path | None = None
    frozen: tuple[str, ...] | None = ()
    traced: bool = False
    capture: str = ""
    domain: Domain | None = None


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """The end of a step: an artifact with its verdict, a failure, or a step left pending.

    `warned` is what frameworks said of the user's lines meanwhile. `lasting` says of a failure that
    the same step would end so again.
    """

    artifact: Artifact | None = None
    verdict: Verdict | None = None
    failure: Failure | None = None
    pending: Pending | None = None
    warned: tuple[Warned, ...] = ()
    lasting: bool = False
