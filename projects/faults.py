"""The faults of a project are told all at once, each with its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..core.errors import MissingError, ModelcError, Place, UsageError
from .records import KeyPath
from .wording import place_error


class ProjectError(UsageError):
    """Several things are wrong in a project; `faults` are they, in order."""

    def __init__(self, faults: Sequence[ModelcError]) -> None:
        super().__init__(_join_messages(faults), hint=faults[0].advice)
        self.faults = tuple(faults)


class ProjectMissingError(MissingError):
    """Several things that a project needs are not here, and nothing else is wrong with it."""

    def __init__(self, faults: Sequence[ModelcError]) -> None:
        super().__init__(_join_messages(faults), hint=faults[0].advice)
        self.faults = tuple(faults)


def _join_messages(faults: Sequence[ModelcError]) -> str:
    return f"{len(faults)} faults: " + "; ".join(fault.text for fault in faults)


def split_faults(error: ModelcError) -> tuple[ModelcError, ...]:
    """The faults that an error stands for: its own, or itself."""
    return error.faults if isinstance(error, ProjectError | ProjectMissingError) else (error,)


class Faults:
    """Gathers what is wrong, so that one fault does not hide the next.

    `refused` are settings and tables that are among them, as ("models", "digits", "to") or
    ("defaults",): that they lack later is no second fault.
    """

    def __init__(self) -> None:
        self.found: list[ModelcError] = []
        self.refused: set[KeyPath] = set()

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Keep an error of the block at this place."""
        try:
            yield
        except ModelcError as error:
            self.keep(error, place)

    @contextmanager
    def note_refusal(self, setting: KeyPath) -> Iterator[None]:
        """Note a setting whose value the block refuses."""
        try:
            yield
        except ModelcError:
            self.refused.add(setting)
            raise

    def is_refused(self, model: str, key: str) -> bool:
        """Whether a key of a model, or of all, or a table around it was refused."""
        paths = (("models", model, key), ("defaults", key))
        return any(path[:size] in self.refused for path in paths for size in (1, 2, 3))

    def keep(self, error: ModelcError, place: Place) -> None:
        """Keep an error at this place."""
        for one in split_faults(error):
            self.found.append(place_error(one, {"": place}))

    def add(self, message: str, *, hint: str, place: Place | None = None) -> None:
        """Keep one of our own."""
        self.found.append(UsageError(message, hint=hint, place=place))

    def raise_any(self) -> None:
        """Raise what was found, if anything was.

        Raises:
            ModelcError: the one fault, or all of them as one.
        """
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            missing = all(isinstance(fault, MissingError) for fault in self.found)
            raise (ProjectMissingError if missing else ProjectError)(self.found)
