"""The three ways of taking a torch module down as a program, shared by the formats."""

from __future__ import annotations

import json
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..core.contract import Branch, EagerModel, Job
from ..core.errors import ConversionError, first_line
from ..core.findings import Warned
from ..core.signature import Dim, Signature

if TYPE_CHECKING:
    import torch

    Script: TypeAlias = torch.jit.ScriptModule
else:
    Script: TypeAlias = Any  # a record's fields are read by type at run time, without torch

Made = TypeVar("Made")
_LOG = logging.getLogger(__name__)  # what is said here ends in the step's log


def model_of(job: Job) -> EagerModel:
    """The eager model of a job that must have one."""
    if job.model is None:
        raise RuntimeError("a job captured from eager came without its model")
    return job.model


def example_tensors(job: Job) -> tuple[torch.Tensor, ...]:
    """The job's example feed as tensors of their own memory, in the signature's order."""
    import torch

    return tuple(torch.tensor(job.example[spec.name]) for spec in job.signature.inputs)


def guarded(what: str, make: Callable[[], Made], signature: Signature | None = None) -> Made:
    """Run one framework call; whatever it raises becomes one ConversionError.

    Args:
        what: the caller, as the message names it.
        make: the call.
        signature: whose names replace torch's own for dims, where there is one.
    """
    try:
        return make()
    except Exception as error:  # the converter's edge: frameworks raise anything
        reason = reason_of(error)
        if signature is not None:
            reason = _in_users_names(reason, signature)
        raise ConversionError(
            f"{what} refused the model: {reason}", hint="the whole text is in the log"
        ) from error


def reason_of(error: BaseException) -> str:
    """The telling line of a torch exception, with the user's source line where it names one."""
    inner = error.__cause__ if error.__cause__ is not None else error
    points = re.findall(r"^\s+- (.+?)(?:\. If you\'re using|$)", str(inner), flags=re.MULTILINE)
    violated = "Constraints violated" in str(inner)
    line = points[0] if violated and points else first_line(inner)
    if isinstance(inner, KeyError):  # whose text is the key alone
        line = f"KeyError {line}"
    source = _source_line(str(inner))
    return f"{line} (at {source})" if source else line


def _in_users_names(text: str, signature: Signature) -> str:
    """`L['tensors'][0].size()[1]` as `seq` of `ids`."""

    def name(match: re.Match[str]) -> str:
        spec = signature.inputs[int(match.group(1))]
        dim = spec.dims[int(match.group(2))]
        return f"dim {dim.name or match.group(2)!r} of {spec.name}"

    return re.sub(r"L\['tensors'\]\[(\d+)\]\.size\(\)\[(\d+)\]", name, text)


def _source_line(text: str) -> str:
    """`file:line` of the last frame that a torch message quotes, or nothing."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', text)
    return f"{frames[-1][0]}:{frames[-1][1]}" if frames else ""


def exported(job: Job) -> torch.export.ExportedProgram:
    """The model through `torch.export`, with the signature's dynamic dims and ranges."""
    import torch

    model = model_of(job)
    axes = job.signature.axes()
    dims = job.signature.dynamic_dims
    shapes = tuple(
        {axis: _hint(dims[name]) for axis, name in axes.get(spec.name, {}).items()}
        for spec in job.signature.inputs
    )
    tensors = example_tensors(job)
    with torch.no_grad():
        return guarded(
            "torch.export",
            lambda: torch.export.export(
                model.flat, tensors, dynamic_shapes=(shapes,), strict=False
            ),
            job.signature,
        )


def _hint(dim: Dim) -> object:
    import torch

    if not dim.bounded:
        return torch.export.Dim.DYNAMIC
    return torch.export.Dim.DYNAMIC(min=dim.low, max=dim.high)


