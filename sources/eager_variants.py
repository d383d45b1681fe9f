"""Runs of eager that differ from its own: other roundings, other sums, other paths, other ties."""

from __future__ import annotations

import os
import sysconfig
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING

from ..core.errors import CheckpointError
from .branches import shortest
from .computed import Watch, watching
from .in_turn import in_turn
from .off import off_feed, off_weights
from .plain_attention import plain_paths
from .ties import Choices, settling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    from ..core.contract import Array, Feed, Outputs


class EagerVariants(ABC):
    """What a judge asks of eager beside its answer: how far it moves, and what else it may give."""

    _module: torch.nn.Module
    _no_float64: str

    @abstractmethod
    def run(self, feed: Feed) -> Outputs:
        """Run one feed; arrays by output name."""

    @abstractmethod
    def run_in_time(self, feed: Feed) -> Outputs:
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
        watch = Watch(test)
        with suppress(CheckpointError), watching(watch):
            self._tensors(feed)
        return watch.found

    def run_off(self, feed: Feed, share: float, seed: int) -> Outputs:
        """Run one feed with every float weight and input off by `share` of itself, at random.

        Integers that change are decided by errors of that size. The weights are put back. With the
        negative of a share everything is off the other way.

        Raises:
            CheckpointError: eager rejects the feed.
        """
        with off_weights(self._module, share, seed):
            return self.run_in_time(off_feed(feed, share, seed))

    def run_in_turn(self, feed: Feed) -> Outputs:
        """Run one feed with its sums taken one element after the other (see `in_turn`).

        Raises:
            CheckpointError: eager rejects the feed.
        """
        with in_turn():
            return self.run(feed)

    def run_plain(self, feed: Feed) -> Outputs:
        """Run one feed without the fast paths of attention (see `plain_paths`).

        Raises:
            CheckpointError: eager rejects the feed.
        """
        with plain_paths():
            return self.run_in_time(feed)

    def run_settled(self, feed: Feed, *, last: bool, exact: bool = False) -> Outputs | None:
        """Run one feed with equal scores taken by index, the last first or the first first.

        None where no `topk` or `sort` leaves a choice (see `ties`), or, if the answer should be
        the `exact` one, there is no float64.

        Raises:
            CheckpointError: eager rejects the feed.
        """
        choices, refused = Choices(last=last), self._no_float64
        with settling(choices):
            found = self.run_exact(feed) if exact else self.run_in_time(feed)
        self._no_float64 = refused  # that it does not run so says nothing of how it runs
        return found if choices.made else None

    def draws_off(self, feed: Feed, share: float, *, pairs: int) -> Iterator[Outputs]:
        """`run_off` by seeds from 0, each with the share and its negative.

        A draw that the model rejects, as one that checks the range of its inputs may, is left out.
        """
        for seed in range(pairs):
            for sign in (1, -1):
                with suppress(CheckpointError):
                    yield self.run_off(feed, sign * share, seed)


def describe_feed(feed: Mapping[str, Array], names: Sequence[str]) -> str:
    """`x:float32[2,3], mask:int64[2]`."""
    forms = (f"{n}:{feed[n].dtype}[{','.join(map(str, feed[n].shape))}]" for n in names)
    return ", ".join(forms)


def place_raised(error: Exception) -> str:
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
            return f"{shortest(file)}:{frame.lineno}"
    return ""
