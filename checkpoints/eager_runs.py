"""Variants of eager's run: perturbed, reordered, or observed for branches on data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.errors import CheckpointError, ErrorCode, Hint, Option, first_line
from ..core.torch_tools import to_array
from .branch_tracer import Place, trace_lines
from .data_branches import (
    BranchReport,
    QuietShapes,
    is_bitwise_equal,
    is_watchable,
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
from .eager_probes import DiscreteOrigin, watch_discrete_origins, watch_values
from .enclosed_module import EnclosedSteps
from .float64_eager import Float64Error, Float64Module, open_float64
from .rounded_layers import (
    LayerRounding,
    list_active_modules,
    list_matrix_layers,
    round_layers,
)
from .router_choices import RouterScores, route_tokens
from .run_limits import watch_nonfinite_queries
from .taint import ConversionLog, track_taint
from .user_code import locate_user_code
from .weight_exchange import WeightUses, carry_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch

    from ..core.call import Binding
    from ..core.contract import Array, Feed, Outputs
    from ..core.findings import ReferenceRuntime
    from ..core.weights import RoundedWeight

_Answer = TypeVar("_Answer")  # outputs, or None
_CACHE_LIMIT = 1 << 28  # bytes of cached outputs


class EagerVariants(ABC):
    """Variants of eager's outputs for judging, and observations of its runs.

    Reference runs are observed as well where possible. What answers without a module, which can be
    neither captured nor searched by layers, is a converted model (`reference`) or stored outputs.
    """

    has_module = True
    reference: ReferenceRuntime | None = None

    _module: torch.nn.Module
    inputs: tuple[str, ...]
    _drop: tuple[str, ...]
    _exact: Float64Module | None
    _no_float64: str
    _binding: Binding
    _watched: tuple[tuple[str, ...], BranchReport] | None
    _quiet: QuietShapes
    _asks: bool | None
    _discrete: frozenset[DiscreteOrigin] | None
    _cache: dict[tuple[int, object], tuple[Feed, Any]] | None = None

    @contextmanager
    def cache_variants(self) -> Iterator[None]:
        """Cache the outputs of variants within the context.

        The key is the feed's identity. The cache holds at most 256 MiB.
        """
        self._cache = {}
        try:
            yield
        finally:
            self._cache = None

    def _once(self, variant: object, feed: Feed, answer: Callable[[], _Answer]) -> _Answer:
        """Return the outputs of a variant on a feed, cached within `cache_variants`."""
        if self._cache is None:
            return answer()
        key = id(feed), variant
        if key not in self._cache:
            answers = [outputs or {} for _, outputs in self._cache.values()]
            found = answer()
            if sum(array.nbytes for one in answers for array in one.values()) > _CACHE_LIMIT:
                return found
            self._cache[key] = feed, found  # keep the feed, so that its id is not reused
        known: _Answer = self._cache[key][1]
        return known

    @abstractmethod
    def run(self, feed: Feed) -> Outputs:
        """Run one feed; return arrays by output name."""

    @abstractmethod
    def run_with_deadline(self, feed: Feed) -> Outputs:
        """Run one feed with a limit of steps."""

    @abstractmethod
    def run_exact(self, feed: Feed) -> Outputs | None:
        """Run one feed in float64; None if the model cannot run so."""

    @abstractmethod
    def _input_tensors(self, feed: Feed) -> list[torch.Tensor]:
        """Return the tensors of a feed, in the order of the inputs."""

    @abstractmethod
    def _tensors(
        self, feed: Feed, given: list[torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the outputs as tensors, for the given tensors if any."""

    @abstractmethod
    def _deadline(self, feed: Feed) -> AbstractContextManager[None]:
        """Stop the block if it takes many more steps than other feeds."""

    @abstractmethod
    def _count_steps(self) -> AbstractContextManager[None]:
        """Count the steps of the block as those of a usual feed."""

    def computes(self, feed: Feed, test: Callable[[Array], bool]) -> bool:
        """Whether any float32 tensor that eager computes on this feed passes the test.

        If the observed model fails, the tensors until then count.
        """
        found: list[bool] = []
        with suppress(CheckpointError), watch_values(test, found):
            self._tensors(feed)
        return bool(found)

    def run_perturbed(self, feed: Feed, share: float, seed: int) -> Outputs:
        """Run one feed with every float weight and input perturbed by a random `share` of itself.

        Integers that change depend on errors of that size. The weights are restored. A negative
        share reverses the perturbation.

        Raises:
            CheckpointError: eager rejects the feed.
        """

        def answer() -> Outputs:
            with perturb_weights(self._module, share, seed):
                return self.run_with_deadline(perturb_feed(feed, share, seed))

        return self._once((share, seed), feed, answer)

    def run_sequential_sums(self, feed: Feed) -> Outputs:
        """Run one feed with sequential sums (see `sum_sequentially`).

        Raises:
            CheckpointError: eager rejects the feed.
        """

        def answer() -> Outputs:
            with sum_sequentially():
                return self.run(feed)

        return self._once("sequential", feed, answer)

    def run_plain_attention(self, feed: Feed) -> Outputs:
        """Run one feed without fast paths of attention (see `disable_attention_fast_paths`).

        Raises:
            CheckpointError: eager rejects the feed.
        """

        def answer() -> Outputs:
            with disable_attention_fast_paths():
                return self.run_with_deadline(feed)

        return self._once("plain", feed, answer)

    def run_with_tie_order(self, feed: Feed, *, last: bool, exact: bool = False) -> Outputs | None:
        """Run one feed with ties broken by index, from the last or the first.

        None if no `topk` or `sort` leaves a choice, or, with `exact`, without a float64 reference.

        Raises:
            CheckpointError: eager rejects the feed.
        """

        def answer() -> Outputs | None:
            choices, before = TieChoices(last=last), self._no_float64
            with order_ties(choices):
                found = self.run_exact(feed) if exact else self.run_with_deadline(feed)
            self._no_float64 = before  # failing with this order does not count
            return found if choices.made else None

        return self._once(("ties", last, exact), feed, answer)

    def record_routers(
        self, feed: Feed, given: Sequence[Array], *, share: float, seed: int
    ) -> tuple[RouterScores, ...]:
        """Return the scores of each router perturbed by a share, with given experts.

        Raises:
            CheckpointError: eager rejects the feed.
        """
        with perturb_weights(self._module, share, seed):
            return self.run_with_experts(perturb_feed(feed, share, seed), len(given[0]), given)[1]

    def run_with_experts(
        self, feed: Feed, tokens: int, given: Sequence[Array] = ()
    ) -> tuple[Outputs, tuple[RouterScores, ...]]:
        """Run one feed of so many tokens with given experts (see `route_tokens`).

        Raises:
            CheckpointError: eager rejects the feed.
        """
        found: list[RouterScores] = []
        with route_tokens(tokens, found, given):
            tensors = self._tensors(feed)
        return {name: to_array(tensor) for name, tensor in tensors.items()}, tuple(found)

    @contextmanager
    def carry_weights(self, weights: Sequence[RoundedWeight]) -> Iterator[WeightUses]:
        """Use an artifact's weights in all runs within the context, also those in float64.

        A float64 copy would hold the weights of one side on the other: there is one for each, and
        here it shares the tensors whose uses are seen.
        """
        before = self._cache, self._no_float64, self._exact
        self._cache = self._exact = None
        try:
            if not self._no_float64:
                self._exact = open_float64(
                    self._module, self.inputs, self._binding, drop=self._drop, whole=0
                )
        except Float64Error as error:
            self._no_float64 = str(error)
        try:
            with carry_weights(self._module, weights) as uses:
                yield uses
        finally:
            self._cache, self._no_float64, self._exact = before

    def list_layers(self, feed: Feed, rounding: LayerRounding) -> tuple[str, ...]:
        """Return the paths of layers that a precision may round.

        Raises:
            CheckpointError: eager rejects the feed.
        """
        if rounding.size is not None:
            return list_matrix_layers(self._module, tables=rounding.tables)
        found: dict[str, None] = {}
        with list_active_modules(self._module, found):
            self._tensors(feed)
        return tuple(found)

    def run_rounded(self, feed: Feed, layers: Sequence[str], rounding: LayerRounding) -> Outputs:
        """Run one feed with these layers rounded as a precision rounds them.

        Raises:
            CheckpointError: eager rejects the feed.
        """
        with round_layers(self._module, layers, rounding):
            tensors = self._tensors(feed)
        return {name: to_array(tensor) for name, tensor in tensors.items()}

    def draw_perturbed(self, feed: Feed, share: float, *, pairs: int) -> Iterator[Outputs]:
        """Yield perturbed runs by seeds from 0, each with the share and its negative.

        Draws that the model rejects, for instance for the range of inputs, are skipped.
        """
        for seed in range(pairs):
            for sign in (1, -1):
                with suppress(CheckpointError):
                    yield self.run_perturbed(feed, sign * share, seed)

    def run_reference(self, feed: Feed, *, extreme: bool) -> Outputs:
        """Run a feed (with a step limit for extreme values), observing branches where possible.

        The first feed of each shape is observed if that does not change outputs, so that
        `branches` need not run it again.
        """
        if self._quiet.is_open(feed):
            with suppress(CheckpointError):  # observing may cause the error
                outputs, seen = self._run_watched(feed, extreme=extreme)
                if self._quiet.add(feed, seen):
                    return outputs
        return self.run_with_deadline(feed) if extreme else self.run(feed)

    def _run_watched(self, feed: Feed, *, extreme: bool = False) -> tuple[Outputs, ConversionLog]:
        given = self._input_tensors(feed)
        limited = self._deadline(feed) if extreme else self._count_steps()
        with limited, track_taint(self._module, given) as seen:
            tensors = self._tensors(feed, given)
        return {name: to_array(tensor) for name, tensor in tensors.items()}, seen

    def _observe_run(self, feed: Feed, outputs: Outputs) -> None:
        """Observe one run for branches, if outputs stay bitwise equal, and for tests for NaN."""
        if not is_watchable(self._module):
            return
        found: list[str] = []
        try:
            with watch_nonfinite_queries(found):
                watched, seen = self._run_watched(feed)
        except CheckpointError:  # observing changes the model
            return
        self._asks = bool(found)
        if is_bitwise_equal(outputs, watched):
            self._quiet.open(feed, seen)

    def branches(self, feeds: Sequence[tuple[str, Feed]], example: Feed | None) -> BranchReport:
        """Return branches on tensor data, and their outcomes on the feeds; cached."""
        names = (*(name for name, _ in feeds), *(() if example is None else ("",)))
        if self._watched is None or self._watched[0] != names:
            found = watch_branches(
                feeds, example, self._watch, self._tensors, quiet=self._quiet.forms
            )
            self._watched = names, found
        return self._watched[1]

    def find_reached_lines(self, feed: Feed, places: Collection[Place]) -> frozenset[Place]:
        """Return which of the lines (file, line) eager executes on this feed."""
        return trace_lines(lambda: self._tensors(feed), places)

    def _watch(self, feed: Feed) -> ConversionLog:
        given = self._input_tensors(feed)
        with track_taint(self._module, given) as seen:
            self._binding.call(self._module, given)
        return seen

    def asks_nonfinite(self, feed: Feed) -> bool:
        """Whether the model tests for NaN or Inf, and so supports them."""
        if self._asks is not None:
            return self._asks  # known from `check_stable`
        found: list[str] = []
        with suppress(CheckpointError), watch_nonfinite_queries(found):
            self._tensors(feed)
        return bool(found)

    def find_discrete_origins(self, feed: Feed) -> frozenset[DiscreteOrigin]:
        """Return the origins of floats that become integers and depend on no input; cached."""
        if self._discrete is None:
            found: set[DiscreteOrigin] = set()
            given = self._input_tensors(feed)
            try:
                with watch_discrete_origins(given, found):
                    self._tensors(feed, given)
            except CheckpointError:  # such as a higher-order operator
                found = set(DiscreteOrigin)
            self._discrete = frozenset(found)
        return self._discrete


