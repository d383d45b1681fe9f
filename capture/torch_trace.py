"""Capture with torch.jit.trace: one recorded run, and the branches that it froze."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from ..checkpoints.source_positions import find_user_line
from ..core.contract import Branch, Job
from ..core.errors import Hint, Option
from ..core.findings import Warned
from ..core.torch_tools import intercept_calls
from .captured_program import ScriptCapture, example_tensors, model_of
from .evidence import Symptom
from .framework_errors import call_framework
from .refusals import RefusedError
from .size_branches import find_right_interval, find_wrong_size
from .size_constraints import NarrowError

if TYPE_CHECKING:
    from torch import nn

_LOG = logging.getLogger(__name__)  # goes to the step's log


def capture_trace(job: Job) -> ScriptCapture:
    """Capture the flat model with `torch.jit.trace`, with the tracer's warnings.

    The inputs have the signature's names. The verdict checks the trace on other feeds.
    """
    import torch

    model = model_of(job)
    tensors = example_tensors(job)
    caught: list[warnings.WarningMessage] = []

    def trace() -> Any:
        return torch.jit.trace(  # type: ignore[no-untyped-call]  # torch's own
            model.flat, tensors, check_trace=False, strict=False
        )

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("always")
        warnings.showwarning = _collect_warnings(caught)
        made = call_framework("torch.jit.trace", trace)
    for warning in caught:
        _LOG.warning("%s:%d: %s", warning.filename, warning.lineno, warning.message)
    for value, spec in zip(list(made.graph.inputs())[1:], job.signature.inputs, strict=False):
        value.setDebugName(spec.name.replace(".", "_"))
    of_data = _data_warnings(caught, trace)
    notes = _check_sizes(made, job)
    return ScriptCapture(
        module=made,
        call="flat",
        frozen=find_frozen_branches(of_data),
        within=_module_paths(model.module, of_data),
        warned=user_warnings(caught),
        notes=notes,
    )


def _check_sizes(made: Any, job: Job) -> tuple[str, ...]:
    """Check sizes at which forward takes other branches; return notes.

    Raises:
        NarrowError: the trace is wrong there; feeds of other sizes would not show it.
    """
    found, notes = find_wrong_size(made, job)
    if found is not None:
        at = ", ".join(f"{name}={size}" for name, size in found.items())
        interval = find_right_interval(made, job, found)
        hint = Hint("exclude that size from the range in ", Option("input"))
        if interval is not None:  # worded as for torch.export, so that it is printed once
            write = "write {}={}..{}, or accept the smaller domain with ".format(*interval)
            hint = Hint(write, Option("narrow"))
        raise NarrowError(
            f"the trace froze a branch on sizes: at {at} the model takes another branch",
            hint=hint,
            interval=interval,
            option="input",
            symptoms=frozenset((Symptom.SIZE_BRANCH,)),
        )
    return notes


def _data_warnings(
    caught: list[warnings.WarningMessage], trace: Callable[[], object]
) -> list[warnings.WarningMessage]:
    """Return warnings about values of data; the tracer warns about sizes as well."""
    import torch

    warned_lines = {(one.filename, one.lineno) for one in _value_conversions(caught)}
    if not warned_lines:
        return []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        sizes = size_only_lines(trace)
    return [one for one in _value_conversions(caught) if (one.filename, one.lineno) not in sizes]


def _module_paths(root: nn.Module, caught: list[warnings.WarningMessage]) -> tuple[str, ...]:
    """Return the paths of the modules whose code converted tensors to Python values."""
    known = {id(module): path for path, module in root.named_modules()}
    sources = (id(warning.source) for warning in _value_conversions(caught))
    return tuple(dict.fromkeys(known[one] for one in sources if one in known))


def _collect_warnings(kept: list[warnings.WarningMessage]) -> Callable[..., None]:
    """Return a collector of warnings; those of torch's Tensor class get the user's line.

    For `np.asarray(x)` and `3 in x`, the class warns instead of the user's line.
    """
    import torch

    tensors = str(Path(torch.__file__).parent / "_tensor.py")

    def keep(
        message: Warning, category: type[Warning], filename: str, lineno: int, *_: object
    ) -> None:
        frame = sys._getframe(1) if filename == tensors else None
        within = False
        while frame is not None:
            within = within or frame.f_code.co_filename == tensors
            if within and frame.f_code.co_filename != tensors:
                filename, lineno = frame.f_code.co_filename, frame.f_lineno
                break
            frame = frame.f_back
        module = _module_of(sys._getframe(1))
        kept.append(warnings.WarningMessage(message, category, filename, lineno, source=module))

    return keep


def _module_of(frame: FrameType | None) -> object:
    """Return the innermost module whose method is running."""
    from torch import nn

    while frame is not None:
        first = frame.f_code.co_varnames[:1]
        owner = frame.f_locals.get(first[0]) if first else None
        if isinstance(owner, nn.Module):
            return owner
        frame = frame.f_back
    return None


def find_frozen_branches(caught: list[warnings.WarningMessage]) -> tuple[Branch, ...]:
    """Return the user's lines where a tensor became a Python value, which the trace freezes.

    Torch's own lines, which check shapes, are omitted.
    """
    return tuple(
        dict.fromkeys(
            Branch(file=warning.filename, line=warning.lineno)
            for warning in _value_conversions(caught)
        )
    )


def _value_conversions(caught: list[warnings.WarningMessage]) -> Iterator[warnings.WarningMessage]:
    """Yield warnings about conversions of tensors on the user's lines."""
    import torch

    return (
        warning
        for warning in _user_line_warnings(caught)
        if issubclass(warning.category, torch.jit._trace.TracerWarning)
        and str(warning.message).startswith("Converting a tensor to")
    )


