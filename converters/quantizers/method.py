"""Which calibration method a job means."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.contract import QuantizeJob
from ...core.errors import Hint, Option, UsageError
from ...core.names import unknown


def choose_method(job: QuantizeJob, methods: Mapping[str, tuple[str, ...]]) -> str:
    """The job's method, or the first for its consumer.

    Raises:
        UsageError: the quantizer is not for this consumer, or has no such method for it.
    """
    offered = methods.get(job.consumer)
    if offered is None:
        raise UsageError(
            f"the quantizer makes nothing for {job.consumer!r}",
            hint=Hint(
                f"it is for {', '.join(methods)}: choose another, or ", Option("quantizer", "auto")
            ),
            option="quantizer",
        )
    if job.method is not None and job.method not in offered:
        raise unknown("calibration method", job.method, offered)
    return job.method or offered[0]
