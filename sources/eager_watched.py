"""Runs of eager that are watched: which branches depend on data, which lines it reaches."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING

from ..core.arrays import to_array
from ..core.errors import CheckpointError
from .arms import Place, trace_lines
from .branches import BranchReport, watch_branches
from .discrete import DiscreteOrigin, watch_discrete_origins
from .eager_variants import EagerVariants
from .quiet import QuietShapes, is_bitwise_equal, is_watchable
from .taint import ConversionLog, track_taint
from .work import watch_nonfinite_queries

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from contextlib import AbstractContextManager

    import torch

    from ..core.call import Binding
    from ..core.contract import Feed, Outputs

# Runs of eager that are watched: which branches depend on data, which lines it reaches.


class EagerWatched(EagerVariants):
    """What is watched while eager runs; a run that answers is watched too, where it may be."""

    _binding: Binding
    _watched: tuple[tuple[str, ...], BranchReport] | None
    _quiet: QuietShapes
    _asks: bool | None
    _discrete: frozenset[DiscreteOrigin] | None

    @abstractmethod
    def _input_tensors(self, feed: Feed) -> list[torch.Tensor]:
        """The tensors of a feed, in the order of the inputs."""

    @abstractmethod
    def _tensors(
        self, feed: Feed, given: list[torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        """The outputs as tensors, of these very tensors where they are given."""

    @abstractmethod
    def _deadline(self, feed: Feed) -> AbstractContextManager[None]:
        """Ends what runs in the block where it takes many more steps than other feeds."""

    @abstractmethod
    def _count_steps(self) -> AbstractContextManager[None]:
        """Counts the steps of the block as those of a usual feed."""

    def run_reference(self, feed: Feed, *, far: bool) -> Outputs:
        """As `run`, or `run_in_time` for values `far` out; watched for branches where it may be.

        The first feed of each form is watched while it is run, where that changes nothing: then
        `branches` need not run it again.
        """
        if self._quiet.is_open(feed):
            with suppress(CheckpointError):  # it may be the watching that eager rejects
                outputs, seen = self._run_watched(feed, far=far)
                if self._quiet.add(feed, seen):
                    return outputs
        return self.run_with_deadline(feed) if far else self.run(feed)

    def _run_watched(self, feed: Feed, *, far: bool = False) -> tuple[Outputs, ConversionLog]:
        given = self._input_tensors(feed)
        limited = self._deadline(feed) if far else self._count_steps()
        with limited, track_taint(self._module, given) as seen:
            tensors = self._tensors(feed, given)
        return {name: to_array(tensor) for name, tensor in tensors.items()}, seen

    def _look_closely(self, feed: Feed, outputs: Outputs) -> None:
        """Watch one run: for branches, if that gives the same bits, and for questions about NaN."""
        if not is_watchable(self._module):
            return
        found: list[str] = []
        try:
            with watch_nonfinite_queries(found):
                watched, seen = self._run_watched(feed)
        except CheckpointError:  # watching changes the model: both are asked for apart
            return
        self._asks = bool(found)
        if is_bitwise_equal(outputs, watched):
            self._quiet.open(feed, seen)

    def branches(self, feeds: Sequence[tuple[str, Feed]], example: Feed | None) -> BranchReport:
        """Which branches depend on tensor data, and which of the feeds take which arm.

        Asked again for the same feeds, it answers from memory.
        """
        names = (*(name for name, _ in feeds), *(() if example is None else ("",)))
        if self._watched is None or self._watched[0] != names:
            found = watch_branches(
                feeds, example, self._watch, self._tensors, quiet=self._quiet.forms
            )
            self._watched = names, found
        return self._watched[1]

    def find_reached_lines(self, feed: Feed, places: Collection[Place]) -> frozenset[Place]:
        """Which of the lines (file, line) eager runs on this feed."""
        return trace_lines(lambda: self._tensors(feed), places)

    def _watch(self, feed: Feed) -> ConversionLog:
        given = self._input_tensors(feed)
        with track_taint(self._module, given) as seen:
            self._binding.call(self._module, given)
        return seen

    def asks_nonfinite(self, feed: Feed) -> bool:
        """Whether the model asks if numbers are NaN or Inf: then it means to take them."""
        if self._asks is not None:
            return self._asks  # seen already in `check_stable`
        found: list[str] = []
        with suppress(CheckpointError), watch_nonfinite_queries(found):
            self._tensors(feed)
        return bool(found)

    def find_discrete_origins(self, feed: Feed) -> frozenset[DiscreteOrigin]:
        """What the floats follow from that are made whole numbers and that no input moves.

        Asked again, it answers from memory, whatever the feed.
        """
        if self._discrete is None:
            found: set[DiscreteOrigin] = set()
            given = self._input_tensors(feed)
            try:
                with watch_discrete_origins(given, found):
                    self._tensors(feed, given)
            except CheckpointError:  # such as an operator that calls functions: not looked into
                found = set(DiscreteOrigin)
            self._discrete = frozenset(found)
        return self._discrete
