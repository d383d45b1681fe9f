"""The screen of a run: what models tell, each line with its model's name before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock

from ..core.events import Entered, Event, Noted, Tell
from ..projects.records import ModelOrder
from .screen import Screen


def name_column_width(models: Sequence[ModelOrder]) -> int:
    """Columns of the models' names and what parts them from the rest; none for one model."""
    return max(len(model.name) for model in models) + 2 if len(models) > 1 else 0


def make_model_listener(screen: Screen, width: int) -> Callable[[str], Tell]:
    """The screen for each model, its name before what is told where there is room for it."""
    lock = Lock()

    def of(name: str) -> Tell:
        before = f"{name:<{width}}" if width else ""

        def tell(event: Event) -> None:
            with lock:
                screen(_prefix_event(event, before))

        return tell

    return of


def _prefix_event(event: Event, before: str) -> Event:
    match event:
        case Noted():
            return replace(event, text=f"{before}{event.text}")
        case Entered():
            return event
        case _:
            return replace(event, step=f"{before}{event.step}")
