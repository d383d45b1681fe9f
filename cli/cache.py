"""`modelc cache`: list, limit and verify the results that earlier runs stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..pipeline.call_options import CallOptions
from ..pipeline.option_spec import Given, Panel, read_record
from .command_options import with_options
from .run_options import CACHE_DIR, cache_folder

if TYPE_CHECKING:
    from ..pipeline.cache.store_layout import StoreLayout

app = typer.Typer(
    help="List, remove and verify the results of earlier runs, which later runs reuse.",
    no_args_is_help=True,
)
CacheDir = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        envvar="MODELC_CACHE_DIR",
        metavar="DIR",
        help=CACHE_DIR,
        rich_help_panel=Panel.CACHE,
    ),
]


@app.command("ls")
@with_options("cache ls")
def ls(
    cache_dir: CacheDir = None,
    *,
    given: Given,
) -> None:
    """List the stored results, the most recently used first."""
    from ..pipeline.cache.store_layout import list_results
    from ..pipeline.manifest_file import encode_json
    from .console import show_json
    from .render_setup import show_cache

    layout = _open_layout(cache_dir)
    rows = list_results(layout)
    if read_record(CallOptions, given).json:
        show_json(
            encode_json({"results": rows, "size": layout.size(), "folder": str(layout.folder)})
        )
    else:
        show_cache(rows, layout.size(), layout.folder)


@app.command("gc")
@with_options("cache gc")
def gc(
    limit: Annotated[
        str | None,
        typer.Option(
            "--limit",
            metavar="SIZE",
            help="Size to shrink the cache to: 2GB, 500MB, 0 to empty it; default 10GB.",
            rich_help_panel=Panel.CACHE,
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help="Also remove results that were not used for this time: 30d, 12h.",
            rich_help_panel=Panel.CACHE,
        ),
    ] = None,
    cache_dir: CacheDir = None,
    *,
    given: Given,
) -> None:
    """Remove the least recently used results, beyond a size or an age."""
    from ..core.records import size_text
    from ..pipeline.cache.result_store import DEFAULT_CACHE_LIMIT, collect_garbage
    from ..pipeline.manifest_file import encode_json
    from ..projects.setting_values import parse_bytes, parse_seconds
    from .console import print_line, result_console, show_json

    most = DEFAULT_CACHE_LIMIT if limit is None else parse_bytes(limit, least=0)
    age = None if older_than is None else parse_seconds(older_than)
    layout = _open_layout(cache_dir)
    freed = collect_garbage(layout, limit=most, older_than=age) if layout.folder.is_dir() else 0
    if read_record(CallOptions, given).json:
        show_json(encode_json({"freed": freed, "left": layout.size()}))
    else:
        print_line(result_console(), f"{size_text(freed)} freed, {size_text(layout.size())} left")


@app.command("verify")
@with_options("cache verify")
def verify(
    cache_dir: CacheDir = None,
    *,
    given: Given,
) -> None:
    """Check the digest of every stored file and remove corrupt results; exit 1 if there are any."""
    from ..pipeline.cache.result_store import verify_store as wrong_in
    from ..pipeline.manifest_file import encode_json
    from .console import show_json
    from .render_setup import show_cache_faults

    layout = _open_layout(cache_dir)
    wrong = wrong_in(layout) if layout.folder.is_dir() else ()
    if read_record(CallOptions, given).json:
        show_json(encode_json({"wrong": wrong, "left": layout.size()}))
    else:
        show_cache_faults(wrong, layout.size())
    raise typer.Exit(1 if wrong else 0)


@app.command("runtimes")
@with_options("cache runtimes")
def runtimes(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUNTIME", help="As onnxruntime==1.20.1; default: all."),
    ] = None,
    remove: Annotated[
        bool,
        typer.Option(
            "--remove",
            help="Remove these environments; each is made again when it is needed.",
            rich_help_panel=Panel.CACHE,
        ),
    ] = False,
    cache_dir: CacheDir = None,
    *,
    given: Given,
) -> None:
    """List or remove the environments of other runtimes, which validate --in makes."""
    from ..core.records import size_text
    from ..pipeline.manifest_file import encode_json
    from ..runtimes.runtime_environments import (
        list_environments,
        remove_environments,
        select_environments,
    )
    from .console import print_line, result_console, show_json
    from .render_setup import show_environments

    folder = cache_dir or cache_folder()
    rows = select_environments(list_environments(folder), names or ())
    chosen = {one.name for one in rows} if names else None
    freed = remove_environments(folder, chosen) if remove else 0
    if read_record(CallOptions, given).json:
        show_json(encode_json({"environments": () if remove else rows, "freed": freed}))
    elif remove:
        print_line(result_console(), f"{size_text(freed)} freed")
    else:
        show_environments(rows, folder)


def _open_layout(cache_dir: Path | None) -> StoreLayout:
    """Open the store in the given folder, or in the user's default one."""
    from ..core.errors import UsageError
    from ..pipeline.cache.result_store import RESULTS_FOLDER
    from ..pipeline.cache.store_layout import StoreLayout

    if cache_dir is not None and not cache_dir.is_dir():
        raise UsageError(f"{cache_dir} is not a folder", hint="pass the folder of a cache")
    return StoreLayout(folder=(cache_dir or cache_folder()) / RESULTS_FOLDER)
