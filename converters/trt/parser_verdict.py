"""Ask the ONNX parser of TensorRT-RTX, which needs no GPU, in a child process."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ...core.children.child_call import CallEnd, ChildCall, ParentConnection, run_in_child
from ...core.children.messages import Returned, StoppedByError
from ...core.children.processes import Deadline, OutputLog, ProcessEnd
from .trt_callbacks import make_error_log
from .trt_installation import TrtLibrary, load_tensorrt

PARSER_TIMEOUT = 300.0  # seconds; the largest graph of the coverage nets takes 4
PARSER = "the ONNX parser of TensorRT-RTX"
# Operators that TensorRT implements by plugins of its own, which TensorRT-RTX leaves out: what its
# parser says of them holds for TensorRT-RTX alone. Measured with 1.7.1.
PLUGIN_OPERATORS = frozenset({"DeformConv", "NonMaxSuppression", "NonZero", "RoiAlign"})


@dataclass(frozen=True, kw_only=True)
class ParserProblem:
    """One error of the parser: the node with its operator, the text, and the parser's code."""

    node: str
    operator: str
    text: str
    code: str


@dataclass(frozen=True, kw_only=True)
class ParserVerdict:
    """What the parser says of a model: it takes the model if there are no problems.

    `failure` is why there is no answer: the parser crashed, or took too long.
    """

    version: str = ""
    problems: tuple[ParserProblem, ...] = ()
    failure: str = ""

    @property
    def is_accepted(self) -> bool:
        """Whether the parser took the model."""
        return not self.problems and not self.failure


ParseFunction: TypeAlias = Callable[[str, ParentConnection], ParserVerdict]


def parse_in_child(path: str, parent: ParentConnection) -> ParserVerdict:  # noqa: ARG001 - contract
    """Parse a model with TensorRT-RTX; called in a process of its own, which it may crash.

    Raises:
        MissingError: the library cannot be imported.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    trt = load_tensorrt(TrtLibrary.RTX, builds_only=True)
    log = make_error_log(trt)
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    accepted = parser.parse_from_file(path)
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    problems = [
        ParserProblem(
            node=error.node_name(),
            operator=error.node_operator(),
            text=_describe_error(error.desc()),
            code=error.code().name,
        )
        for error in errors
    ]
    if not accepted and not problems:
        problems.append(ParserProblem(node="", operator="", text=log.reason, code="UNKNOWN"))
    return ParserVerdict(version=str(trt.__version__), problems=() if accepted else tuple(problems))


def _describe_error(text: str) -> str:
    """Return the parser's text in one line; a failed check of an operator says only `false`."""
    line = " ".join(text.split())
    return "the operator is not supported" if line in ("", "false") else line


def ask_parser(
    path: Path, *, parse: ParseFunction = parse_in_child, timeout: float = PARSER_TIMEOUT
) -> ParserVerdict:
    """Return the parser's verdict on an ONNX file; a crash of its process is no verdict."""
    call = ChildCall(
        function=parse,
        argument=str(path.absolute()),
        messages=(ParserVerdict,),
        grace=0.0,
        quiet=True,
    )
    end = run_in_child(call, lambda _: None, log=OutputLog(echo=True), watch=Deadline(timeout))
    match end:
        case Returned(value=ParserVerdict() as verdict):
            return verdict
        case _:
            return ParserVerdict(failure=_describe_failure(end))


def _describe_failure(end: CallEnd) -> str:
    match end:
        case StoppedByError():
            return f"{PARSER} failed: {end.message}"
        case ProcessEnd() if end.overrun is not None:
            return f"{PARSER} gave {end.overrun.text}"
        case ProcessEnd() if end.code < 0:
            return f"{PARSER} crashed with {end.signal_name}"
    return f"{PARSER} ended without a verdict"
