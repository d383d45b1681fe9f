"""Judge the eager module under `torch.compile` on all feeds of its domain, as artifacts are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from ..capture.dynamo_watch import check_compilable, plain_name
from ..converters.runner_base import JudgedOnly, RunnerBase
from ..core.compile_records import (
    COMPILE_BACKENDS,
    COMPILED,
    CompiledVerdict,
    compile_settings,
    name_compiled,
    plain_variant,
)
from ..core.contract import Feed, Outputs, Runner
from ..core.errors import CheckpointError, ErrorCode, RunnerError, UsageError, first_line
from ..core.events import Tell, ignore_events
from ..core.kinds import Precision
from ..core.signature import Signature
from ..core.torch_tools import compile_module
from ..core.verdict import Verdict
from ..validators.ruling import Ruling
from .judge_case import Candidate, JudgeRequest
from .order import Judging
from .output_folder import open_folder
from .recorded_run import Moved, load_manifest
from .reopen import find_recorded_run
from .run_progress import Progress
from .verdict_rules import judge_candidate

if TYPE_CHECKING:
    from ..checkpoints.eager_model import Eager


def validate_compiled(
    folder: Path | str,
    mode: str = "default",
    on_event: Tell = ignore_events,
    *,
    moved: Moved | None = None,
    judging: Judging | None = None,
) -> Verdict:
    """Judge the checkpoint of an output folder under `torch.compile`, and record the verdict.

    Args:
        folder: an output folder.
        mode: the mode of torch.compile.
        on_event: receives progress events.
        moved: the current places of checkpoint and samples.
        judging: feeds, seed and tolerances; as recorded where not set.

    Raises:
        ModelcError: the folder or the checkpoint cannot be used.
    """
    folder, mode = Path(folder), plain_variant(mode, "compiled")
    if compile_settings(mode).get("backend") in COMPILE_BACKENDS:
        raise UsageError(
            f"--compiled judges on the CPU, and {mode} runs on a GPU",
            hint="export the program: modelc export CHECKPOINT --to torch-tensorrt",
            option="compiled",
            code=ErrorCode.UNSUPPORTED,
        )
    _check_folder(folder, mode)
    manifest = load_manifest(folder)
    run = find_recorded_run(manifest, folder, moved, judging)
    if run.judging.device not in (None, "cpu"):
        raise UsageError(
            f"--compiled judges on the CPU, not on {run.judging.device}",
            hint="remove --device",
            option="device",
            code=ErrorCode.NO_EFFECT,
        )
    with open_folder(folder) as place:
        place.own(file.name for file in manifest.files)
        progress = Progress(tell=on_event, logs=place.logs)
        checkpoint = run.read_checkpoint(progress)
        eager = run.open_eager(checkpoint, progress)
        check_compilable(eager.model.module)
        name = name_compiled(mode)
        candidate = Candidate(
            name=name,
            target=_CompiledTarget(model=eager.model, mode=mode),
            precision=Precision.FP32,
            path=Path(checkpoint.path),
        )
        judging = replace(run.judging, sensitivity=0, recorded=None)
        request = JudgeRequest(candidate=candidate, eager=eager, judging=judging, progress=progress)
        with _forget_compilations():
            judgment = judge_candidate(request)
            notes = _describe_limits()
        verdict = judgment.plus(Ruling(notes=notes)).verdict
        record = CompiledVerdict(mode=mode, torch=metadata.version("torch"), verdict=verdict)
        others = tuple(one for one in manifest.compiled if one.mode != mode)
        place.commit(replace(manifest, compiled=(*others, record)))
    return verdict


@contextmanager
def _forget_compilations() -> Iterator[None]:
    """Forget what dynamo compiled before and within the block."""
    import torch._dynamo
    from torch._dynamo.utils import clear_compilation_metrics

    torch._dynamo.reset()
    clear_compilation_metrics()
    try:
        yield
    finally:
        torch._dynamo.reset()


def _describe_limits() -> tuple[str, ...]:
    """Return a note on each function that was compiled as often as torch allows."""
    from torch._dynamo import config
    from torch._dynamo.utils import get_compilation_metrics

    names = {
        plain_name(one.co_name)
        for one in get_compilation_metrics()
        if one.co_name is not None and (one.cache_size or 0) + 1 >= config.recompile_limit
    }
    return tuple(
        f"{name} was compiled {config.recompile_limit} times, torch's limit: on further sizes it "
        "runs eagerly (modelc inspect --breaks shows why)"
        for name in sorted(names)
    )


class _CompiledTarget(JudgedOnly):
    """The eager module under torch.compile, as the judge sees a format; it has no file."""

    NAME = COMPILED
    SUMMARY = "the eager module, compiled"

    def __init__(self, model: Eager, mode: str) -> None:
        self._model, self._mode = model, mode

    def open_runner(self, path: Path, device: str, signature: Signature) -> Runner:  # noqa: ARG002 - the contract's
        """Compile the module; it is compiled further for the sizes that it meets."""
        compiled = compile_module(self._model.module, self._mode)
        return _CompiledRunner(self._model.with_module(compiled))


class _CompiledRunner(RunnerBase):
    """Runs a compiled module on feeds."""

    def __init__(self, eager: Eager) -> None:
        self.inputs = eager.inputs
        self._eager = eager

    def run(self, feed: Feed) -> Outputs:
        """Run one feed.

        Raises:
            RunnerError: torch.compile or the compiled module fails.
        """
        try:
            return self._eager.run_untraced(feed)
        except CheckpointError as error:
            cause = error.__cause__
            text = (
                error.message if cause is None else f"{type(cause).__name__}: {first_line(cause)}"
            )
            raise RunnerError(f"{COMPILED}: {text}", hint="run the model without it") from error


def _check_folder(folder: Path, mode: str) -> None:
    if not folder.exists():
        raise UsageError(
            f"no such folder: {folder}",
            hint="give an output folder of modelc export",
            code=ErrorCode.NOT_FOUND,
        )
    if not folder.is_dir():
        raise UsageError(
            f"--compiled requires an output folder, not {folder}",
            hint=f"give its folder: modelc validate {folder.parent} --compiled {mode}",
            option="compiled",
            code=ErrorCode.NO_EFFECT,
        )
