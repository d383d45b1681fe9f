"""Which experts eager's routers choose for each token, and how close the next expert is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.contract import Array
from ..core.torch_tools import intercept_operators

if TYPE_CHECKING:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

_DRAWN_SIGMAS = 3.0  # of the noise of a margin: a token within them may go to another expert


@dataclass(frozen=True, kw_only=True)
class RouterScores:
    """What one router chose from: scores, [tokens, experts] in float64, of which `count` win."""

    scores: Array
    count: int

    def choose(self) -> tuple[Array, Array]:
        """Return the last chosen expert of each token, and the first that is not, by index."""
        import numpy as np

        order = np.argsort(-self.scores, axis=1, kind="stable")
        return order[:, self.count - 1], order[:, self.count]

    def margins(self, last: Array, following: Array) -> Array:
        """Return how much higher the score of one expert is than that of another, by token."""
        import numpy as np

        rows = np.arange(len(self.scores))
        found: Array = self.scores[rows, last] - self.scores[rows, following]
        return found

    def mark_chosen(self) -> Array:
        """Return which experts are chosen, [tokens, experts]."""
        import numpy as np

        found = np.zeros(self.scores.shape, bool)
        order = np.argsort(-self.scores, axis=1, kind="stable")[:, : self.count]
        np.put_along_axis(found, order, values=True, axis=1)
        return found


def find_near_tokens(router: RouterScores, draws: Sequence[RouterScores]) -> Array:
    """Return the tokens whose next expert is as close as the noise of the draws, [tokens].

    A token's noise is the RMS of its margin over the draws, at least the median of all tokens.
    """
    import numpy as np

    last, following = router.choose()
    margin = router.margins(last, following)
    moved = np.stack([one.margins(last, following) - margin for one in draws])
    noise = np.sqrt(np.mean(moved**2, axis=0))
    near: Array = margin <= _DRAWN_SIGMAS * np.maximum(noise, np.median(noise))
    return near


def count_moved(routers: Sequence[RouterScores], draw: Sequence[RouterScores]) -> int:
    """Return how many tokens have another expert in a draw, in any router."""
    import numpy as np

    moved = [
        (one.mark_chosen() != other.mark_chosen()).any(1)
        for one, other in zip(routers, draw, strict=True)
    ]
    return int(np.any(moved, axis=0).sum()) if moved else 0


def watch_routers(tokens: int, found: list[RouterScores]) -> TorchDispatchMode:
    """Return a mode that adds the scores of each router to `found`, for so many tokens."""

    def record(scores: torch.Tensor, count: int) -> None:
        found.append(RouterScores(scores=scores.double().cpu().numpy(), count=count))

    return _intercept_routers(tokens, record)


def exchange_experts(tokens: int, near: Sequence[Array]) -> TorchDispatchMode:
    """Return a mode in which marked tokens get the next expert in place of the last chosen.

    Args:
        tokens: their number, batch by sequence.
        near: by router, which tokens to change.
    """
    import torch

    left = list(near)

    def exchange(scores: torch.Tensor, count: int) -> Any:
        values, indices = torch.topk(scores, count + 1, dim=-1)
        marked = torch.from_numpy(left.pop(0)) if left else torch.zeros(tokens, dtype=torch.bool)
        for one in (values, indices):
            one[marked, count - 1] = one[marked, count]
        return values[:, :count].contiguous(), indices[:, :count].contiguous()

    return _intercept_routers(tokens, exchange)


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
