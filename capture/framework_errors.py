"""Call a framework, and translate its exceptions to one error with a cause and a hint."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..core.errors import LOGGED, Hint, first_line
from ..core.signature import Signature
from .evidence import Symptom, evidence_of, find_symptoms
from .refusals import COMPILED, RefusedError, exception_chain, find_cause, user_place

Made = TypeVar("Made")

_PATCH_HINT = Hint("change that line in a copy with --patch PKG.MOD:FN; ", LOGGED)
_GUARD_PATTERN = re.compile(r"Not all values of (?P<dim>\w+) = .* satisfy the generated guard .*")
_SIZE_PATTERN = re.compile(r"L\['tensors'\]\[(\d+)\]\.size\(\)\[(\d+)\]")


@dataclass(frozen=True, kw_only=True)
class ModelLocation:
    """Where in the model an exporter stopped: `ns::op`, the module's path, `file:line`."""

    operator: str = ""
    module: str = ""
    place: str = ""


LocateError = Callable[
    [BaseException, str], ModelLocation
]  # the second argument is the operator in the text

# Torch raises RuntimeError without memory. Texts of torch 2.13.
_HOST_FAILURE = re.compile(r"can't allocate memory|not enough memory|out of memory|bad_alloc")


def call_framework(
    what: str,
    make: Callable[[], Made],
    signature: Signature | None = None,
    *,
    locate: LocateError | None = None,
) -> Made:
    """Call a framework; its exceptions become `RefusedError`, a ConversionError.

    Args:
        what: the caller's name in the message.
        make: makes the call.
        signature: provides names for torch's dims, if given.
        locate: locates the error in the model.
    """
    try:
        return make()
    except Exception as error:  # the converter's edge: frameworks raise anything
        refusals = [one for one in exception_chain(error) if isinstance(one, RefusedError)]
        known = refusals[-1] if refusals else None
        if known is error:
            raise
        raise (known or _refusal(what, error, signature, locate)) from error


def _refusal(
    what: str, error: Exception, signature: Signature | None, locate: LocateError | None
) -> RefusedError:
    """Return the error with its cause, place in the model, and hint."""
    chain, text = exception_chain(error), _error_text(error)
    found = find_cause(text)
    names = {} if found is None else found[1]
    location = ModelLocation() if locate is None else locate(error, _operator_name(names))
    if location.operator:
        names = {**names, **dict(zip(("ns", "op"), location.operator.split("::"), strict=True))}
    names["dim"] = _dim_in(str(chain[0]), signature)
    place = location.place or user_place(error)
    reason, hint = reason_of(error), _PATCH_HINT if place else Hint(LOGGED)
    read = [reason]
    if found is not None:
        says = found[0].says.format(**names)
        read = [*names.values(), "" if says else reason]
        reason = says or reason
        hint = Hint(found[0].full_hint(**names))
    symptoms = find_symptoms("\n".join(read))
    if found is not None and found[0].name == "branch":
        symptoms |= {Symptom.DATA_BRANCH}
    if found is not None and found[0].name == "dims" and not names["dim"]:
        hint = Hint(LOGGED)
    if signature is not None:
        reason = _translate_sizes(reason, signature)
    by_host = any(isinstance(one, (MemoryError, OSError)) for one in chain)
    by_host = by_host or _HOST_FAILURE.search(text) is not None  # not the model
    module = f" in module {location.module}" if location.module else ""
    where = f" (at {place})" if place else ""
    return RefusedError(
        f"{what} rejected the model: {reason}{module}{where}",
        hint=hint,
        cause=None if found is None else found[0],
        passing=by_host,
        detail=f"{reason}{module}{where}",
        source=place,
        evidence=evidence_of(*symptoms, place=place),
    )


def _error_text(error: BaseException) -> str:
    """Return `TYPE: text` of the exceptions, the root cause first."""
    return "\n".join(f"{type(one).__name__}: {one}" for one in exception_chain(error))


def _operator_name(names: dict[str, str]) -> str:
    return f"{names['ns']}::{names['op']}" if "op" in names else ""


def reason_of(error: BaseException) -> str:
    """Return the most informative line of a torch exception."""
    inner = exception_chain(error)[0]
    points = re.findall(r"^\s+- (.+?)(?:\. If you\'re using|$)", str(inner), flags=re.MULTILINE)
    violated = "Constraints violated" in str(inner)
    if COMPILED in str(inner):  # the first line is the message, the rest the place
        return str(inner).strip().partition("\n")[0].rstrip(" :")
    line = points[0] if violated and points else first_line(inner)
    guard = _GUARD_PATTERN.match(line)
    if guard is not None:  # the rest is in torch's symbols
        return f"its program holds only for some sizes of dim {guard['dim']!r}, not for its range"
    return f"KeyError {line}" if isinstance(inner, KeyError) else line  # its text is only the key


def _dim_in(text: str, signature: Signature | None) -> str:
    """Return the name of the first dim in torch's text; empty without one."""
    match = None if signature is None else _SIZE_PATTERN.search(text)
    if signature is None or match is None:
        return ""
    return signature.inputs[int(match.group(1))].dims[int(match.group(2))].name or ""


def _translate_sizes(text: str, signature: Signature) -> str:
    """Replace `L['tensors'][0].size()[1]` by `dim seq of ids`."""

    def name(match: re.Match[str]) -> str:
        spec = signature.inputs[int(match.group(1))]
        dim = spec.dims[int(match.group(2))]
        return f"dim {dim.name or match.group(2)!r} of {spec.name}"

    return _SIZE_PATTERN.sub(name, text)
