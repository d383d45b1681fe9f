"""Which experts eager's routers choose for each token, and which others are as good by rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from ..core.contract import Array
from ..core.torch_tools import intercept_operators

if TYPE_CHECKING:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

_DRAWN_SIGMAS = 4.0  # of the noise of a margin, which few draws estimate
_EDGE = 2  # experts on each side of the edge between the chosen and the others


@dataclass(frozen=True, kw_only=True)
class RouterScores:
    """What one router chose from: scores, [tokens, experts] in float64, of which `count` win."""

    scores: Array
    count: int

    @property
    def winners(self) -> Array:
        """The experts of each token from the best, [tokens, count]."""
        import numpy as np

        found: Array = np.argsort(-self.scores, axis=1, kind="stable")[:, : self.count]
        return found

    def margins(self, one: Array, other: Array) -> Array:
        """Return how much higher the score of one expert is than that of another, by token."""
        import numpy as np

        rows = np.arange(len(self.scores))
        found: Array = self.scores[rows, one] - self.scores[rows, other]
        return found


@dataclass(frozen=True, kw_only=True)
class OtherExperts:
    """Experts that rounding may choose in place of those that a router has.

    Attributes:
        router: its place among those of the model.
        experts: [tokens, count], with one of them exchanged.
        distance: the margin as a share of what rounding may move it by, [tokens].
    """

    router: int
    experts: Array
    distance: Array


def list_others(
    routers: Sequence[RouterScores],
    draws: Sequence[Sequence[RouterScores]],
    given: Sequence[Array],
) -> Iterator[OtherExperts]:
    """Yield choices with one other expert, from the given ones (-1 where the router chose).

    Rounding may move a margin by four times its RMS over the draws, at least the median of all
    tokens.
    """
    import numpy as np

    for place, router in enumerate(routers):
        count, now = router.count, np.where(given[place] < 0, router.winners, given[place])
        taken = np.zeros(router.scores.shape, bool)
        np.put_along_axis(taken, now, values=True, axis=1)
        order = np.lexsort((-router.scores, ~taken), axis=1)
        kept, others = range(max(count - _EDGE, 0), count), range(count, order.shape[1])[:_EDGE]
        for last, following in product(kept, others):
            pair = order[:, last], order[:, following]
            margin = router.margins(*pair)
            moved = np.stack([one[place].margins(*pair) - margin for one in draws])
            noise = np.sqrt(np.mean(moved**2, axis=0))
            limit = _DRAWN_SIGMAS * np.maximum(noise, np.median(noise))
            experts = order[:, :count].copy()
            experts[:, last] = order[:, following]
            distance = np.abs(margin) / np.maximum(limit, np.finfo(float).tiny)
            yield OtherExperts(router=place, experts=experts, distance=distance)


def count_moved(routers: Sequence[RouterScores], draw: Sequence[RouterScores]) -> int:
    """Return how many tokens have another expert in a draw, in any router."""
    import numpy as np

    moved = [
        (np.sort(one.winners) != np.sort(other.winners)).any(1)
        for one, other in zip(routers, draw, strict=True)
    ]
    return int(np.any(moved, axis=0).sum()) if moved else 0


def route_tokens(
    tokens: int, found: list[RouterScores], given: Sequence[Array] = ()
) -> TorchDispatchMode:
    """Return a mode that adds the scores of each router to `found`, and may choose in its place.

    Args:
        tokens: their number, batch by sequence.
        found: takes the scores.
        given: by router, the experts of each token, [tokens, count]; -1 where the router chooses.
    """
    import torch

    def route(scores: torch.Tensor, count: int) -> Any:
        place = len(found)
        found.append(RouterScores(scores=scores.double().cpu().numpy(), count=count))
        if place >= len(given) or (given[place] < 0).all():
            return None
        experts = torch.from_numpy(given[place])
        own = torch.topk(scores, count, dim=-1).indices
        indices = torch.where(experts < 0, own, experts)
        return scores.gather(-1, indices), indices

    return _intercept_routers(tokens, route)


def _intercept_routers(
    tokens: int, handle: Callable[[torch.Tensor, int], Any]
) -> TorchDispatchMode:
    """Return a mode that hands scores and count of each `topk` over experts to a function."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    def intercept(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func is not torch.ops.aten.topk.default or not _is_choice_by_row(args, kwargs):
            return func(*args, **kwargs)
        scores, count = args[0].detach(), int(args[1])
        if scores.numel() != tokens * scores.shape[-1]:
            return func(*args, **kwargs)
        with _disable_current_modes():
            found = handle(scores.reshape(tokens, -1), count)
        if found is None:
            return func(*args, **kwargs)
        return tuple(one.reshape(*scores.shape[:-1], count) for one in found)

    return intercept_operators(intercept)


def _is_choice_by_row(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a `topk` chooses some of the largest floats along the last axis."""
    scores, count = args[0], args[1]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)  # noqa: PLR2004 - its position
    largest = args[3] if len(args) > 3 else kwargs.get("largest", True)  # noqa: PLR2004 - likewise
    experts = scores.shape[-1] if scores.dim() else 0
    return bool(
        scores.dim() > 1
        and scores.is_floating_point()
        and dim in (-1, scores.dim() - 1)
        and largest
        and count < experts
    )
