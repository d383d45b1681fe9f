"""Runs of eager that differ from its own: other roundings, other sums, other paths, other ties."""

from __future__ import annotations

import os
import sysconfig
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.errors import CheckpointError
from .branches import shorten_path
from .computed import ValueProbe, probe_values
from .in_turn import sum_sequentially
from .off import perturb_feed, perturb_weights
from .plain_attention import disable_attention_fast_paths
from .ties import TieChoices, order_ties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

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
    others = tuple(f"{one}{os.sep}" for one in (Path(torch.__file__).parent, ours / "sources",
                                                ours / "core"))  # fmt: skip
    standard = sysconfig.get_path("stdlib") + os.sep
    for frame in reversed(extract_tb(error.__traceback__)):
        file = frame.filename
        is_pythons = file.startswith(standard) and "-packages" not in file.removeprefix(standard)
        if not (file.startswith(("<", *others)) or is_pythons):
            return f"{shorten_path(file)}:{frame.lineno}"
    return ""
