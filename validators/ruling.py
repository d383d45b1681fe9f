"""Combine measurements and rules into the verdict on an artifact; no other module does so.

A rule never changes a verdict. It returns a `Ruling`, and `decide` combines all rulings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from ..core.domain import Domain
from ..core.findings import (
    Accuracy,
    ReferenceRuntime,
    Sensitivity,
    StoredComparison,
    WorstFeed,
)
from ..core.generation import TokenReport
from ..core.kinds import ReasonCode
from ..core.records import Latency
from ..core.verdict import (
    DefaultRun,
    OutputVerdict,
    Reason,
    State,
    Verdict,
)

# Fields of a verdict that a ruling sets directly.
_FIELDS = (
    "restricted_values", "by_default", "sensitivity", "worst", "seconds", "domain", "stored",
    "host", "reference", "tokens",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """The contribution of one rule to a verdict; an empty ruling changes nothing.

    Any reason rejects the artifact. Reasons in `first` precede those of earlier rules, reasons in
    `last` follow them. `state` replaces the state of a verdict that passed so far. Notes in
    `heading` precede all others. `feeds` and `outputs` were judged separately. If `shown` names a
    feed, the verdict has the figures of that feed only. `accuracy` and `latency` are measurements
    for the artifact's record. The other fields are those of `Verdict`.
    """

    first: tuple[Reason, ...] = ()
    last: tuple[Reason, ...] = ()
    state: State = State.FAILED
    heading: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    feeds: tuple[str, ...] = ()
    outputs: tuple[OutputVerdict, ...] = ()
    shown: str = ""
    restricted_values: dict[str, tuple[int, int]] | None = None
    by_default: DefaultRun | None = None
    sensitivity: Sensitivity | None = None
    worst: WorstFeed | None = None
    seconds: float | None = None
    domain: Domain | None = None
    stored: StoredComparison | None = None
    host: dict[str, str] | None = None
    reference: ReferenceRuntime | None = None
    tokens: TokenReport | None = None
    accuracy: Accuracy | None = None
    latency: Latency | None = None

    @classmethod
    def fault(cls, code: ReasonCode, *texts: str, notes: tuple[str, ...] = ()) -> Self:
        """Return a ruling that rejects the artifact at any tolerance."""
        return cls(
            first=tuple(Reason(code=code, text=text, fault=True) for text in texts), notes=notes
        )


def decide(measured: Verdict, rulings: Iterable[Ruling]) -> Verdict:
    """Return the verdict from the measurements and the rulings, applied in order.

    Any reason of a ruling rejects an artifact that passed the limits. A verdict with the state
    `error` keeps it.
    """
    verdict = measured
    for ruling in rulings:
        rejects = bool(ruling.first or ruling.last) and verdict.state is State.PASSED
        fields = {name: value for name in _FIELDS if (value := getattr(ruling, name)) is not None}
        verdict = replace(
            verdict,
            state=ruling.state if rejects else verdict.state,
            reasons=(*ruling.first, *verdict.reasons, *ruling.last),
            notes=(*ruling.heading, *verdict.notes, *ruling.notes),
            feeds=(*verdict.feeds, *ruling.feeds),
            outputs=(*verdict.outputs, *ruling.outputs),
            **fields,
        )
        if ruling.shown:
            verdict = _show_feed(verdict, ruling.shown)
    return verdict


def _show_feed(verdict: Verdict, feed: str) -> Verdict:
    """Return the verdict with the figures of one feed; its state still covers all feeds."""
    note = f"judged on {len(verdict.feeds)} feeds; only the figures of {feed} are shown"
    return replace(
        verdict,
        feeds=(feed,),
        outputs=tuple(output for output in verdict.outputs if output.feed == feed),
        notes=(note, *verdict.notes),
        histograms=tuple(one for one in verdict.histograms if one.feed == feed),
    )


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """The verdict on an artifact's measurements, and the rulings so far."""

    measured: Verdict
    rulings: tuple[Ruling, ...] = ()

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict under all rulings so far."""
        return decide(self.measured, self.rulings)

    @property
    def passed(self) -> bool:
        """Whether no rule has rejected the artifact."""
        return self.verdict.passed

    @property
    def accuracy(self) -> Accuracy | None:
        """The accuracy on labelled data, if measured."""
        return next((one.accuracy for one in self.rulings if one.accuracy), None)

    @property
    def latency(self) -> Latency | None:
        """The latency beside the parent's, if measured."""
        return next((one.latency for one in self.rulings if one.latency), None)

    def plus(self, *rulings: Ruling) -> Self:
        """Return the judgment with further rulings."""
        return replace(self, rulings=(*self.rulings, *rulings))
