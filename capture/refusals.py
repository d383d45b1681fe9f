"""Causes for which captures reject models, and the user's line in an exception."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import TracebackType

from ..checkpoints.source_positions import is_user_file
from ..core.errors import ConversionError, Hint, ModelcError, text_of
from ..core.findings import Warned
from ..core.kinds import Capture
from .evidence import RefusalEvidence
from .size_constraints import SizeConstraintError


@dataclass(frozen=True, kw_only=True)
class RefusalCause:
    """One cause of refusals.

    Attributes:
        name: its identifier.
        pattern: searched in `TYPE: text` of the exceptions; named groups fill `says` and `hint`.
        says: the message; empty for torch's own line.
        hint: how to fix it.
        rank: orders refusals, the most specific first.
        strict: torch.export's strict mode may succeed.
        lasting: the model is the cause, so the same again fails again.
        scripts: scripting the model may succeed.
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
        """Return the hint with the pattern's groups, and with scripting if that may help."""
        return f"{self.hint.format(**names)}{BY_SCRIPT if self.scripts else ''}"


class RefusedError(ConversionError):
    """A capture or an exporter rejects the model, for a cause of the table or none.

    A cause of the table usually lies in the model. Anything else may be temporary, and so may what
    is `passing`: memory, a disk. `detail` is the message without the name of the capture; `source`
    is the line of the user's code that the message ends with, `file:line`, or empty.
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
        evidence: RefusalEvidence | None = None,
    ) -> None:
        super().__init__(message, hint=hint, option=option)
        self.cause = cause
        self.detail = detail or message
        self.source = source
        self.evidence = evidence or RefusalEvidence()
        self.lasting = cause is not None and cause.lasting and not passing


def _cause(name: str, rank: int, pattern: str, says: str, hint: str, **may: bool) -> RefusalCause:
    return RefusalCause(
        name=name, rank=rank, pattern=re.compile(pattern), says=says, hint=hint, **may
    )


_OPERATOR = "operator {ns}::{op} has no ONNX translation"
_WRITE = "write it: --custom-op {ns}::{op}=PKG.MOD:FN, or use other operators"
NUMPY = "numpy"
_OUT_OF_TORCH = "torch.from_numpy results are registered"  # from the tracer
BY_SCRIPT = ", or --capture script or mixed"
_BY_HAND = ", in forward or in a copy of it (--patch)"
_TENSORS = "use tensor operations (torch.where, torch.cond)"
_NAME = r"(?P<ns>\w+)(?:\.|::)(?P<op>\w+)"

# The first match is the cause. Texts of torch 2.13.
CAUSES = (
    _cause(
        "operator",
        0,
        rf"No ONNX function found for <OpOverload\(op='{_NAME}",
        _OPERATOR,
        _WRITE,
        strict=False,
    ),
    _cause("operator", 0, rf"unrecognized namespace {_NAME}", _OPERATOR, _WRITE, strict=False),
    _cause(
        "opset",
        1,
        rf"Exporting the operator '{_NAME}' to ONNX opset version (?P<opset>\d+) is not supported\."
        r" Support for this operator was added in version (?P<added>\d+)",
        "operator {ns}::{op} has no ONNX translation for opset {opset}, only from {added}",
        "use --opset {added}",
        strict=False,
    ),
    _cause(
        "operator", 0, rf"Exporting the operator '{_NAME}' to ONNX", _OPERATOR, _WRITE, strict=False
    ),
    _cause(
        "operator",
        2,
        r"Unsupported: ONNX export of (?:operator )?(?P<what>[^.\n]+)",
        "the TorchScript exporter cannot write {what}",
        "use fixed sizes there, or other operators",
        strict=False,
    ),
    _cause(
        "complex",
        2,
        r"ScalarType Complex\w+ is an unexpected tensor scalar type",
        "complex tensors have no type in ONNX",
        "compute with real and imaginary parts (torch.view_as_real)",
        strict=False,
    ),
    _cause(
        "check",
        3,
        r"Could not guard on data-dependent(?:.|\n)*\n\s+assert\b",
        "an assert depends on tensor data",
        "move it out of forward, or remove it",
    ),
    _cause(
        "value",
        2,
        r"Could not extract specialized integer|"
        r"Could not guard on data-dependent expression [^\n]*\bzuf\d",
        "tensor data decides a Python number",
        _TENSORS,
        scripts=True,
    ),
    _cause(
        "branch",
        2,
        r"Could not guard on data-dependent|: Data-dependent branching",
        "a branch depends on tensor data",
        _TENSORS,
        scripts=True,
        strict=False,
    ),
    _cause(
        "value",
        2,
        r"DataDependentOutputException: (?P<what>\S+)",
        "{what} converts tensor data to a Python value",
        _TENSORS,
        scripts=True,
    ),
    _cause(
        "dims",
        1,
        "Constraints violated",
        "",
        "if one size will do, --static {dim} fixes it",
        strict=False,
    ),
    _cause(
        "state",
        3,
        r"tensor attributes? (?P<what>.+?) (?:was|were) assigned during export",
        "forward stores tensors in attributes: {what}",
        "use local variables or register_buffer",
    ),
    _cause(
        "state",
        3,
        r"fake tensor in the exported program constant's list",
        "forward stores or changes tensors unseen by the tracer (.data, a cache)",
        "use local variables, and do not change tensors through .data",
    ),
    _cause(
        NUMPY,
        3,
        r"\.numpy\(\) is not supported for tensor subclasses",
        "forward uses NumPy",
        "use torch's operators, or change it in a copy with --patch PKG.MOD:FN",
    ),
    _cause(
        "break",
        6,
        r"Unsupported: (?P<what>[^\n]+)(?:.|\n)*qualname: (?P<call>\w+)",
        "it cannot follow {call}: {what}",
        "remove that call from forward, or use --capture trace",
    ),
    _cause(
        "break",
        6,
        r"Unsupported: (?P<what>[^\n]+)",
        "",
        "remove it from forward, or use --capture trace",
    ),
    _cause(
        "script",
        7,
        r"variable number of arguments or use keyword-only arguments",
        "TorchScript does not support *args, **kwargs and keyword-only arguments with defaults",
        "name the arguments of forward",
    ),
    _cause(
        "script",
        7,
        "<--- HERE",  # also in errors of scripted code at run time
        "",
        "annotate or change that line: TorchScript compiles typed Python only",
        lasting=False,
    ),
)
_NEVER = re.compile(r"(?!)")  # for causes that modelc itself detects
CUSTOM_OP = RefusalCause(
    name="custom-op", pattern=_NEVER, says="", hint="", rank=0, strict=False, lasting=False
)  # the user's function raised
REDUNDANT = RefusalCause(name="needless", pattern=_NEVER, says="", hint="", rank=9)

_NO_CAUSE = 5  # an unknown cause is more specific than a limit of a Python compiler


def find_cause(text: str) -> tuple[RefusalCause, dict[str, str]] | None:
    """Return the first cause that matches `TYPE: text`, with its named groups."""
    for cause in CAUSES:
        match = cause.pattern.search(text)
        if match is not None:
            return cause, match.groupdict("")
    return None


def most_specific(errors: Sequence[ModelcError]) -> ModelcError:
    """Return the most specific of several refusals; the first of equals."""

    def rank(error: ModelcError) -> int:
        cause = error.cause if isinstance(error, RefusedError) else None
        return _NO_CAUSE if cause is None else cause.rank

    return min(errors, key=rank)


def hint_for(error: ModelcError, left: Collection[Capture]) -> Hint:
    """Return the error's hint, without captures that are not `left` to try."""
    cause = error.cause if isinstance(error, RefusedError) else None
    if cause is None or not cause.scripts or Capture.SCRIPT in left:
        return error.advice
    return Hint(f"{cause.hint}{_BY_HAND}")


