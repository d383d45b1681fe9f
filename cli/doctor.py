"""`modelc doctor`: what can be built here, what is missing, and what is broken."""

from __future__ import annotations

from pathlib import Path

import typer

from . import options as o


def doctor(
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Look at driver, GPUs, libraries, versions and clashes, and say what can be built here.

    What is missing is no fault; only what is installed and cannot work ends with exit code 4.
    """
    from ..pipeline.diagnose import collect_surroundings, examine
    from ..pipeline.manifest_file import encode_json
    from .render_doctor import show_diagnosis
    from .tables import show_json

    folders = {"work": Path.cwd(), "cache": o.cache_folder()}
    diagnosis = examine(
        collect_surroundings({name: f for name, f in folders.items() if f is not None})
    )
    if json:
        show_json(encode_json(diagnosis))
    else:
        show_diagnosis(diagnosis, quiet=quiet)
    raise typer.Exit(diagnosis.exit_code)
