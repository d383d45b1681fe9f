"""`modelc validate --served`, `--outside`, `--in`: judge artifacts that run elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..core.errors import ErrorCode, UsageError
from ..core.events import Tell
from ..pipeline.call_options import CallOptions, FileOptions, ServedChoice
from ..pipeline.option_spec import Given, read_record, specs_of
from ..pipeline.option_table import SourceOptions
from .command_options import refuse_others
from .judging_options import read_limits
from .run_options import (
    environments_cache,
    file_move,
    is_on_command_line,
    load_private_key,
    process_bounds,
)

if TYPE_CHECKING:
    import typer

    from ..core.external_runtime import ExternalRuntime, RuntimeFamily
    from ..pipeline.isolation.worker import Returned
    from ..pipeline.validate_served import ServedRequest

ELSEWHERE = ("served", "outside", "in")
SERVED_ONLY = tuple(one.name for one in specs_of(ServedChoice))
_COMMON_OPTIONS = {
    "checkpoint", "samples", "allow-pickle", "trust", "trust-engine", "feeds", "seed", "atol",
    "rtol", "min-sqnr", "tolerance", "sign-key", "json", "quiet", "debug", "isolate", "timeout",
    "memory", "artifact",
}  # fmt: skip


def validate_elsewhere(path: Path, context: typer.Context, given: Given) -> int:
    """Judge the artifacts of a folder where they run elsewhere, show the verdicts; the exit code.

    Raises:
        ModelcError: the options contradict each other, or a runtime is not available.
    """
    from ..core.external_runtime import ExternalReport
    from ..pipeline.make_order import make_settings
    from ..pipeline.manifest_file import encode_json
    from .console import show_json
    from .render_external import show_external

    call = read_record(CallOptions, given)
    _check_folder(path, next(name for name in ELSEWHERE if given.get(name)))
    where: dict[str, object]
    if given.get("served"):
        function: Literal["validate_served", "validate_external"] = "validate_served"
        where = {"served": _read_server(given)}
    else:
        function = "validate_external"
        where = _choose_runtimes(path, given, quiet=call.quiet)
    trusts_code = bool(given.get("trust") or given.get("trust-engine"))
    where["moved"] = file_move(given, trust=trusts_code)
    where["settings"] = make_settings({**given, "trust-engine": trusts_code})
    judge = FolderCall(function=function, arguments=where)
    report = call_on_folder(path, judge, ExternalReport, context, given)
    if call.json:
        show_json(encode_json(report))
    else:
        show_external(report)
    return report.exit_code


@dataclass(frozen=True, kw_only=True)
class FolderCall:
    """A function that judges an output folder, without the arguments `folder` and `judging`."""

    function: Literal["validate_compiled", "validate_external", "validate_served"]
    arguments: Mapping[str, object]


def call_on_folder(
    path: Path, judge: FolderCall, kind: type[Returned], context: typer.Context, given: Given
) -> Returned:
    """Call it with the judging options, keep the folder's signature true, and return the result.

    Raises:
        ModelcError: the error of the call, or the key cannot be used.
    """
    from ..pipeline.isolation.worker import ApiCall, run_call
    from ..pipeline.make_order import make_judging
    from .console import Screen
    from .streams import set_output_folder

    call = read_record(CallOptions, given)
    judging = make_judging(given, read_limits(call.tolerance))
    set_output_folder(path)
    sign = keep_folder_signature(path, call.sign_key, context, judges_all=False)
    with Screen(quiet=call.quiet) as screen, sign(screen) as trusts:
        trusting = replace(judging, trusts_record=trusts)
        arguments = {"folder": path, "judging": trusting, **judge.arguments}
        api = ApiCall(function=judge.function, arguments=arguments)
        return run_call(api, kind, process_bounds(call), screen)


def _check_folder(path: Path, option: str) -> None:
    """Check that the path is a folder, or does not exist.

    Raises:
        UsageError: it is a file.
    """
    if path.is_file():
        raise UsageError(
            f"--{option} judges the artifacts of a folder, and {path} is a file",
            hint="give its output folder",
            option=option,
            code=ErrorCode.NO_EFFECT,
        )


def _read_server(given: Given) -> ServedRequest:
    from ..pipeline.validate_served import ServedRequest

    allowed = {*_COMMON_OPTIONS, *SERVED_ONLY, "model"}
    refuse_others(given, allowed, "with --served", "remove it")
    choice = read_record(ServedChoice, given)
    served = ServedRequest(
        url=choice.served or "", model=read_record(SourceOptions, given).model,
        version=choice.model_version, artifact=_only_artifact(given), headers=choice.header,
        timeout=choice.request_timeout,
    )  # fmt: skip
    _ = served.address  # raises before anything is started
    return served


def _only_artifact(given: Given) -> str | None:
    """Return the artifact that `--artifact` names, if it does.

    Raises:
        UsageError: it names several, of which a server's model can be one only.
    """
    names = read_record(CallOptions, given).artifact
    if len(names) > 1:
        raise UsageError(
            f"--served compares a model with one artifact, not with {' and '.join(names)}",
            hint=f"give one of them: --artifact {names[0]}",
            option="artifact",
            code=ErrorCode.INVALID_VALUE,
        )
    return names[0] if names else None


def _choose_runtimes(path: Path, given: Given, *, quiet: bool) -> dict[str, object]:
    """Return the runtimes of `--outside` and `--in`, and whether to measure their drift."""
    from ..pipeline.installed_runtimes import provide_runtimes
    from ..runtimes.outside_programs import OutsidePrograms
    from .console import Screen

    files = read_record(FileOptions, given)
    allowed = {*_COMMON_OPTIONS, "outside", "in"}
    option = "--in" if files.runtimes else "--outside"
    refuse_others(given, allowed, f"with {option}, which runs artifacts elsewhere", "remove it")
    runtimes: list[ExternalRuntime | RuntimeFamily] = []
    if files.outside:
        runtimes.append(OutsidePrograms(cache=environments_cache()))
    if files.runtimes:
        with Screen(quiet=quiet) as screen:
            runtimes += provide_runtimes(path, files.runtimes, environments_cache(), screen)
    chosen = read_record(CallOptions, given).artifact
    return {"runtimes": tuple(runtimes), "artifacts": chosen, "drift": bool(files.runtimes)}


def keep_folder_signature(
    path: Path, key: Path | None, context: typer.Context, *, judges_all: bool
) -> Callable[[Tell], AbstractContextManager[bool]]:
    """What keeps the signature of a folder true, given who listens; a single file has none.

    Raises:
        UsageError: a key was given for a single file, or it is none.
    """
    from ..pipeline.provenance.signing import keep_signature

    if path.is_dir():
        private = load_private_key(key)
        return lambda tell: keep_signature(path, private, tell, judges_all=judges_all)
    if is_on_command_line(context, "sign_key"):
        raise UsageError(
            "--sign-key has no effect on a single file",
            hint="pass its folder",
            option="sign-key",
            code=ErrorCode.NO_EFFECT,
        )
    return lambda _: nullcontext(enter_result=True)