def scripted(job: Job) -> torch.jit.ScriptModule:
    """The user's own module through `torch.jit.script`: branches and loops are kept."""
    import torch

    module = model_of(job).module
    if isinstance(module, torch.jit.ScriptModule):
        return module
    made = guarded("torch.jit.script", lambda: torch.jit.script(module))
    if not isinstance(made, torch.jit.ScriptModule):
        raise ConversionError(
            f"torch.jit.script made a {type(made).__name__} of the model",
            hint="try --capture trace or --capture export",
        )
    return made


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A trace, the user's lines at which it made Python values of tensors, what it warned of."""

    module: Script
    frozen: tuple[Branch, ...]
    warned: tuple[Warned, ...]


def traced(job: Job) -> Traced:
    """The flat model through `torch.jit.trace`, with what the tracer said of the user's lines.

    The inputs carry the signature's names. Nothing is checked here: the verdict does that on
    feeds other than the one traced.
    """
    import torch

    model = model_of(job)
    tensors = example_tensors(job)
    caught: list[warnings.WarningMessage] = []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("always")
        warnings.showwarning = _keeper(caught)
        made = guarded(
            "torch.jit.trace",
            lambda: torch.jit.trace(  # type: ignore[no-untyped-call]  # torch's own
                model.flat, tensors, check_trace=False, strict=False
            ),
        )
    for warning in caught:
        _LOG.warning("%s:%d: %s", warning.filename, warning.lineno, warning.message)
    for value, spec in zip(list(made.graph.inputs())[1:], job.signature.inputs, strict=False):
        value.setDebugName(spec.name.replace(".", "_"))
    return Traced(module=made, frozen=frozen_branches(caught), warned=warnings_on(caught))


def _keeper(kept: list[warnings.WarningMessage]) -> Callable[..., None]:
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
        kept.append(warnings.WarningMessage(message, category, filename, lineno))

    return keep


def frozen_branches(caught: list[warnings.WarningMessage]) -> tuple[Branch, ...]:
    """The user's lines where a tensor became a Python value: what is done with it is frozen.

    Torch's own lines are left out: they check shapes, which the verdict does better.
    """
    import torch

    return tuple(
        dict.fromkeys(
            Branch(file=warning.filename, line=warning.lineno)
            for warning in _on_users_lines(caught)
            if issubclass(warning.category, torch.jit._trace.TracerWarning)
            and str(warning.message).startswith("Converting a tensor to")
        )
    )


def warnings_on(caught: list[warnings.WarningMessage]) -> tuple[Warned, ...]:
    """Each warning on a line of the user's once, its first sentence only."""
    return tuple(
        dict.fromkeys(
            Warned(
                file=warning.filename,
                line=warning.lineno,
                text=str(warning.message).strip().partition(". ")[0],
                kind=warning.category.__name__,
            )
            for warning in _on_users_lines(caught)
        )
    )


def _on_users_lines(
    caught: list[warnings.WarningMessage],
) -> Iterator[warnings.WarningMessage]:
    import torch

    library = Path(torch.__file__).parent
    return (one for one in caught if not Path(one.filename).is_relative_to(library))


def versions(*packages: str) -> dict[str, str]:
    """Installed versions by distribution name; those not installed are left out."""
    from importlib import metadata

    found: dict[str, str] = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def call_record(job: Job, form: str) -> str:
    """What an archive of torch's says of itself, as JSON: how to call it, what it came from."""
    return json.dumps(
        {
            **job.metadata,
            "call": form,
            "inputs": [spec.name for spec in job.signature.inputs],
            "outputs": list(job.signature.outputs),
            "signature": [str(spec) for spec in job.signature.inputs],
        }
    )


def parse_record(text: str) -> dict[str, Any]:
    """The record that `call_record` wrote; empty where an archive has none."""
    record: dict[str, Any] = json.loads(text) if text else {}
    return record


def origin_of(record: Mapping[str, Any]) -> dict[str, str]:
    """What a record says of where the model came from: all but how it is called."""
    form = ("call", "inputs", "outputs", "signature")
    return {key: str(value) for key, value in record.items() if key not in form}
