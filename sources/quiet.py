"""Which runs of eager may be watched for branches while they answer, and what that showed.

Watching puts modes of torch around a run. Where the outputs are the same bits so, and no module is
known that asks about modes, a run that is watched is eager's own answer: a feed need not be run
twice, once to answer and once to be watched. That ends at the first value of tensor data that
becomes a Python value: then all feeds are watched apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from .exact import has_script

if TYPE_CHECKING:
    import torch

    from ..core.contract import Feed, Outputs
    from .taint import ConversionLog

# Which runs of eager may be watched for branches while they answer, and what that showed.
#
# Watching puts modes of torch around a run. Where the outputs are the same bits so, and no module
# is known that asks about modes, a run that is watched is eager's own answer: a feed need not be
# run twice, once to answer and once to be watched. That ends at the first value of tensor data that
# becomes a Python value: then all feeds are watched apart.


FeedShapes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]  # each input with its shape

# Modules that take another path where a mode sees their calls, by the name of a class or a base.
_UNWATCHABLE_CLASSES = frozenset(
    ("MultiheadAttention", "TransformerEncoder", "TransformerEncoderLayer", "OptimizedModule")
)


def shapes_of_feed(feed: Feed) -> FeedShapes:
    """The shapes that Python code can tell feeds apart by, data aside."""
    return tuple((name, tuple(array.shape)) for name, array in feed.items())


def is_watchable(module: torch.nn.Module) -> bool:
    """Whether no part is known to compute otherwise where it is watched, or not to be seen."""
    if has_script(module):
        return False
    kinds = {type(part) for part in module.modules()}
    return not any(base.__name__ in _UNWATCHABLE_CLASSES for kind in kinds for base in kind.__mro__)


def is_bitwise_equal(one: Outputs, other: Outputs) -> bool:
    """Whether all outputs are equal in names, dtypes, shapes and bytes."""
    return list(one) == list(other) and all(
        array.dtype == other[name].dtype
        and array.shape == other[name].shape
        and array.tobytes() == other[name].tobytes()
        for name, array in one.items()
    )


class QuietShapes:
    """The forms of feeds on which a watched run turned no tensor data into Python values.

    Closed until a run was shown to be the same when it is watched, and from the first on that
    was not quiet.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._forms: set[FeedShapes] = set()

    @property
    def forms(self) -> frozenset[FeedShapes]:
        """The forms so far; none where one was not quiet."""
        return frozenset(self._forms)

    def is_open(self, feed: Feed) -> bool:
        """Whether the feed may be watched while it is run, and is of a form not seen yet."""
        return self._is_open and shapes_of_feed(feed) not in self._forms

    def open(self, feed: Feed, seen: ConversionLog) -> None:
        """A watched run gave the same bits as a plain one."""
        self._is_open = True
        self.add(feed, seen)

    def add(self, feed: Feed, seen: ConversionLog) -> bool:
        """Take in a watched run; whether it was quiet."""
        if seen:
            self._is_open = False
            self._forms.clear()
        elif self._is_open:
            self._forms.add(shapes_of_feed(feed))
        return not seen
