"""The calibration samples as the libraries read them: one at a time, and again on demand."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import chdir
from pathlib import Path

from ...core.contract import Advance, Array, CalibrationFeeds, QuantizeJob
from ...core.errors import ConversionError, Hint, Option


class CalibrationSamples:
    """The calibration feeds with only what the model takes, told as they are read.

    Every iteration reads them anew; nothing is kept, so memory does not grow with the set.
    """

    def __init__(self, feeds: CalibrationFeeds, inputs: Collection[str], advance: Advance) -> None:
        self._feeds = feeds
        self._inputs = inputs
        self._advance = advance

    def __len__(self) -> int:
        return len(self._feeds)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        total = len(self._feeds)
        for done, feed in enumerate(self.unheard(), start=1):
            self._advance(done, total)  # before: a library that counts does not come back
            yield feed

    def unheard(self) -> Iterator[dict[str, Array]]:
        """The same, not told: for a look at the first few."""
        for number, feed in enumerate(self._feeds, start=1):
            missing = [name for name in self._inputs if name not in feed]
            if missing:
                raise ConversionError(
                    f"calibration sample {number} has no {missing[0]!r}, which the model takes",
                    hint=f"name the arrays as the model does: {', '.join(self._inputs)}",
                )
            yield {name: feed[name] for name in self._inputs}


class CalibrationReader:
    """Samples in the form that ONNX Runtime and ModelOpt ask for.

    They are read in the folder that was the current one when the reader was made: paths of samples
    may be relative to it, and a library may be made to run elsewhere.
    """

    def __init__(self, samples: CalibrationSamples) -> None:
        self._samples = samples
        self._next = iter(samples)
        self._home = Path.cwd()

    def get_next(self) -> dict[str, Array] | None:
        """The next sample; None after the last."""
        with chdir(self._home):
            return next(self._next, None)

    def get_first(self) -> dict[str, Array]:
        """The first sample; where the reading stands does not change."""
        with chdir(self._home):
            return next(iter(self._samples))

    def rewind(self) -> None:
        """Start anew."""
        self._next = iter(self._samples)


def calibration_samples(job: QuantizeJob, inputs: Collection[str]) -> CalibrationSamples:
    """The job's samples, for a model with these inputs.

    Raises:
        ConversionError: there is none.
    """
    if len(job.calibration) == 0:
        raise ConversionError(
            "there is no calibration sample to quantize with",
            hint=Hint("give ", Option("calib"), " a folder of samples"),
            option="calib",
        )
    return CalibrationSamples(job.calibration, inputs, job.advance)
