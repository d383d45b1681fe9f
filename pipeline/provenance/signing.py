"""Ed25519 signatures of the exact bytes of a record, beside it in `FILE.sig` (64 bytes).

The records are the `manifest.json` of a model and the `run.json` of a run.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ...core.distribution import hint_for_extra
from ...core.errors import MissingError, UsageError
from ...core.whole import write_whole
from ..manifest_file import MANIFEST_FILE, signature_path
from .records import CheckOutcome, ProvenanceCheck

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ed25519

    PrivateKey: TypeAlias = ed25519.Ed25519PrivateKey
    PublicKey: TypeAlias = ed25519.Ed25519PublicKey

KEY_HINT = "make one with: openssl genpkey -algorithm ed25519 -out key.pem"
_PUBLIC_KEY_HINT = "make it of the private one: openssl pkey -in key.pem -pubout -out pub.pem"


def read_private_key(path: Path) -> PrivateKey:
    """The private key in a PEM file.

    Raises:
        UsageError: it cannot be read, is none, is encrypted or of another kind.
        MissingError: the package for signatures is not here.
    """
    _require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_read_bytes(path, KEY_HINT), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"{path} is no private key that can be read: {error}", hint=KEY_HINT
        ) from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise UsageError(f"{path} is a key of another kind than ed25519", hint=KEY_HINT)
    return key


def read_public_key(path: Path) -> PublicKey:
    """The public key in a PEM file.

    Raises:
        UsageError: it cannot be read, is none or of another kind.
        MissingError: the package for signatures is not here.
    """
    _require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(_read_bytes(path, _PUBLIC_KEY_HINT))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{path} is no public key: {error}", hint=_PUBLIC_KEY_HINT) from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise UsageError(f"{path} is a key of another kind than ed25519", hint=KEY_HINT)
    return key


def sign_record(folder: Path, key: PrivateKey, file: str = MANIFEST_FILE) -> Path:
    """Sign a record of the folder as it is now; the signature is written whole or not at all."""
    return write_whole(signature_path(folder / file), key.sign((folder / file).read_bytes()))


def is_signed_by(folder: Path, key: PublicKey) -> bool:
    """Whether the manifest as it is now was signed with that key."""
    path = signature_path(folder / MANIFEST_FILE)
    return path.is_file() and is_signature_of(
        (folder / MANIFEST_FILE).read_bytes(), path.read_bytes(), key
    )


def is_signature_of(text: bytes, signature: bytes, key: PublicKey) -> bool:
    """Whether a signature is of that text, by that key."""
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

    Without a key nothing is said of it.
    """
    signature = signature_path(path)
    there = signature.is_file()
    if key is None:
        detail = "there, and not checked: no --key" if there else "none, and none asked for"
        return ProvenanceCheck(of=of, what="signature", found=CheckOutcome.UNCHECKED, detail=detail)
    if not there:
        detail = f"{signature.name} is not there"
    elif is_signature_of(text, signature.read_bytes(), key):
        return ProvenanceCheck(of=of, what="signature", found=CheckOutcome.HOLDS)
    else:
        detail = f"not of this {of} by this key"
    return ProvenanceCheck(of=of, what="signature", found=CheckOutcome.FAILED, detail=detail)


def _read_bytes(path: Path, hint: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"the key {path} cannot be read: {error.strerror}", hint=hint) from error


def _require_cryptography() -> None:
    """That the package is here.

    Raises:
        MissingError: it is not.
    """
    if find_spec("cryptography") is None:
        raise MissingError("signatures need the package cryptography", hint=hint_for_extra("sign"))
