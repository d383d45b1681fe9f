"""How stored references are used on a host: with the source or without, and what is not checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..core.errors import join_some
from ..core.findings import SkippedCheck, StoredComparison
from ..core.records import FileRecord
from .reference_file import ReferenceIndex

_MAX_NAMED = 3  # feeds to name in a note

SKIPPED_TEXTS: Mapping[SkippedCheck, str] = {
    SkippedCheck.SECOND_LOOK: "a second look at feeds beyond the limits (ties, eager's own noise)",
    SkippedCheck.FLOAT64: "float64 outputs on further feeds",
    SkippedCheck.SWEEP: "the sweep over sizes and integer values",
    SkippedCheck.SEARCH: "the search for a worse feed (--search)",
    SkippedCheck.VALUE_RANGES: "the range of integers in which it is right",
    SkippedCheck.WEIGHTS: "the weights in the file",
    SkippedCheck.SENSITIVITY: "planted faults (--sensitivity)",
    SkippedCheck.ACCURACY: "the accuracy on labelled data (--data)",
    SkippedCheck.DIAGNOSIS: "the wrong layer, another capture and a smaller domain",
    SkippedCheck.FEEDS: "other feeds than the stored ones (--feeds, --seed)",
    SkippedCheck.TOKENS: "the tokens of a decoder",
}


@dataclass(frozen=True, kw_only=True)
class StoredUse:
    """How stored references are used on this host; collects the checks that were skipped.

    `created`, `source`, `differing` and `feeds` are as in `StoredComparison`; `files` are those of
    the step.
    """

    index: ReferenceIndex
    created: str
    files: tuple[FileRecord, ...]
    feeds: int
    source: bool
    differing: tuple[str, ...] = ()
    skipped: dict[SkippedCheck, None] = field(default_factory=dict)

    def skip(self, check: SkippedCheck) -> None:
        """Note a check that cannot run."""
        self.skipped[check] = None

    @property
    def comparison(self) -> StoredComparison:
        """The record for the verdict."""
        return StoredComparison(
            created=self.created,
            modelc=self.index.modelc,
            torch=self.index.torch,
            feeds=self.feeds,
            source=self.source,
            differing=self.differing,
            skipped=tuple(sorted(self.skipped)),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the verdict must know about the references."""
        written = f"stored on {self.created[:10]} with torch {self.index.torch}"
        texts = [SKIPPED_TEXTS[check] for check in SkippedCheck if check in self.skipped]
        left = f"not checked: {', '.join(texts)}" if texts else ""
        if not self.source:
            more = f"; {left}" if left else ""
            return (f"compared with eager's outputs {written}, without checkpoint and code{more}",)
        if not self.differing:
            return (left,) if left else ()
        feeds = join_some(self.differing, _MAX_NAMED)
        note = (
            f"eager's outputs of this host differ from those {written} on {feeds} by more than "
            "roundoff in FP32; the artifact is compared with those of this host"
        )
        return (note, left) if left else (note,)
