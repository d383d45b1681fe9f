"""What one model answered on labelled samples: a few bytes a sample, and the metric over all."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..core.contract import Array
from ..core.errors import UsageError
from ..core.names import unknown
from .own_metric import UserSetMetric, make_user_metric
from .task_metrics import BUILT_IN, SampleMetric, SquaredError, TopK

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ModelAnswers:
    """What one model answered on the labelled samples seen so far."""

    def __init__(self, metric: SampleMetric | UserSetMetric) -> None:
        self.metric = metric
        self.classes = 0
        self._scores = array("d")
        self._top = array("q")
        self._width = 0
        self._nonfinite = array("q")
        self._predictions: list[Array] = []  # of `whole` metrics alone
        self._labels: list[Array] = []
        self._value: float | None = None

    def __len__(self) -> int:
        return len(self._nonfinite)

    def add(self, predictions: Array, labels: Array) -> None:
        """Take a batch; both have one row a sample.

        Raises:
            LabelFaultError: a label cannot be scored.
            UsageError: the user's own metric raised.
        """
        import numpy as np

        rows = len(labels)
        flat = predictions.reshape(rows, -1)
        bad = ~np.isfinite(flat) if flat.dtype.kind in "fc" else np.zeros(flat.shape, dtype=bool)
        self._nonfinite.extend(bad.sum(axis=1).tolist())
        self._value = None
        if isinstance(self.metric, UserSetMetric):
            self._predictions += [np.array(row) for row in predictions]
            self._labels += [np.array(row) for row in labels]
            return
        scored = self.metric.score(predictions, labels)
        self._scores.extend(scored.scores.tolist())
        if scored.top is not None:
            self._width, self.classes = scored.top.shape[1], scored.classes
            self._top.extend(scored.top.reshape(-1).tolist())

    @property
    def value(self) -> float:
        """The metric over all samples.

        Raises:
            UsageError: the user's own metric raised, or gave no number.
        """
        if self._value is None:
            if isinstance(self.metric, UserSetMetric):
                self._value = self.metric.value(self._predictions, self._labels)
            else:
                self._value = float(self.scores.mean())
        return self._value

    @property
    def scores(self) -> NDArray[np.float64]:
        """One a sample; empty of whole metrics."""
        return self.scores_of(0, len(self))

    def scores_of(self, start: int, stop: int) -> NDArray[np.float64]:
        """The scores of the samples from `start` to before `stop`."""
        import numpy as np

        return np.array(self._scores[start:stop], dtype=np.float64)

    def count_nonfinite(self, start: int, stop: int) -> NDArray[np.int64]:
        """How many values of each of these samples' answers are NaN or Inf."""
        import numpy as np

        return np.array(self._nonfinite[start:stop], dtype=np.int64)

    def top_of(self, start: int, stop: int) -> NDArray[np.int64] | None:
        """The classes answered, best first, of shape (samples, k); None where there are none."""
        import numpy as np

        if not self._width:
            return None
        part = self._top[start * self._width : stop * self._width]
        return np.array(part, dtype=np.int64).reshape(-1, self._width)

    def at(self, metric: UserSetMetric, places: Sequence[int]) -> float:
        """The metric over samples chosen with repetition."""
        chosen = [self._predictions[place] for place in places]
        return metric.value(chosen, [self._labels[place] for place in places])


def find_metric(name: str, load: Callable[[str], object]) -> SampleMetric | UserSetMetric:
    """The built-in metric of that name, or the user's `package.module:function`.

    Raises:
        UsageError: there is no such metric, or the user's is not as it has to be.
    """
    if name == "mse":
        return SquaredError()
    if name in BUILT_IN:
        return TopK(name=name, k=int(name.removeprefix("top")))
    if ":" not in name:
        raise unknown("metric", name, [*BUILT_IN, "PKG.MOD:FUNCTION"])
    found = load(name)
    if not callable(found):
        raise UsageError(
            f"--metric {name} is a {type(found).__name__}, which cannot be called",
            hint="name a function of predictions and labels",
            option="metric",
        )
    return make_user_metric(name, found)
