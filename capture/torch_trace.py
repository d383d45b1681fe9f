"""Capture with torch.jit.trace: one recorded run, and the branches that it froze."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.contract import Branch, Job
from ..core.errors import Hint, Option
from ..core.findings import Warned
from .captured_program import ScriptCapture, example_tensors, model_of
from .evidence import Symptom
from .framework_errors import call_framework
from .refusals import RefusedError
from .size_branches import find_right_interval, find_wrong_size
from .size_constraints import NarrowError

if TYPE_CHECKING:
    from torch import nn

_LOG = logging.getLogger(__name__)  # what is said here ends in the step's log


def capture_trace(job: Job) -> ScriptCapture:
    """The flat model through `torch.jit.trace`, with what the tracer said of the user's lines.

    The inputs carry the signature's names. Nothing is checked here: the verdict does that on
    feeds other than the one traced.
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
    """Look at the sizes at which forward goes another way; notes on what could not be seen.

    Raises:
        NarrowError: the trace is wrong there; feeds of other sizes would not show it.
    """
    found, notes = find_wrong_size(made, job)
    if found is not None:
        at = ", ".join(f"{name}={size}" for name, size in found.items())
        interval = find_right_interval(made, job, found)
        smaller = (
            "" if interval is None else ", or accept {}={}..{} with --narrow".format(*interval)
        )
        raise NarrowError(
            f"the trace froze a branch on sizes: at {at} the model goes another way",
            hint=Hint("leave that size out of the range in ", Option("input"), f"{smaller}"),
            interval=interval,
            option="input",
            symptoms=frozenset((Symptom.SIZE_BRANCH,)),
        )
    return notes


def _data_warnings(
    caught: list[warnings.WarningMessage], trace: Callable[[], object]
) -> list[warnings.WarningMessage]:
    """The warnings of values that were made of data: the tracer warns of sizes alike."""
    import torch

    asked = {(one.filename, one.lineno) for one in _value_conversions(caught)}
    if not asked:
        return []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        sizes = size_only_lines(trace)
    return [one for one in _value_conversions(caught) if (one.filename, one.lineno) not in sizes]


def _module_paths(root: nn.Module, caught: list[warnings.WarningMessage]) -> tuple[str, ...]:
    """The paths of the modules whose code made Python values of tensors, each once."""
    known = {id(module): path for path, module in root.named_modules()}
    asking = (id(warning.source) for warning in _value_conversions(caught))
    return tuple(dict.fromkeys(known[one] for one in asking if one in known))


def _collect_warnings(kept: list[warnings.WarningMessage]) -> Callable[..., None]:
    """Keeps warnings; those of torch's Tensor class at the line that used the tensor.

    `np.asarray(x)` and `3 in x` are the user's lines, but it is the class that warns.
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
    """The innermost module whose method is being run."""
    from torch import nn

    while frame is not None:
        first = frame.f_code.co_varnames[:1]
        owner = frame.f_locals.get(first[0]) if first else None
        if isinstance(owner, nn.Module):
            return owner
        frame = frame.f_back
    return None


def find_frozen_branches(caught: list[warnings.WarningMessage]) -> tuple[Branch, ...]:
    """The user's lines where a tensor became a Python value: what is done with it is frozen.

    Torch's own lines are left out: they check shapes, which the verdict does better.
    """
    return tuple(
        dict.fromkeys(
            Branch(file=warning.filename, line=warning.lineno)
            for warning in _value_conversions(caught)
        )
    )


def _value_conversions(caught: list[warnings.WarningMessage]) -> Iterator[warnings.WarningMessage]:
    """What says that a tensor became a Python value on a line of the user's."""
    import torch

    return (
        warning
        for warning in _user_line_warnings(caught)
        if issubclass(warning.category, torch.jit._trace.TracerWarning)
        and str(warning.message).startswith("Converting a tensor to")
    )


def user_warnings(caught: list[warnings.WarningMessage]) -> tuple[Warned, ...]:
    """Each warning on a line of the user's once, its first sentence only."""
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

# Operators whose results have sizes that depend on data; those of no library of torch's may, too.
_OF_DATA = (
    "aten::nonzero", "aten::argwhere", "aten::masked_select", "aten::unique", "aten::_unique",
    "aten::index", "aten::repeat_interleave", "aten::bincount", "aten::_pack_padded_sequence",
    "aten::where", "aten::_nested", "aten::combinations",
)  # fmt: skip
_KNOWN = ("aten::", "prim::")


def size_only_lines(trace: Callable[[], object]) -> frozenset[SourceLine]:
    """Trace once more and say at which lines tensors became Python values of sizes alone.

    Each value is followed back in the graph so far. Where it comes from an input's data, or the
    sizes do, its line is none of them. What cannot be traced again shows none.
    """
    from torch.overrides import TorchFunctionMode

    seen: dict[SourceLine, bool] = {}

    class Values(TorchFunctionMode):
        """Sees each call that leaves the tensors."""

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> object:
            answer = func(*args, **(kwargs or {}))
            made = list(_graph_values(args))
            if made and not _is_tensors(answer):
                place = _user_line()
                seen[place] = seen.get(place, True) and all(map(_is_of_sizes_only, made))
            return answer

    try:
        with Values():
            call_framework("torch.jit.trace", trace)
    except RefusedError:
        return frozenset()
    return frozenset(place for place, sizes in seen.items() if sizes)


def _is_tensors(answer: object) -> bool:
    """Whether a call gave tensors, or nothing, and so no Python value of them."""
    import torch

    parts = answer if isinstance(answer, (tuple, list)) else [answer]
    return all(part is None or isinstance(part, torch.Tensor) for part in parts)


def _graph_values(args: Any) -> Iterator[Any]:
    """The values in the graph of the tensors that a call took; a constant's has no producer."""
    import torch

    if torch._C._get_tracing_state() is None:
        return
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield torch._C._get_value_trace(arg)  # type: ignore[attr-defined]  # not in its stubs


def _user_line() -> SourceLine:
    """The line that asked: the innermost that is neither torch's nor of this file."""
    import torch

    library = f"{Path(torch.__file__).parent}/"
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((library, __file__)):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _is_of_sizes_only(value: Any) -> bool:
    """Whether all that a value is computed from is sizes, parameters and constants."""
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
    """Whether the sizes of what a node gives may depend on data."""
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
