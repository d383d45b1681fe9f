"""Ask the ONNX parser of TensorRT-RTX, which needs no GPU, in a child process."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from ...core.children.child_call import CallEnd, ChildCall, ParentConnection, run_in_child
from ...core.children.messages import Returned, StoppedByError
from ...core.children.processes import Deadline, OutputLog, ProcessEnd
from ..onnx_origins import UNKNOWN_ORIGIN, NodeOrigin
from .parser_support import PLUGIN_OPERATORS, TABLE_VERSION
from .trt_callbacks import make_error_log
from .trt_findings import TrtFault, TrtFinding, TrtSeverity
from .trt_installation import TrtLibrary, load_tensorrt

PARSER_TIMEOUT = 300.0  # seconds; the largest graph of the coverage nets takes 4
PARSER = "the ONNX parser of TensorRT-RTX"


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

    The parser stops at the first node that it rejects, so what follows that node is not known.
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
            operator=error.node_operator() or _operator_of(error.func()),
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


# What the parser knows better than the table; what both cannot know is left to the rules.
_OF_TABLE = frozenset({
    TrtFault.OPSET, TrtFault.UNSUPPORTED_OPERATOR, TrtFault.UNLISTED_OPERATOR,
    TrtFault.RESTRICTION, TrtFault.UNKNOWN_TYPE, TrtFault.INNER_UINT8, TrtFault.UNLISTED_TYPE,
    TrtFault.MISSING_PLUGIN,
})  # fmt: skip


def _operator_of(function: str) -> str:
    """Return the operator that a function of the parser imports: `importTopK`; empty for others."""
    operator = function.removeprefix("import")
    return "" if operator == function else operator


def use_verdict(
    findings: Sequence[TrtFinding],
    verdict: ParserVerdict,
    origins: Mapping[str, NodeOrigin],
    library: TrtLibrary,
) -> tuple[TrtFinding, ...]:
    """Return the findings with the parser's verdict in place of the table's.

    TensorRT has plugins that TensorRT-RTX leaves out: if the parser stops at one, the table stands.
    If it stops at another node, what the table says of the others is a warning.
    """
    if verdict.failure:
        what = f"{verdict.failure}; operators were checked by the table of {TABLE_VERSION}"
        return (*findings, TrtFinding(TrtFault.NO_PARSER, TrtSeverity.WARNING, what))
    if library is TrtLibrary.TENSORRT and any(
        one.operator in PLUGIN_OPERATORS for one in verdict.problems
    ):
        return tuple(findings)
    of_table = [one for one in findings if one.fault in _OF_TABLE]
    rest = [one for one in findings if one.fault not in _OF_TABLE]
    if verdict.is_accepted:
        return tuple(rest)
    places = [one.place for one in of_table]
    problems = [_problem_finding(one, origins, places) for one in verdict.problems]
    others = [
        replace(one, severity=TrtSeverity.WARNING)
        for one in of_table
        if not one.place or not any(other.place.startswith(one.place) for other in problems)
    ]
    return (*problems, *rest, *others)


def _problem_finding(
    problem: ParserProblem, origins: Mapping[str, NodeOrigin], places: Iterable[str]
) -> TrtFinding:
    """Return the finding; a node that the parser does not name is the table's first of its kind."""
    origin = origins.get(problem.node, UNKNOWN_ORIGIN)
    node = " ".join(filter(None, (problem.operator, problem.node))) or "the model"
    place = f"{origin.module} ({node})" if origin.module else node
    place += f" at {origin.source}" if origin.source else ""
    if problem.operator and not problem.node:
        place = next((one for one in places if _is_of(one, problem.operator)), place)
    what = f"{PARSER} rejects {problem.operator or 'the model'}"
    detail = f"{problem.text} [{problem.code}]"
    return TrtFinding(TrtFault.PARSER, TrtSeverity.ERROR, what, place, detail)


def _is_of(place: str, operator: str) -> bool:
    """Return whether it is `head (TopK node)` or `TopK node`."""
    return place.startswith(f"{operator} ") or f"({operator} " in place
