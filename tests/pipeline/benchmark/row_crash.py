"""A row of a benchmark whose process dies; children import it by its whole name."""

from __future__ import annotations

import os
import signal

from modelc.core.children.child_call import ParentConnection
from modelc.pipeline.benchmark.row_models import Call, RowRequest
from modelc.pipeline.benchmark.row_server import RowClosed, serve_row


def crash(request: RowRequest, parent: ParentConnection) -> RowClosed:
    """Serve the row named `dies` by a crash after its first answer, `raises` by a KeyError."""
    if request.row.name not in ("dies", "raises"):
        return serve_row(request, parent)

    runs = iter(range(9))

    def change(call: Call) -> Call:
        def counted() -> object:
            if next(runs):
                if request.row.name == "raises":
                    raise KeyError("missing")
                os.kill(os.getpid(), signal.SIGKILL)
            return call()

        return counted

    return serve_row(request, parent, change)
