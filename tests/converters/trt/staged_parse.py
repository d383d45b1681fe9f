"""Functions in place of the parser of TensorRT-RTX, for the child process that calls it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from modelc.converters.trt.parser_verdict import ParserProblem, ParserVerdict
from modelc.core.children.child_call import ParentConnection


def accept(path: str, _: ParentConnection) -> ParserVerdict:
    """Take every model that exists."""
    assert Path(path).is_file()
    return ParserVerdict(version="1.7.1.116")


def reject(_: str, __: ParentConnection) -> ParserVerdict:
    """Reject one node."""
    problem = ParserProblem(node="n", operator="Det", text="no", code="UNSUPPORTED_NODE")
    return ParserVerdict(version="1.7.1.116", problems=(problem,))


def crash(_: str, __: ParentConnection) -> ParserVerdict:
    """End as a fault in native code does."""
    os.abort()


def hang(_: str, __: ParentConnection) -> ParserVerdict:
    """Never answer."""
    time.sleep(600)
    raise AssertionError("it should have been ended")


def fail(_: str, __: ParentConnection) -> ParserVerdict:
    """Raise."""
    raise RuntimeError("the bindings failed")
