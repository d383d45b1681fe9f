"""How much work eager does on a feed: counts of operators and of elements, never of seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.errors import CheckpointError
from ..core.interrupts import StopCallError
from ..core.torch_modes import through_operators

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode

# How much work eager does on a feed: counts of operators and of elements, never of seconds.


@dataclass(frozen=True, kw_only=True)
class Work:
    """The operators that ran, and the elements of the largest tensor that one of them gave."""

    operators: int
    elements: int


class MoreWorkError(CheckpointError):
    """Eager takes a feed, but for the work that it is."""


class WorkExceededError(StopCallError):
    """More work than allowed."""


class Meter:
    """Counts work and stops a run that does more than `most`; None allows any."""

    def __init__(self, most: Work | None) -> None:
        self._most = most
        self._operators = 0
        self._elements = 0
        self.exceeded = False

    @property
    def work(self) -> Work:
        """The work so far."""
        return Work(operators=self._operators, elements=self._elements)

    def add(self, value: object) -> None:
        """Count one operator and what it gave.

        Raises:
            WorkExceededError: it is more than allowed.
        """
        import torch

        self._operators += 1
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, torch.Tensor):
                self._elements = max(self._elements, one.numel())
        most = self._most
        if most is None:
            return
        if self._operators > most.operators or self._elements > most.elements:
            self.exceeded = True
            raise WorkExceededError


# Operators that ask whether a number is NaN or Inf, or that leave these out.
_NONFINITE_QUERIES = ("isnan", "isinf", "isposinf", "isneginf", "nan_to_num", "nansum", "nanmedian")


def watch_nonfinite_queries(found: list[str]) -> TorchDispatchMode:
    """A mode that lists the operators that ask about NaN or Inf; `x != x` is one of them."""

    def note_query(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = func.overloadpacket.__name__.removesuffix("_")
        itself = name in ("eq", "ne") and len(args) > 1 and args[0] is args[1]
        if name in _NONFINITE_QUERIES or itself:
            found.append(name)
        return func(*args, **kwargs)

    return through_operators(note_query)


def make_meter_mode(meter: Meter) -> TorchDispatchMode:
    """A mode in which `meter` counts every operator, those of TorchScript too."""

    def count(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        value = func(*args, **kwargs)
        meter.add(value)
        return value

    return through_operators(count)


def flops_exceed(run: Callable[[], object], most: int) -> bool:
    """Whether a run does more floating point operations, in products, convolutions, attentions.

    It is stopped where it does.
    """
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)

    def count(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if counter.get_total_flops() > most:
            raise WorkExceededError
        return func(*args, **kwargs)

    with counter, through_operators(count):
        try:
            run()
        except WorkExceededError:
            return True
    return int(counter.get_total_flops()) > most
