"""`--sign-key`: sign the manifest that a command leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Panel

if TYPE_CHECKING:
    from ..pipeline.provenance.signing import PrivateKey, PublicKey

SIGN_KEY_VARIABLE = "MODELC_SIGN_KEY"

SignKey = Annotated[
    Path | None,
    typer.Option(
        "--sign-key",
        envvar=SIGN_KEY_VARIABLE,
        metavar="PEM",
        help="Sign the manifest with this ed25519 key, into manifest.json.sig.",
        rich_help_panel=Panel.SIGNING,
    ),
]


def load_private_key(path: Path | None) -> PrivateKey | None:
    """The key in the file that was named, if one was."""
    if path is None:
        return None
    from ..pipeline.provenance.signing import read_private_key

    return read_private_key(path)


def load_public_key(path: Path | None) -> PublicKey | None:
    """As `load_private_key`, of the key that signatures are checked with."""
    if path is None:
        return None
    from ..pipeline.provenance.signing import read_public_key

    return read_public_key(path)


def is_on_command_line(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line, and not in the environment alone."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
