"""What a verdict is drawn from: what eager gave on each feed, and what the artifact gave."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.contract import Outputs
from .feeds import NamedFeed


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One feed and eager's outputs on it."""

    feed: NamedFeed
    outputs: Outputs


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The artifact's outputs on one feed; None where it refused, and then `error` says why."""

    outputs: Outputs | None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One feed that was answered: eager's outputs beside the artifact's."""

    feed: NamedFeed
    eager: Outputs
    artifact: Outputs
