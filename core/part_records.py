"""Records of a model of several parts: what a run makes of it, and the verdicts on the whole."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .errors import RunnerError
from .manifest import Failure, FeedPlan
from .records import Checkpoint, Dependencies
from .signature import Signature
from .verdict import State, Verdict

PARTS_FILE = "parts.json"
PARTS_SCHEMA_VERSION = 1
WHOLE = "whole"  # stands for all parts together in names of artifacts
# A part's name is that of its folder, so nothing that leads out of the output folder is one.
PART_NAME = re.compile(r"[A-Za-z]\w{0,63}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class PlannedPart:
    """A part to convert, with its inputs as the pipeline calls it.

    `inputs` are in the syntax of `--input`, `samples` is a file with the arrays of one call, and
    `calls` is how often the pipeline called it on all feeds. `calibration` is a folder of samples;
    empty if nothing is calibrated.
    """

    name: str
    method: str
    inputs: tuple[str, ...]
    samples: str
    calls: int
    notes: tuple[str, ...] = ()
    calibration: str = ""


@dataclass(frozen=True, kw_only=True)
class PartsPlan:
    """The parts of a model, found by running the user's pipeline on its eager parts."""

    parts: tuple[PlannedPart, ...]
    notes: tuple[str, ...] = ()

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, then those of all parts."""
        return (*self.notes, *(note for part in self.parts for note in part.notes))


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """A part as it was when the whole was judged; its folder has its name.

    `artifacts` are the digests of its artifacts by name.
    """

    name: str
    method: str
    artifacts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PartsManifest:
    """A model of several parts: what it is made from, and the verdict on each set of artifacts.

    A verdict is on the artifacts of one name in all parts, as the user's function `compose` runs
    them end to end. `wrong_parts` are the parts that a rejection blames, by the verdict's artifact.
    `failures` are artifacts of the whole that could not be run, and parts that could not be judged.
    `keys` are the cache keys of the verdicts by artifact, empty if not computed; `needs` are the
    dependencies besides the request, as of a manifest. `held_out` are the digests of the samples
    that calibrated artifacts are judged on.
    """

    modelc: str
    created: str
    checkpoint: Checkpoint
    compose: str
    compose_sha256: str
    signature: Signature
    feeds: FeedPlan
    parts: tuple[PartRecord, ...]
    verdicts: tuple[Verdict, ...] = ()
    wrong_parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    needs: Dependencies = field(default_factory=Dependencies)
    held_out: dict[str, str] = field(default_factory=dict)
    schema_version: int = PARTS_SCHEMA_VERSION
    seal: str = field(default="", compare=False)  # last: it covers the text before it

    @property
    def exit_code(self) -> int:
        """0 if every set of artifacts passed; 1 if one was rejected; else a failure's own code."""
        if any(one.state is State.FAILED for one in self.verdicts):
            return 1
        codes = [one.exit_code for one in self.failures]
        if any(one.state is State.ERROR for one in self.verdicts):
            codes.append(RunnerError.exit_code)
        return codes[0] if codes else 0