def describe_feed(feed: Mapping[str, Array], names: Sequence[str]) -> str:
    """Format a feed as `x:float32[2,3], mask:int64[2]`."""
    forms = (f"{n}:{feed[n].dtype}[{','.join(map(str, feed[n].shape))}]" for n in names)
    return ", ".join(forms)


def make_rejection(error: Exception, form: str, steps: EnclosedSteps | None) -> CheckpointError:
    """Return the error for a feed of this form that the model rejects, or a step around it."""
    running = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
    text, place, option = first_line(error), locate_user_code(error), "input"
    if steps is not None and EnclosedSteps.replace_image.__code__ in running:
        text = f"--include-preprocess: {text}"
        hint = Hint("for example ", Option("input", f"{steps.image}:uint8[batch,height,width,3]"))
    elif steps is not None and EnclosedSteps.replace_output.__code__ in running:
        option, text = "postprocess", f"--postprocess {steps.after}: {text}"
        example = "softmax" if steps.after is None or steps.after.nms is None else "sigmoid,nms"
        hint = Hint("for example ", Option("postprocess", example))
    else:
        text = f"eager rejects {form}: {text}{place and f' ({place.strip()})'}"
        declared = Option("input", "NAME:DTYPE[DIM,...]")
        hint = Hint("correct the dtype and dims with ", declared, place and ", or that line")
    return CheckpointError(text, hint=hint, option=option, code=ErrorCode.FEED_REJECTED)