def user_warnings(caught: list[warnings.WarningMessage]) -> tuple[Warned, ...]:
    """Return the first sentence of each warning on the user's lines, once."""
    return tuple(
        dict.fromkeys(
            Warned(
                file=warning.filename,
                line=warning.lineno,
                text=str(warning.message).strip().partition(". ")[0],
                kind=warning.category.__name__,
            )
            for warning in _user_line_warnings(caught)
        )
    )


def _user_line_warnings(
    caught: list[warnings.WarningMessage],
) -> Iterator[warnings.WarningMessage]:
    import torch

    library = Path(torch.__file__).parent
    return (one for one in caught if not Path(one.filename).is_relative_to(library))


SourceLine: TypeAlias = tuple[str, int]  # file and line

# Operators whose output sizes depend on data; those of other libraries may, too.
_OF_DATA = (
    "aten::nonzero", "aten::argwhere", "aten::masked_select", "aten::unique", "aten::_unique",
    "aten::index", "aten::repeat_interleave", "aten::bincount", "aten::_pack_padded_sequence",
    "aten::where", "aten::_nested", "aten::combinations",
)  # fmt: skip
_KNOWN = ("aten::", "prim::")


def size_only_lines(trace: Callable[[], object]) -> frozenset[SourceLine]:
    """Trace again, and return lines at which tensors became Python values of sizes only.

    Each value is followed back in the graph, to data of an input or to sizes. Empty if the model
    cannot be traced again.
    """
    seen: dict[SourceLine, bool] = {}

    def note_value(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        answer = func(*args, **kwargs)
        made = list(_graph_values(args))
        place = find_user_line(sys._getframe(1)) if made and not _is_tensors(answer) else None
        if place is not None:
            seen[place] = seen.get(place, True) and all(map(_is_of_sizes_only, made))
        return answer

    try:
        with intercept_calls(note_value):
            call_framework("torch.jit.trace", trace)
    except RefusedError:
        return frozenset()
    return frozenset(place for place, sizes in seen.items() if sizes)


def _is_tensors(answer: object) -> bool:
    """Whether a call returned only tensors or None."""
    import torch

    parts = answer if isinstance(answer, (tuple, list)) else [answer]
    return all(part is None or isinstance(part, torch.Tensor) for part in parts)


def _graph_values(args: Any) -> Iterator[Any]:
    """Yield the graph values of a call's tensor arguments."""
    import torch

    if torch._C._get_tracing_state() is None:
        return
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield torch._C._get_value_trace(arg)  # type: ignore[attr-defined]  # not in its stubs


def _is_of_sizes_only(value: Any) -> bool:
    """Whether a value depends only on sizes, parameters and constants."""
    left, seen = [value.node()], set()
    while left:
        node = left.pop()
        if node in seen or node.kind() == "prim::GetAttr":
            continue
        seen.add(node)
        if node.kind() == "prim::Param":
            return False
        inputs = [one.node() for one in node.inputs()]
        if node.kind() == "aten::size":
            if _depends_on_data(inputs[0]):
                return False
            inputs = inputs[1:]
        left.extend(inputs)
    return True


def _depends_on_data(start: Any) -> bool:
    """Whether the output sizes of a node may depend on data."""
    left, seen = [start], set()
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        kind = node.kind()
        if kind.startswith(_OF_DATA) or not kind.startswith(_KNOWN):
            return True
        left.extend(one.node() for one in node.inputs())
    return False
