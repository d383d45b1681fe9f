"""Why captures refuse models, and the line of user code that an exception is about."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from ..core.errors import ConversionError, Hint, ModelcError, text_of
from ..core.findings import Warned
from ..core.kinds import Capture
from .evidence import Evidence
from .size_constraints import SizeConstraintError


@dataclass(frozen=True, kw_only=True)
class RefusalCause:
    """One kind of refusal.

    `pattern` is looked for in `TYPE: text` of the exceptions; its named groups stand in `says` and
    `hint`. `says` empty leaves torch's own line. `rank` orders refusals, the most telling first.
    `strict` says whether torch.export's strict mode may take what the other refused so, `lasting`
    whether it is the model that is refused, and would be again. `scripts` says that scripting the
    model is another way.
    """

    name: str
    pattern: re.Pattern[str]
    says: str
    hint: str
    rank: int
    strict: bool = True
    lasting: bool = True
    scripts: bool = False

    def full_hint(self, **names: str) -> str:
        """The hint with the names that the pattern found, and scripting where that is a way."""
        return f"{self.hint.format(**names)}{BY_SCRIPT if self.scripts else ''}"


class RefusedError(ConversionError):
    """A capture or an exporter refused the model, for a cause of the table or none.

    A cause of the table usually lies in the model. Anything else may be temporary, and so may what
    is `passing`: memory, a disk. `detail` is the message without who refused; `source` is the line
    of the user's code that the message ends with, `file:line`, or empty.
    """

    def __init__(  # noqa: PLR0913 - all but the hint are optional
        self,
        message: str,
        *,
        hint: str | Hint,
        option: str = "",
        cause: RefusalCause | None = None,
        passing: bool = False,
        detail: str = "",
        source: str = "",
        evidence: Evidence | None = None,
    ) -> None:
        super().__init__(message, hint=hint, option=option)
        self.cause = cause
        self.detail = detail or message
        self.source = source
        self.evidence = evidence or Evidence()
        self.lasting = cause is not None and cause.lasting and not passing


class _CauseRow(NamedTuple):
    """A row as it is written below."""

    name: str
    rank: int
    pattern: str
    says: str
    hint: str
    strict: bool = True
    lasting: bool = True
    scripts: bool = False


_OPERATOR = "operator {ns}::{op} has no ONNX translation"
_WRITE = "write it: --custom-op {ns}::{op}=PKG.MOD:FN, or make it of other operators"
NUMPY = "numpy"
_OUT_OF_TORCH = "torch.from_numpy results are registered"  # the tracer, where arrays come back
BY_SCRIPT = ", or --capture script or mixed"
_BY_HAND = ", in forward or in a copy of it (--patch)"
_TENSORS = "keep it in tensors (torch.where, torch.cond)"
_NAME = r"(?P<ns>\w+)(?:\.|::)(?P<op>\w+)"

# The first that matches is the cause. The words are those of torch 2.13.
_ROWS = (
    _CauseRow(
        "operator",
        0,
        rf"No ONNX function found for <OpOverload\(op='{_NAME}",
        _OPERATOR,
        _WRITE,
        False,
    ),
    _CauseRow("operator", 0, rf"unrecognized namespace {_NAME}", _OPERATOR, _WRITE, False),
    _CauseRow(
        "opset",
        1,
        rf"Exporting the operator '{_NAME}' to ONNX opset version (?P<opset>\d+) is not supported\."
        r" Support for this operator was added in version (?P<added>\d+)",
        "operator {ns}::{op} has no ONNX translation for opset {opset}, only from {added}",
        "use --opset {added}",
        strict=False,
    ),
    _CauseRow(
        "operator", 0, rf"Exporting the operator '{_NAME}' to ONNX", _OPERATOR, _WRITE, False
    ),
    _CauseRow(
        "operator",
        2,
        r"Unsupported: ONNX export of (?:operator )?(?P<what>[^.\n]+)",
        "the TorchScript exporter cannot write {what}",
        "give fixed sizes there, or make it of other operators",
        strict=False,
    ),
    _CauseRow(
        "complex",
        2,
        r"ScalarType Complex\w+ is an unexpected tensor scalar type",
        "complex tensors have no type in ONNX",
        "compute with real and imaginary parts (torch.view_as_real)",
        strict=False,
    ),
    _CauseRow(
        "check",
        3,
        r"Could not guard on data-dependent(?:.|\n)*\n\s+assert\b",
        "an assert asks for tensor data",
        "check it outside forward, or leave it out",
    ),
    _CauseRow(
        "value",
        2,
        r"Could not extract specialized integer|"
        r"Could not guard on data-dependent expression [^\n]*\bzuf\d",
        "tensor data decides a Python number",
        _TENSORS,
        scripts=True,
    ),
    _CauseRow(
        "branch",
        2,
        r"Could not guard on data-dependent|: Data-dependent branching",
        "a branch depends on tensor data",
        _TENSORS,
        scripts=True,
        strict=False,
    ),
    _CauseRow(
        "value",
        2,
        r"DataDependentOutputException: (?P<what>\S+)",
        "{what} makes a Python value of tensor data",
        _TENSORS,
        scripts=True,
    ),
    _CauseRow(
        "dims",
        1,
        "Constraints violated",
        "",
        "if one size will do, --static {dim} fixes it",
        strict=False,
    ),
    _CauseRow(
        "state",
        3,
        r"tensor attributes? (?P<what>.+?) (?:was|were) assigned during export",
        "forward keeps tensors in attributes: {what}",
        "keep them in local names, or register_buffer them",
    ),
    _CauseRow(
        "state",
        3,
        r"fake tensor in the exported program constant's list",
        "forward keeps or changes tensors behind the tracer (.data, a cache of its own)",
        "keep them in local names, and change none through .data",
    ),
    _CauseRow(
        NUMPY,
        3,
        r"\.numpy\(\) is not supported for tensor subclasses",
        "forward leaves torch for NumPy",
        "write it with torch's operators, or change it in a copy, with --patch PKG.MOD:FN",
    ),
    _CauseRow(
        "break",
        6,
        r"Unsupported: (?P<what>[^\n]+)(?:.|\n)*qualname: (?P<call>\w+)",
        "it cannot follow {call}: {what}",
        "leave that call out of forward, or --capture trace",
    ),
    _CauseRow(
        "break",
        6,
        r"Unsupported: (?P<what>[^\n]+)",
        "",
        "leave that out of forward, or --capture trace",
    ),
    _CauseRow(
        "script",
        7,
        r"variable number of arguments or use keyword-only arguments",
        "TorchScript takes no *args, no **kwargs and no keyword-only arguments with defaults",
        "name the arguments of forward",
    ),
    _CauseRow(
        "script",
        7,
        "<--- HERE",  # stands in what scripted code raises when it runs, too
        "",
        "TorchScript compiles typed Python only: annotate or change that line",
        lasting=False,
    ),
)
CAUSES = tuple(
    RefusalCause(
        name=row.name,
        rank=row.rank,
        pattern=re.compile(row.pattern),
        says=row.says,
        hint=row.hint,
        strict=row.strict,
        lasting=row.lasting,
        scripts=row.scripts,
    )
    for row in _ROWS
)
_NEVER = re.compile(r"(?!)")  # what modelc itself refuses for is in no text of torch's
CUSTOM_OP = RefusalCause(
    name="custom-op", pattern=_NEVER, says="", hint="", rank=0, strict=False, lasting=False
)  # it is the user's function that says why
REDUNDANT = RefusalCause(name="needless", pattern=_NEVER, says="", hint="", rank=9)

_NO_CAUSE = 5  # what no row knows is more telling than what a compiler of Python cannot read


def find_cause(text: str) -> tuple[RefusalCause, dict[str, str]] | None:
    """The first row that `TYPE: text` matches, with its named groups."""
    for cause in CAUSES:
        match = cause.pattern.search(text)
        if match is not None:
            return cause, match.groupdict("")
    return None


def most_specific(errors: Sequence[ModelcError]) -> ModelcError:
    """Of several refusals of one model the one that says most; the first of equals."""
    return min(errors, key=_rank)


def hint_for(error: ModelcError, left: Collection[Capture]) -> Hint:
    """The error's hint, which names no capture that is not `left` to be tried for the format."""
    cause = error.cause if isinstance(error, RefusedError) else None
    if cause is None or not cause.scripts or Capture.SCRIPT in left:
        return error.advice
    return Hint(f"{cause.hint}{_BY_HAND}")