def find_numpy_use(errors: Sequence[ModelcError], warned: Sequence[Warned]) -> str:
    """Return where forward uses NumPy, by a refusal or a tracer's warning; else empty."""
    for error in errors:
        if isinstance(error, RefusedError) and error.cause and error.cause.name == NUMPY:
            return error.detail
    places = [f"{one.file}:{one.line}" for one in warned if one.text.startswith(_OUT_OF_TORCH)]
    return f"forward uses NumPy (at {places[0]})" if places else ""


def is_redundant(error: ModelcError) -> bool:
    """Whether the capture was rejected because another one does the same."""
    return isinstance(error, RefusedError) and error.cause is REDUNDANT


def can_strict_help(errors: Sequence[ModelcError]) -> bool:
    """Whether strict mode may succeed where torch.export failed for these reasons.

    Not for size constraints, which the code has in both modes.
    """
    if any(isinstance(error, SizeConstraintError) for error in errors):
        return False
    causes = [error.cause for error in errors if isinstance(error, RefusedError)]
    return not any(cause is not None and not cause.strict for cause in causes)


# In tracebacks, and in the tracer's source ranges.
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)|(?P<py>/\S+?\.py)\((?P<at>\d+)\)')
COMPILED = "<--- HERE"  # the TorchScript compiler: the first frame is the line
CodePlace = tuple[str, int]


def user_place(error: BaseException) -> str:
    """Return `file:line` of the user's code in an exception; empty if there is none.

    Frames quoted in the text come first, then those of the exception and its causes.
    """
    chain = exception_chain(error)
    quoted = [place for one in chain for place in _frames_in_text(text_of(one))]
    for places in (quoted, [place for one in chain for place in _traceback_frames(one)]):
        mine = [place for place in places if is_user_file(place[0])]
        if mine:
            return f"{mine[0][0]}:{mine[0][1]}"
    return ""


def last_user_place(text: str) -> str:
    """Return `file:line` of the user's innermost frame quoted in a text; empty without one."""
    mine = [place for place in _frames_in_text(text) if is_user_file(place[0])]
    return f"{mine[0][0]}:{mine[0][1]}" if mine else ""


def _frames_in_text(text: str) -> list[CodePlace]:
    """Return the frames quoted in a text, innermost first."""
    found = [
        (match["file"] or match["py"], int(match["line"] or match["at"]))
        for match in _FRAME.finditer(text)
    ]
    inner_first = COMPILED in text or 'File "' not in text
    return found if inner_first else found[::-1]


def _traceback_frames(error: BaseException) -> list[CodePlace]:
    """Return the frames of an exception, innermost first."""
    found: list[CodePlace] = []
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        found.insert(0, (trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return found


def exception_chain(error: BaseException) -> list[BaseException]:
    """Return the exception and its causes, the root cause first."""
    before = [] if error.__cause__ is None else exception_chain(error.__cause__)
    return [*before, error]
