"""What a verdict is drawn from: what eager gave on each feed, and what the artifact gave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..core.contract import Array, Feed, Outputs
from .feeds import SAMPLE, NamedFeed


@dataclass(frozen=True, kw_only=True)
class ReferenceOutputs:
    """One feed and eager's outputs on it; `exact` are those of eager in float64, if it has any.

    `again` are what eager gives with its weights and inputs off by one rounding: more draws of its
    noise, asked for where one says too little. `sequential` is eager with its sums taken one
    element after the other: asked for with these. `settled` says which of equal scores these
    outputs have taken, where that is left open and they are not eager's own choice, or that they
    are eager's plain path. `left_out` are outputs that are not judged on this feed: values far out
    make NaN of some, which says nothing, while others are numbers.
    """

    feed: NamedFeed
    outputs: Outputs
    exact: Outputs | None = None
    again: tuple[Outputs, ...] = ()
    sequential: Outputs | None = None
    settled: str = ""
    left_out: frozenset[str] = frozenset()


def find_sample(references: Iterable[ReferenceOutputs]) -> Feed | None:
    """The user's own sample among the feeds, which says what values are like."""
    return next((one.feed.arrays for one in references if one.feed.name == SAMPLE), None)


@dataclass(frozen=True, kw_only=True)
class ArtifactOutputs:
    """The artifact's outputs on one feed; None where it refused, and then `error` says why.

    `undecided` marks, by output, integers and bools that roundoff decides: eager itself gives
    others when its weights and inputs are off by that much.
    """

    outputs: Outputs | None
    error: str = ""
    undecided: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OutputPair:
    """One feed that was answered: eager's outputs beside the artifact's."""

    feed: NamedFeed
    eager: Outputs
    artifact: Outputs
    exact: Outputs | None = None
    again: tuple[Outputs, ...] = ()
    sequential: Outputs | None = None
    undecided: Mapping[str, Array] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