def _rank(error: ModelcError) -> int:
    if isinstance(error, RefusedError) and error.cause is not None:
        return error.cause.rank
    return _NO_CAUSE


def find_numpy_use(errors: Sequence[ModelcError], warned: Sequence[Warned]) -> str:
    """Where forward leaves torch for NumPy, as a refusal or a tracer's warning says; else empty."""
    for error in errors:
        if isinstance(error, RefusedError) and error.cause and error.cause.name == NUMPY:
            return error.detail
    places = [f"{one.file}:{one.line}" for one in warned if one.text.startswith(_OUT_OF_TORCH)]
    return f"forward leaves torch for NumPy (at {places[0]})" if places else ""


def is_redundant(error: ModelcError) -> bool:
    """Whether the capture only says that another one does all that it would do."""
    return isinstance(error, RefusedError) and error.cause is REDUNDANT


def can_strict_help(errors: Sequence[ModelcError]) -> bool:
    """Whether strict mode could take what torch.export refused for these reasons.

    Not where a program does not hold at all sizes: that is what the code does, however it is read.
    """
    if any(isinstance(error, SizeConstraintError) for error in errors):
        return False
    causes = [error.cause for error in errors if isinstance(error, RefusedError)]
    return not any(cause is not None and not cause.strict for cause in causes)


