"""Keeps a folder's signature true while its manifest changes: signed again, or gone and told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import UsageError
from ...core.events import Noted, Tell
from ..folder import check_output_path, open_folder, settle_commit
from ..manifest_file import MANIFEST_FILE, SIGNATURE_FILE, read_manifest
from .signing import is_signed_by, sign_record

if TYPE_CHECKING:
    from .signing import PrivateKey

_UNUSED_NOTE = "the limits and accepted branches on record are not used (give them as options)"


@contextmanager
def keep_signature(
    folder: Path, key: PrivateKey | None, tell: Tell, *, judges_all: bool = False
) -> Iterator[bool]:
    """Sign the manifest that the block leaves, however it ends; without a key, tell what is gone.

    Whoever writes a manifest removes the signature of the one before. To sign is to vouch for all
    that a record holds, so one that this key did not sign is not gone on with.

    Args:
        folder: the output folder.
        key: what signs; None signs nothing.
        tell: listens.
        judges_all: the block judges everything that is there anew.

    Yields:
        Whether limits and accepted branches may be taken from the record: not where the key is to
        vouch for a record that it did not sign.

    Raises:
        UsageError: the folder holds a record that this key did not sign.
    """
    check_output_path(folder)
    settle_commit(folder)
    was_signed = (folder / SIGNATURE_FILE).is_file()
    ours = key is None or _is_vouched_for(folder, key)
    if not ours and not judges_all:
        raise UsageError(
            f"{folder / MANIFEST_FILE} is not signed by this key, which would vouch for all that it holds",
            hint=f"judge it anew and sign it: modelc validate {folder} --sign-key KEY; or give "
            "another -o",
        )
    if not ours:
        text = f"{folder / MANIFEST_FILE} is not signed by this key: {_UNUSED_NOTE}"
        tell(Noted(text=text, warning=True))
    try:
        yield ours
        ours = ours or _is_all_judged(folder)
    finally:
        if key is not None and ours:
            _sign_folder(folder, key)
        if was_signed and not (folder / SIGNATURE_FILE).is_file():
            text = f"{folder / SIGNATURE_FILE} is gone: it was of the manifest before this one"
            tell(Noted(text=f"{text} (sign again with --sign-key)", warning=True))
        elif not ours:
            text = f"{folder / MANIFEST_FILE} is not signed: not all that it holds was judged anew"
            tell(Noted(text=text, warning=True))


def _is_vouched_for(folder: Path, key: PrivateKey) -> bool:
    """Whether the key signed what is there, if anything is."""
    return not (folder / MANIFEST_FILE).is_file() or is_signed_by(folder, key.public_key())


def _is_all_judged(folder: Path) -> bool:
    """Whether nothing keeps an earlier verdict because it could not be judged here."""
    manifest = read_manifest(folder)
    if manifest is None:
        return False
    left = {failure.step for failure in manifest.failures}
    return not any(one.name in left for one in manifest.artifacts)


def _sign_folder(folder: Path, key: PrivateKey) -> None:
    if (folder / MANIFEST_FILE).is_file() and not is_signed_by(folder, key.public_key()):
        with open_folder(folder):
            sign_record(folder, key)
