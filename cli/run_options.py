"""Options that several commands share: limits, project settings, keys, folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ErrorCode, UsageError
from ..core.events import Tell
from ..core.part_records import PARTS_FILE
from ..pipeline.call_options import CallOptions, FileOptions
from ..pipeline.option_spec import Given, Panel, read_record
from ..pipeline.option_table import SourceOptions

if TYPE_CHECKING:
    from ..core.children.limits import ProcessLimits
    from ..pipeline.provenance.signing import PrivateKey, PublicKey
    from ..pipeline.recorded_run import Moved
    from ..projects.setting_layers import Overrides

_ISOLATE_VARIABLE = "MODELC_ISOLATE"
_PRELOAD_VARIABLE = "MODELC_PRELOAD"
CACHE_DIR = "Folder of the cache; default: the user's cache folder of the system."


def process_bounds(call: CallOptions) -> ProcessLimits | None:
    """Return the limits of a child process; None if the work runs in this process.

    Raises:
        UsageError: a limit is given but there is no child process to enforce it.
    """
    from ..core.children.limits import ProcessLimits
    from ..projects.setting_values import parse_bytes, parse_seconds

    for name, value in (("--timeout", call.timeout), ("--memory", call.memory)):
        if call.isolate is False and value is not None:
            raise UsageError(
                f"{name} has no effect with --no-isolate",
                hint="remove one of them",
                option="no-isolate",
                code=ErrorCode.NO_EFFECT,
            )
    bounds = ProcessLimits(
        timeout=None if call.timeout is None else parse_seconds(call.timeout),
        memory=None if call.memory is None else parse_bytes(call.memory),
    )
    asked = call.isolate or call.timeout is not None or call.memory is not None
    return bounds if asked or (call.isolate is None and _isolates_by_default()) else None


def _isolates_by_default() -> bool:
    """Whether commands run in a child process by default: on systems with sessions."""
    return _read_switch(_ISOLATE_VARIABLE, default=os.name == "posix")


def preloads_libraries() -> bool:
    """Whether the processes of several models are forked from one that has the libraries loaded.

    Raises:
        UsageError: the variable for it is neither 0 nor 1.
    """
    return _read_switch(_PRELOAD_VARIABLE, default=True)


def _read_switch(variable: str, *, default: bool) -> bool:
    value = os.environ.get(variable, "")
    if value not in ("", "0", "1"):
        raise UsageError(
            f"{variable} must be 0 or 1, not {value}",
            hint=f"set {variable}=1, or unset it",
        )
    return default if value == "" else value == "1"


ProjectFile = Annotated[
    Path,
    typer.Option(
        "-f", "--file", metavar="FILE", help="The project file.", rich_help_panel=Panel.PROJECT
    ),
]
RemoteCache = Annotated[
    str | None,
    typer.Option(
        "--remote-cache",
        metavar="URL",
        help="Cache that several hosts share, as s3://bucket/path (fsspec).",
        rich_help_panel=Panel.CACHE,
    ),
]
RunId = Annotated[
    str,
    typer.Option(
        "--run-id",
        metavar="NAME",
        help="Name of the run that parts belong to; parts meet under it in the remote cache.",
        rich_help_panel=Panel.FLEET,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="[MODEL.]KEY=VALUE",
        help="Override a setting, as seed=3, digits.to=onnx,openvino:fp16, gates.max-size=50MB. "
        "Repeatable.",
        rich_help_panel=Panel.PROJECT,
    ),
]


def collect_overrides(
    sets: Sequence[str] | None, flags: Mapping[str, str | None] | None = None
) -> Overrides:
    """Collect the settings beside the file: flags of the run, `--set`, MODELC_ variables."""
    from ..projects.setting_layers import VARIABLE_PREFIX, Overrides

    ours = {name: text for name, text in os.environ.items() if name.startswith(VARIABLE_PREFIX)}
    plain = {name: text for name, text in (flags or {}).items() if text is not None}
    return Overrides(sets=tuple(sets or ()), flags=plain, environment=ours)


def load_private_key(path: Path | None) -> PrivateKey | None:
    """Load the private key of `--sign-key`; None without one."""
    if path is None:
        return None
    from ..pipeline.provenance.signing import read_private_key

    return read_private_key(path)


def hold_signatures(
    held: ExitStack,
    folder: Path,
    key: PrivateKey | None,
    tell: Tell,
    *,
    parts: Iterable[str] | None = None,
    judges_all: bool = False,
) -> bool:
    """Keep the signature of a folder's manifest until `held` ends; with parts, of all records.

    Parts that are not named are those that the folder's record has.

    Returns whether limits may be read from the records, as `keep_signature` yields it.
    """
    from ..pipeline.parts.parts_file import has_parts, part_folder, read_parts
    from ..pipeline.provenance.signing import keep_signature

    kept = partial(keep_signature, key=key, tell=tell, judges_all=judges_all)
    if parts is None and has_parts(folder):
        parts = [part.name for part in read_parts(folder).parts]
    if parts is None:
        return held.enter_context(kept(folder))
    found = [held.enter_context(kept(folder, file=PARTS_FILE))]
    found += [held.enter_context(kept(part_folder(folder, name))) for name in parts]
    return all(found)


def load_public_key(path: Path | None) -> PublicKey | None:
    """Load the public key that signatures are checked with; None without one."""
    if path is None:
        return None
    from ..pipeline.provenance.signing import read_public_key

    return read_public_key(path)


def file_move(given: Given, *, trust: bool = False) -> Moved:
    """Return the new locations from `--checkpoint` and `--samples` for an earlier run's files."""
    from ..pipeline.recorded_run import Moved

    source = read_record(SourceOptions, given)
    return Moved(
        checkpoint=read_record(FileOptions, given).checkpoint,
        samples=source.samples,
        allow_pickle=source.allow_pickle,
        trust=source.trust or trust,
    )


def cache_folder() -> Path:
    """The cache folder of the user on this system."""
    from platformdirs import user_cache_path

    return user_cache_path("modelc", appauthor=False)


def environments_cache() -> Path:
    """The folder of the cache that holds environments of other runtimes."""
    given = os.environ.get("MODELC_CACHE_DIR", "")
    return Path(given) if given else cache_folder()


def is_on_command_line(context: typer.Context, name: str) -> bool:
    """Whether an option is on the command line, and not only in the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
