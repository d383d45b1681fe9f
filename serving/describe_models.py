"""Describe model files in a child process: one that dies is named, and the others follow."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..converters.registry import target_named
from ..core.children.child_call import ChildCall, ParentConnection, run_in_child
from ..core.children.limits import ChildWatchdog, ProcessLimits
from ..core.children.messages import Interrupted, Returned, StoppedByError, rebuild_error
from ..core.contract import Native, Runner, Target
from ..core.errors import ModelcError
from ..core.kinds import Precision
from ..core.signature import Signature
from .model_interface import make_interface, observe_runs
from .repository_records import ModelInterface


@dataclass(frozen=True, kw_only=True)
class DescribeRequest:
    """One model file to describe; with a signature, it is also run if this machine can.

    A file of machine code runs only with `trust`.
    """

    path: Path
    target: str
    precision: Precision = Precision.FP32
    signature: Signature | None = None
    trust: bool = False


@dataclass(frozen=True, kw_only=True)
class DescribedModel:
    """The interface of one file, or why it has none; `fault` is empty if it has one."""

    interface: ModelInterface | None = None
    fault: str = ""


def describe_models(
    requests: Sequence[DescribeRequest],
    bounds: ProcessLimits | None,
    advance: Callable[[int], object] = lambda _: None,
) -> tuple[DescribedModel, ...]:
    """Describe the files in their order; `bounds` are for each of them.

    Args:
        requests: the files.
        bounds: what a child process may use for one file; None describes them in this process.
        advance: is called with the number of files that are described.

    Raises:
        ChildBugError: an unexpected exception in the child.
        KeyboardInterrupt: this process was interrupted.
    """
    if bounds is None:
        return tuple(map(describe_model, requests))
    found: list[DescribedModel] = []
    while len(found) < len(requests):
        found += _describe_in_child(requests[len(found) :], bounds)
        advance(len(found))
    return tuple(found)


def _describe_in_child(
    requests: Sequence[DescribeRequest], bounds: ProcessLimits
) -> list[DescribedModel]:
    """Describe files until all are, or until the process dies on one, which is then the last."""
    found: list[DescribedModel] = []
    with tempfile.TemporaryDirectory(prefix="modelc-") as folder:
        watchdog = ChildWatchdog(bounds, Path(folder))

        def on_message(message: object) -> None:
            if isinstance(message, DescribedModel):
                found.append(message)
                watchdog.restart_clock()

        call = ChildCall(
            function=describe_all,
            argument=tuple(requests),
            messages=(DescribedModel, int),
            threads=bounds.threads,
            grace=bounds.grace,
            quiet=True,
        )
        end = run_in_child(call, on_message, watch=watchdog)
    if isinstance(end, StoppedByError):
        raise rebuild_error(end)
    if isinstance(end, Interrupted):
        raise KeyboardInterrupt
    if not isinstance(end, Returned):
        reason = f"its process died: {end.name}" if end.overrun is None else end.overrun.text
        found.append(DescribedModel(fault=reason))
    return found


def describe_all(requests: tuple[DescribeRequest, ...], parent: ParentConnection) -> int:
    """Describe the files in this process, and send each result; return their number."""
    for request in requests:
        parent.send(describe_model(request))
    return len(requests)


def describe_model(request: DescribeRequest) -> DescribedModel:
    """Describe one file in this process."""
    target = target_named(request.target)
    try:
        inspection = target.inspect(request.path)
        signature, evidence = request.signature, None
        if signature is None:
            interface = make_interface(inspection, Signature(inputs=()), None)
            return DescribedModel(interface=interface)
        if can_run_here(target) and not _is_distrusted(target, request):
            with _open_runner(target, request, signature) as runner:
                evidence = observe_runs(runner, signature, request.precision)
        return DescribedModel(interface=make_interface(inspection, signature, evidence))
    except ModelcError as error:
        return DescribedModel(fault=error.message)


_CONSENT = {"trust_engine": "true"}  # the setting that allows machine code


def _is_distrusted(target: Target, request: DescribeRequest) -> bool:
    """Whether the file is machine code that must not run."""
    settings = _CONSENT if request.trust else {}
    return isinstance(target, Native) and bool(target.distrust_reason(request.path, settings))


def _open_runner(target: Target, request: DescribeRequest, signature: Signature) -> Runner:
    if isinstance(target, Native) and request.trust:
        return target.open_runner(request.path, "cpu", signature, _CONSENT)
    return target.open_runner(request.path, "cpu", signature)


def can_run_here(target: Target) -> bool:
    """Whether the target's files run on the CPU of this machine."""
    return "cpu" in target.DEVICES and target.readiness().ready
