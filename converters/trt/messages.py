"""TensorRT's log: everything goes to Python's logging, errors are kept for the message."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import tensorrt

_LOG = logging.getLogger(__name__)
_KEPT = 20  # errors; the first names the cause, the last what came of it


class ErrorLog(Protocol):
    """An ILogger that keeps what went wrong."""

    errors: list[str]

    @property
    def reason(self) -> str:
        """The errors in one line, or that there were none."""
        ...


def make_error_log(trt: ModuleType) -> ErrorLog:
    """A logger for TensorRT objects; they must not outlive it."""

    class _KeptLog(trt.ILogger):  # type: ignore[name-defined,misc]  # may not be installed
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            severity = trt.ILogger.Severity
            self._grave = (severity.INTERNAL_ERROR, severity.ERROR)
            self._levels = {
                severity.WARNING: logging.WARNING,
                severity.INFO: logging.INFO,
            }

        def log(self, severity: tensorrt.ILogger.Severity, msg: str) -> None:
            if severity in self._grave:
                _LOG.error("%s", msg)
                self.errors = [*self.errors, msg][-_KEPT:]
            else:
                _LOG.log(self._levels.get(severity, logging.DEBUG), "%s", msg)

        @property
        def reason(self) -> str:
            told = list(dict.fromkeys(" ".join(error.split()) for error in self.errors))
            return "; ".join(told[:2]) or "TensorRT gave no reason"

    kept: ErrorLog = _KeptLog()
    return kept
