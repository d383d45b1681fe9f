"""The models of a benchmark's rows: eager, compiled, or a file in its runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ...converters.registry import target_named
from ...core.contract import Feed
from ...core.errors import ErrorCode, RunnerError, UsageError
from ...core.events import ignore_events
from ...core.process import thread_limit
from ...core.signature import Signature
from ...core.target_extensions import Concurrent, Deployable
from ...core.torch_tools import compile_module
from ..order import Source
from ..run_progress import Progress
from .benchmark_plan import BenchmarkPoint, RowSpec
from .timed_turns import open_for_timing, prepare_call

if TYPE_CHECKING:
    import torch

    from ...core.contract import Runner

Call: TypeAlias = Callable[[], object]
Agreement: TypeAlias = tuple[float | None, bool]  # SQNR, and whether it is exact


@dataclass(frozen=True, kw_only=True)
class RowRequest:
    """What a child measures, and the pipe of its orders; its threads stay on these `cores`."""

    row: RowSpec
    folder: Path
    source: Source
    signature: Signature
    points: tuple[BenchmarkPoint, ...]
    seed: int
    orders: Path
    device: str
    logs: Path
    code_folders: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()


def _no_check(_: Feed) -> Agreement:
    """Eager is what others are compared with, and the files have verdicts."""
    return None, False


@dataclass(frozen=True, kw_only=True)
class OpenRow:
    """An open model: `prepare` returns a call that runs a feed, `check` its SQNR on one.

    A call runs `in_flight` requests at a time, each `rounds` times.
    """

    prepare: Callable[[Feed], Call]
    threads: int
    check: Callable[[Feed], Agreement] = _no_check
    in_flight: int = 1
    rounds: int = 1


@contextmanager
def open_row(request: RowRequest) -> Iterator[OpenRow]:
    """Open the model of a row.

    Raises:
        ModelcError: it cannot be opened.
    """
    if not request.row.file:
        yield _open_eager(request)
        return
    with _open_file(request) as runner:
        opened = OpenRow(prepare=partial(prepare_call, runner), threads=thread_limit() or 0)
        if isinstance(runner, Concurrent):
            opened = replace(opened, in_flight=runner.in_flight, rounds=runner.rounds)
        yield opened


def _open_file(request: RowRequest) -> Runner:
    row, path = request.row, request.folder / request.row.file
    target, device, signature = target_named(row.target), request.device, request.signature
    if row.variant and isinstance(target, Deployable):
        return target.open_deployment(path, row.variant, device, signature)
    return open_for_timing(target, path, device, signature, trust=request.source.trust)


def _check_variant(module: torch.nn.Module) -> None:
    """Check that the module can be compiled.

    Raises:
        RunnerError: it cannot: there is no such row.
    """
    from ...capture.dynamo_watch import check_compilable

    try:
        check_compilable(module)
    except UsageError as error:
        raise RunnerError(error.message, hint=error.advice, code=ErrorCode.NO_EFFECT) from error


def _open_eager(request: RowRequest) -> OpenRow:
    """Load the user's module, and compile it if the row asks for that."""
    import torch

    from ...checkpoints.checkpoint_loader import load_checkpoint
    from ...checkpoints.eager_model import open_eager
    from ...converters.runner_base import make_torch_call
    from ..eager_reference import read_checkpoint

    source, variant = request.source, request.row.variant
    progress = Progress(tell=ignore_events, logs=request.logs)
    eager = open_eager(load_checkpoint(read_checkpoint(source, progress)), request.signature)
    if variant:
        _check_variant(eager.module)
    module = eager.module.to(request.device)
    function: Any = compile_module(module, variant) if variant else module

    def bind(tensors: Sequence[torch.Tensor]) -> Call:
        arguments, named = eager.bind(tensors)
        return lambda: function(*arguments, **named)

    def prepare(feed: Feed) -> Call:
        tensors = [torch.tensor(feed[name], device=request.device) for name in eager.inputs]
        return make_torch_call(bind, tensors, request.device)

    def check(feed: Feed) -> Agreement:
        from ...validators.metrics import measure_arrays

        wanted, found = eager.run(feed), eager.with_module(function).run(feed)
        measures = [measure_arrays(wanted[name], found[name]) for name in wanted]
        inexact = [one.sqnr for one in measures if not one.exact and one.sqnr is not None]
        return min(inexact, default=None), all(one.exact for one in measures)

    threads = torch.get_num_threads()
    return OpenRow(prepare=prepare, threads=threads, check=check if variant else _no_check)
