"""Ed25519 signatures of a record's bytes in `FILE.sig`, renewed with the manifest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ...core.atomic_write import atomic_write
from ...core.errors import ErrorCode, MissingError, UsageError
from ...core.events import Noted, Tell
from ...core.installation import hint_for_extra
from ..manifest_file import MANIFEST_FILE, read_manifest, signature_path
from ..output_folder import check_output_path, open_folder, settle_commit
from .artifact_checks import CheckOutcome, ProvenanceCheck

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ed25519

    PrivateKey: TypeAlias = ed25519.Ed25519PrivateKey
    PublicKey: TypeAlias = ed25519.Ed25519PublicKey

KEY_HINT = "make one with: openssl genpkey -algorithm ed25519 -out key.pem"
_PUBLIC_KEY_HINT = "make it of the private one: openssl pkey -in key.pem -pubout -out pub.pem"


def read_private_key(path: Path) -> PrivateKey:
    """Read the private key in a PEM file.

    Raises:
        UsageError: the file cannot be read, or is not an unencrypted Ed25519 private key.
        MissingError: the cryptography package is not installed.
    """
    _require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    with _translate_key_errors(path, "private key", KEY_HINT):
        key = load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise _key_type_error(path)
    return key


def read_public_key(path: Path) -> PublicKey:
    """Read the public key in a PEM file.

    Raises:
        UsageError: the file cannot be read, or is not an Ed25519 public key.
        MissingError: the cryptography package is not installed.
    """
    _require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    with _translate_key_errors(path, "public key", _PUBLIC_KEY_HINT):
        key = load_pem_public_key(path.read_bytes())
    if not isinstance(key, Ed25519PublicKey):
        raise _key_type_error(path)
    return key


@contextmanager
def _translate_key_errors(path: Path, what: str, hint: str) -> Iterator[None]:
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot read the key {path}: {error.strerror}", hint=hint, code=ErrorCode.NOT_FOUND
        ) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"{path} is not a readable {what}: {error}", hint=hint, code=ErrorCode.CORRUPT_FILE
        ) from error


def _key_type_error(path: Path) -> UsageError:
    text = f"{path} is a key of another type than ed25519"
    return UsageError(text, hint=KEY_HINT, code=ErrorCode.UNSUPPORTED)


def sign_record(folder: Path, key: PrivateKey, file: str = MANIFEST_FILE) -> Path:
    """Sign the current record of the folder; the signature is written atomically."""
    return atomic_write(signature_path(folder / file), key.sign((folder / file).read_bytes()))


def is_signed_by(record: Path, key: PublicKey) -> bool:
    """Whether the current record in a file is signed with that key."""
    path = signature_path(record)
    return path.is_file() and is_signature_of(record.read_bytes(), path.read_bytes(), key)


def is_signature_of(text: bytes, signature: bytes, key: PublicKey) -> bool:
    """Whether the signature of the text is by that key."""
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, text)
    except InvalidSignature:
        return False
    return True


def check_signature(
    path: Path, text: bytes, key: PublicKey | None, *, of: str = "manifest"
) -> ProvenanceCheck:
    """Check the signature of the record in `path`, whose bytes are `text`.

    Without a key, the signature is not checked.
    """
    signature = signature_path(path)
    there = signature.is_file()
    found, detail = CheckOutcome.FAILED, f"{signature.name} is missing"
    if key is None:
        found = CheckOutcome.UNCHECKED
        detail = (
            "not checked: no --key"
            if there
            else "the manifest is not signed, and no --key was given"
        )
    elif there and is_signature_of(text, signature.read_bytes(), key):
        found, detail = CheckOutcome.HOLDS, ""
    elif there:
        detail = f"not of this {of} by this key"
    return ProvenanceCheck(of=of, what="signature", found=found, detail=detail)


def _require_cryptography() -> None:
    if find_spec("cryptography") is None:
        raise MissingError(
            "signatures require the package cryptography",
            hint=hint_for_extra("sign"),
            code=ErrorCode.NOT_INSTALLED,
        )


_UNUSED_NOTE = "its limits and accepted branches are ignored (give them as options)"


@contextmanager
def keep_signature(
    folder: Path,
    key: PrivateKey | None,
    tell: Tell,
    *,
    judges_all: bool = False,
    file: str = MANIFEST_FILE,
) -> Iterator[bool]:
    """Sign the manifest that the block leaves, even after an error; warn if a signature is lost.

    Writing a manifest removes the signature of the one before. A signature vouches for all contents
    of a record, so a record that this key did not sign must not be extended.

    Args:
        folder: the output folder.
        key: the signing key; None signs nothing.
        tell: the event listener.
        judges_all: whether the block judges all artifacts in the folder again.
        file: the name of the record.

    Yields:
        Whether limits and accepted branches may be read from the manifest: False if the key did not
        sign it.

    Raises:
        UsageError: the folder has a manifest that this key did not sign.
    """
    check_output_path(folder)
    settle_commit(folder)
    record, signature = folder / file, signature_path(folder / file)
    was_signed, fresh = signature.is_file(), not record.is_file()
    ours = key is None or fresh or is_signed_by(record, key.public_key())
    if not ours and not judges_all:
        raise UsageError(
            f"{record} is not signed by this key, so this run cannot sign it",
            hint=f"judge it again and sign it: modelc validate {folder} --sign-key KEY; or give "
            "another -o",
            option="sign-key",
            code=ErrorCode.NOT_SIGNED,
        )
    if not ours:
        text = f"{record} is not signed by this key: {_UNUSED_NOTE}"
        tell(Noted(text=text, warning=True))
    try:
        yield ours
        ours = ours or file != MANIFEST_FILE or _is_all_judged(folder)
    finally:
        present = record.is_file()
        if key is not None and ours and present and not is_signed_by(record, key.public_key()):
            with open_folder(folder):
                sign_record(folder, key, file)
        if was_signed and not signature.is_file():
            text = f"{signature} was removed: it signed the previous manifest"
            tell(Noted(text=f"{text} (sign again with --sign-key)", warning=True))
        elif not ours:
            text = f"{record} is not signed: not every artifact was judged again"
            tell(Noted(text=text, warning=True))


def _is_all_judged(folder: Path) -> bool:
    """Whether every artifact was judged again, none keeping an earlier verdict."""
    manifest = read_manifest(folder)
    if manifest is None:
        return False
    left = {failure.step for failure in manifest.failures}
    return not any(one.name in left for one in manifest.artifacts)
