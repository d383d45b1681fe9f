"""Runs of the eager model that differ from its plain one: perturbed, reordered, or watched."""

from __future__ import annotations

import os
import sysconfig
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.errors import CheckpointError
from ..core.torch_tools import to_array
from .branch_coverage import Place, trace_lines
from .data_branches import (
    BranchReport,
    QuietShapes,
    is_bitwise_equal,
    is_watchable,
    shorten_path,
    watch_branches,
)
from .eager_perturbations import (
    TieChoices,
    disable_attention_fast_paths,
    order_ties,
    perturb_feed,
    perturb_weights,
    sum_sequentially,
)
from .eager_probes import DiscreteOrigin, ValueProbe, probe_values, watch_discrete_origins
from .run_limits import watch_nonfinite_queries
from .taint import ConversionLog, track_taint

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch

    from ..core.call import Binding
    from ..core.contract import Array, Feed, Outputs

_Answer = TypeVar("_Answer")  # outputs, or outputs that there may be none of
_CACHE_LIMIT = 1 << 28  # bytes of answers that are kept


class EagerVariants(ABC):
    """What a judge asks of eager beside its answer: how far it moves, and what else it may give."""

    _module: torch.nn.Module
    _no_float64: str
    _answers: dict[tuple[int, object], tuple[Feed, Any]] | None = None

    @contextmanager
    def cache_answers(self) -> Iterator[None]:
        """Keep what the variants answer until the end, for callers that ask again and again.

        Answers are known by the feed's identity. Beyond 256 MiB no more are kept.
        """
        self._answers = {}
        try:
            yield
        finally:
            self._answers = None

    def _once(self, variant: object, feed: Feed, answer: Callable[[], _Answer]) -> _Answer:
        """The answer of a variant on this feed, computed once while answers are kept."""
        if self._answers is None:
            return answer()
        key = id(feed), variant
        if key not in self._answers:
            answers = [outputs or {} for _, outputs in self._answers.values()]
            found = answer()
            if sum(array.nbytes for one in answers for array in one.values()) > _CACHE_LIMIT:
                return found
            self._answers[key] = feed, found  # with the feed, so that its identity is not reused
        known: _Answer = self._answers[key][1]
        return known

    @abstractmethod
    def run(self, feed: Feed) -> Outputs:
        """Run one feed; arrays by output name."""

    @abstractmethod
    def run_with_deadline(self, feed: Feed) -> Outputs:
        """As `run`, stopped where it takes much longer than other feeds."""

    @abstractmethod
    def run_exact(self, feed: Feed) -> Outputs | None:
        """Run one feed in float64; None where the model cannot be run so."""

    @abstractmethod
    def _tensors(self, feed: Feed) -> dict[str, torch.Tensor]:
        """The outputs as tensors."""

    def computes(self, feed: Feed, test: Callable[[Array], bool]) -> bool:
        """Whether any float32 tensor that eager computes on this feed passes the test.

        Of a model that does not run while it is watched, what was seen until then counts.
        """
        watch = ValueProbe(test)
        with suppress(CheckpointError), probe_values(watch):
            self._tensors(feed)
        return watch.found

    def run_perturbed(self, feed: Feed, share: float, seed: int) -> Outputs:
        """Run one feed with every float weight and input off by `share` of itself, at random.

        Integers that change are decided by errors of that size. The weights are put back. With the
        negative of a share everything is off the other way.

        Raises:
            CheckpointError: eager rejects the feed.
        """

        def answer() -> Outputs:
            with perturb_weights(self._module, share, seed):
                return self.run_with_deadline(perturb_feed(feed, share, seed))

        return self._once((share, seed), feed, answer)

    def run_sequential_sums(self, feed: Feed) -> Outputs:
        """Run one feed with its sums taken one element after the other (see `sum_sequentially`).

        Raises:
            CheckpointError: eager rejects the feed.
        """

        def answer() -> Outputs:
            with sum_sequentially():
                return self.run(feed)

        return self._once("in turn", feed, answer)

    def run_plain_attention(self, feed: Feed) -> Outputs:
        """Run one feed without the fast paths of attention (see `disable_attention_fast_paths`).

        Raises:
            CheckpointError: eager rejects the feed.
        """

        def answer() -> Outputs:
            with disable_attention_fast_paths():
                return self.run_with_deadline(feed)

        return self._once("plain", feed, answer)

    def run_with_tie_order(self, feed: Feed, *, last: bool, exact: bool = False) -> Outputs | None:
        """Run one feed with equal scores taken by index, the last first or the first first.

        None where no `topk` or `sort` leaves a choice, or, if the answer should be
        the `exact` one, there is no float64.

        Raises:
            CheckpointError: eager rejects the feed.
        """

        def answer() -> Outputs | None:
            choices, refused = TieChoices(last=last), self._no_float64
            with order_ties(choices):
                found = self.run_exact(feed) if exact else self.run_with_deadline(feed)
            self._no_float64 = refused  # that it does not run so says nothing of how it runs
            return found if choices.made else None

        return self._once(("settled", last, exact), feed, answer)

    def draw_perturbed(self, feed: Feed, share: float, *, pairs: int) -> Iterator[Outputs]:
        """`run_off` by seeds from 0, each with the share and its negative.

        A draw that the model rejects, as one that checks the range of its inputs may, is left out.
        """
        for seed in range(pairs):
            for sign in (1, -1):
                with suppress(CheckpointError):
                    yield self.run_perturbed(feed, sign * share, seed)


def describe_feed(feed: Mapping[str, Array], names: Sequence[str]) -> str:
    """`x:float32[2,3], mask:int64[2]`."""
    forms = (f"{n}:{feed[n].dtype}[{','.join(map(str, feed[n].shape))}]" for n in names)
    return ", ".join(forms)


def find_raise_place(error: Exception) -> str:
    """`FILE:LINE` of the innermost line that is not Python's, torch's or ours; else empty."""
    import torch

    ours = Path(__file__).parents[1]
    folders = (Path(torch.__file__).parent, *(ours / n for n in ("capture", "checkpoints", "core")))
    others = tuple(f"{one}{os.sep}" for one in folders)
    standard = sysconfig.get_path("stdlib") + os.sep
    for frame in reversed(extract_tb(error.__traceback__)):
        file = frame.filename
        is_pythons = file.startswith(standard) and "-packages" not in file.removeprefix(standard)
        if not (file.startswith(("<", *others)) or is_pythons):
            return f"{shorten_path(file)}:{frame.lineno}"
    return ""


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