_PACKAGE_ROOT = Path(__file__).parents[1]
_OWN_PACKAGES = ("capture", "checkpoints", "converters", "core", "pipeline")
_OWN_FOLDERS = tuple(f"{_PACKAGE_ROOT / room}/" for room in _OWN_PACKAGES)
_LIBRARIES = (
    "torch", "numpy", "onnx", "onnxscript", "onnx_ir", "sympy", "openvino", "onnxruntime",
)  # fmt: skip
_STDLIB = f"{sysconfig.get_paths()['stdlib']}/"
_PACKAGES = ("site-packages", "dist-packages")
# As tracebacks say it, and as the tracer's own source ranges do.
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)|(?P<py>/\S+?\.py)\((?P<at>\d+)\)')
COMPILED = "<--- HERE"  # the compiler of TorchScript: the first frame is the line that it means
CodePlace = tuple[str, int]


@cache
def _library_roots() -> tuple[str, ...]:
    found = (find_spec(name) for name in _LIBRARIES)
    files = [spec.origin for spec in found if spec is not None and spec.origin is not None]
    return tuple(f"{Path(file).parent}/" for file in files)


def is_user_file(file: str) -> bool:
    """Whether a file is the model's code or a package that it calls, as `transformers`."""
    if file.startswith(("<", *_OWN_FOLDERS, *_library_roots())):
        return False
    inner = file.removeprefix(_STDLIB)
    return inner == file or inner.startswith(_PACKAGES)


def user_place(error: BaseException) -> str:
    """`file:line` of the user's code that an exception is about; empty where it tells of none.

    What the text quotes comes first, then the frames of the exception and of what caused it.
    """
    chain = list(_exception_chain(error))
    quoted = [place for one in chain for place in _frames_in_text(text_of(one))]
    for places in (quoted, [place for one in chain for place in _traceback_frames(one)]):
        mine = [place for place in places if is_user_file(place[0])]
        if mine:
            return f"{mine[0][0]}:{mine[0][1]}"
    return ""


def last_user_place(text: str) -> str:
    """`file:line` of the innermost frame of the user's that a text quotes; empty without one."""
    mine = [place for place in _frames_in_text(text) if is_user_file(place[0])]
    return f"{mine[0][0]}:{mine[0][1]}" if mine else ""


def _frames_in_text(text: str) -> list[CodePlace]:
    """The frames that a text quotes, the innermost first."""
    found = [
        (match["file"] or match["py"], int(match["line"] or match["at"]))
        for match in _FRAME.finditer(text)
    ]
    inner_first = COMPILED in text or 'File "' not in text
    return found if inner_first else found[::-1]


def _traceback_frames(error: BaseException) -> list[CodePlace]:
    """The frames of an exception, the innermost first."""
    found: list[CodePlace] = []
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        found.insert(0, (trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return found


def _exception_chain(error: BaseException) -> Iterator[BaseException]:
    """The cause of all first."""
    if error.__cause__ is not None:
        yield from _exception_chain(error.__cause__)
    yield error
