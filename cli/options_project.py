"""The options of a project that several commands share: its file, and what goes over it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Panel
from .options_sign import SIGN_KEY_VARIABLE as SIGN_KEY

if TYPE_CHECKING:
    from ..projects.layers import Overrides

ProjectFile = Annotated[
    Path,
    typer.Option(
        "-f", "--file", metavar="FILE", help="The project.", rich_help_panel=Panel.PROJECT
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="[MODEL.]KEY=VALUE",
        help="Go over the file, as seed=3, digits.to=onnx,openvino:fp16 or gates.max-size=50MB. "
        "Repeatable.",
        rich_help_panel=Panel.PROJECT,
    ),
]


def collect_overrides(
    sets: Sequence[str] | None, flags: Mapping[str, str | None] | None = None
) -> Overrides:
    """What is said beside the file: options of the run by key, `--set`, and MODELC_ variables."""
    from ..projects.layers import VARIABLE_PREFIX, Overrides

    ours = {
        name: text
        for name, text in os.environ.items()
        if name.startswith(VARIABLE_PREFIX) and name != SIGN_KEY
    }
    plain = {name: text for name, text in (flags or {}).items() if text is not None}
    return Overrides(sets=tuple(sets or ()), flags=plain, environment=ours)
