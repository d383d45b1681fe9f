"""The faults of a project are told all at once, each with its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..core.errors import MissingError, ModelcError, UsageError


class ProjectError(UsageError):
    """Several things are wrong in a project; `faults` are they, in order."""

    def __init__(self, faults: Sequence[ModelcError]) -> None:
        super().__init__(_joined(faults), hint=faults[0].hint)
        self.faults = tuple(faults)


class ProjectMissingError(MissingError):
    """Several things that a project needs are not here, and nothing else is wrong with it."""

    def __init__(self, faults: Sequence[ModelcError]) -> None:
        super().__init__(_joined(faults), hint=faults[0].hint)
        self.faults = tuple(faults)


def _joined(faults: Sequence[ModelcError]) -> str:
    return f"{len(faults)} faults: " + "; ".join(fault.message for fault in faults)


def each_of(error: ModelcError) -> tuple[ModelcError, ...]:
    """The faults that an error stands for: its own, or itself."""
    return error.faults if isinstance(error, ProjectError | ProjectMissingError) else (error,)


class Faults:
    """Gathers what is wrong, so that one fault does not hide the next."""

    def __init__(self) -> None:
        self.found: list[ModelcError] = []

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Keep an error of the block, with its place before its message."""
        try:
            yield
        except ModelcError as error:
            self.keep(error, place)

    def keep(self, error: ModelcError, place: str) -> None:
        """Keep an error, with its place before its message."""
        for one in each_of(error):
            self.found.append(type(one)(f"{place}: {one.message}", hint=one.hint))

    def add(self, message: str, *, hint: str) -> None:
        """Keep one of our own."""
        self.found.append(UsageError(message, hint=hint))

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
