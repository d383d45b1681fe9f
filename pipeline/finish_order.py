"""The FinishOrder: what was asked of a folder that another host has prepared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from .measuring import Measuring
from .order import Judging, Order, ResumeState
from .recorded import Moved


@dataclass(frozen=True, kw_only=True)
class FinishRequest:
    """One run that carries out the pending steps of an output folder.

    `moved` says where checkpoint and samples are now. What is not given in `judging` is as
    recorded, `settings` of the target stand in place of those that were prepared with. `cache` is a
    folder for what later runs may use again; None does without. `measuring` is what is measured on
    labelled data. `going_on` is what was carried out of it before.
    """

    out: Path
    moved: Moved = field(default_factory=Moved)
    judging: Judging = field(default_factory=Judging)
    settings: Mapping[str, str] = field(default_factory=dict)
    cache: Path | None = None
    measuring: Measuring | None = None
    going_on: ResumeState = field(default_factory=ResumeState)


AnyRequest: TypeAlias = Order | FinishRequest
