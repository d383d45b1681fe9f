"""Signatures of a manifest: by one key, of its exact bytes, and never of another one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from modelc.core.errors import ErrorCode, UsageError
from modelc.core.events import Event, Noted, ignore_events
from modelc.core.manifest import Failure
from modelc.pipeline.manifest_file import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    read_manifest,
    write_manifest,
)
from modelc.pipeline.provenance.artifact_checks import CheckOutcome
from modelc.pipeline.provenance.signing import (
    is_signed_by,
    keep_signature,
    read_private_key,
    read_public_key,
    sign_record,
)
from modelc.pipeline.provenance.verify_folder import verify_folder

from ...reasons import has_code

KEY, STRANGER = ed25519.Ed25519PrivateKey.generate(), ed25519.Ed25519PrivateKey.generate()
PEM, NO_CIPHER = serialization.Encoding.PEM, serialization.NoEncryption()


@pytest.fixture
def folder(exports: Callable[[str], Path], tmp_path: Path) -> Path:
    return shutil.copytree(exports("gate"), tmp_path / "out")


@pytest.fixture
def events() -> list[Event]:
    return []


def signature(folder: Path, key: ed25519.Ed25519PrivateKey) -> CheckOutcome:
    found = verify_folder(folder, key=key.public_key())
    (check,) = [one for one in found.checks if one.what == "signature"]
    assert found.passed == (check.found is CheckOutcome.HOLDS)
    return check.found


def rewrite(folder: Path) -> None:
    """What every command does that changes a record."""
    manifest = read_manifest(folder)
    assert manifest is not None
    write_manifest(manifest, folder)


def test_a_signature_is_valid_for_its_own_key_only(folder: Path) -> None:
    sign_record(folder, KEY)
    assert signature(folder, KEY) is CheckOutcome.HOLDS
    assert signature(folder, STRANGER) is CheckOutcome.FAILED


def test_a_missing_signature_fails_with_a_key(folder: Path) -> None:
    assert signature(folder, KEY) is CheckOutcome.FAILED


@pytest.mark.parametrize("size", [0, 63, 65, 1000])
def test_a_signature_of_another_length_fails(folder: Path, size: int) -> None:
    (folder / SIGNATURE_FILE).write_bytes(b"\1" * size)
    assert signature(folder, KEY) is CheckOutcome.FAILED


def test_an_edited_and_resealed_verdict_fails_by_the_signature(folder: Path) -> None:
    sign_record(folder, KEY)
    text = (folder / MANIFEST_FILE).read_bytes()
    kept = (folder / SIGNATURE_FILE).read_bytes()
    rewrite(folder)
    (folder / MANIFEST_FILE).write_bytes(
        (folder / MANIFEST_FILE).read_bytes().replace(b'"cpu"', b'"gpu"', 1)
    )
    (folder / SIGNATURE_FILE).write_bytes(kept)
    assert (folder / MANIFEST_FILE).read_bytes() != text
    assert signature(folder, KEY) is CheckOutcome.FAILED


def test_a_changed_manifest_is_signed_again_with_the_key(folder: Path) -> None:
    sign_record(folder, KEY)
    with keep_signature(folder, KEY, ignore_events):
        rewrite(folder)
    assert is_signed_by(folder / MANIFEST_FILE, KEY.public_key())


def test_a_lost_signature_is_reported_without_the_key(folder: Path, events: list[Event]) -> None:
    sign_record(folder, KEY)
    with keep_signature(folder, None, events.append):
        rewrite(folder)
    assert not (folder / SIGNATURE_FILE).exists()
    (said,) = events
    assert isinstance(said, Noted)
    assert said.warning
    assert SIGNATURE_FILE in said.text


def test_an_unchanged_manifest_keeps_its_signature(folder: Path, events: list[Event]) -> None:
    sign_record(folder, KEY)
    with keep_signature(folder, None, events.append):
        pass
    assert not events
    assert is_signed_by(folder / MANIFEST_FILE, KEY.public_key())


@pytest.mark.parametrize("stranger", [True, False])
def test_a_manifest_that_the_key_did_not_sign_is_not_extended(
    folder: Path, *, stranger: bool
) -> None:
    if stranger:
        sign_record(folder, STRANGER)
    with (
        pytest.raises(UsageError, check=has_code(ErrorCode.NOT_SIGNED, option="sign-key")),
        keep_signature(folder, KEY, ignore_events),
    ):
        raise AssertionError("started")
    assert not is_signed_by(folder / MANIFEST_FILE, KEY.public_key())


def test_a_folder_that_is_judged_again_is_signed(folder: Path) -> None:
    with keep_signature(folder, KEY, ignore_events, judges_all=True):
        rewrite(folder)
    assert is_signed_by(folder / MANIFEST_FILE, KEY.public_key())


def test_a_folder_that_is_judged_again_in_part_is_not_signed(
    folder: Path, events: list[Event]
) -> None:
    manifest = read_manifest(folder)
    assert manifest is not None
    left = Failure(step=manifest.artifacts[0].name, message="no GPU", hint="", exit_code=4)
    with keep_signature(folder, KEY, events.append, judges_all=True):
        write_manifest(replace(manifest, failures=(left,)), folder)
    assert not (folder / SIGNATURE_FILE).exists()
    assert any(isinstance(one, Noted) and "not signed" in one.text for one in events)


def test_a_folder_is_not_signed_after_an_error(folder: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="broke"),
        keep_signature(folder, KEY, ignore_events, judges_all=True),
    ):
        raise RuntimeError("broke")
    assert not (folder / SIGNATURE_FILE).exists()


def test_keys_are_read_from_pem(tmp_path: Path) -> None:
    form = serialization.PrivateFormat.PKCS8
    (tmp_path / "key.pem").write_bytes(KEY.private_bytes(PEM, form, NO_CIPHER))
    public = KEY.public_key()
    named = serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "pub.pem").write_bytes(public.public_bytes(PEM, named))
    assert read_private_key(tmp_path / "key.pem").public_key() == public
    assert read_public_key(tmp_path / "pub.pem") == public


def test_a_file_that_is_no_ed25519_key_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    curve = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(curve.private_bytes(PEM, serialization.PrivateFormat.PKCS8, NO_CIPHER))
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED, naming="ed25519")):
        read_private_key(path)
    secret = serialization.BestAvailableEncryption(b"word")
    path.write_bytes(KEY.private_bytes(PEM, serialization.PrivateFormat.PKCS8, secret))
    with pytest.raises(UsageError, check=has_code(ErrorCode.CORRUPT_FILE, naming="private key")):
        read_private_key(path)
    path.write_text("nothing of the kind")
    with pytest.raises(UsageError, check=has_code(ErrorCode.CORRUPT_FILE, naming="public key")):
        read_public_key(path)
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_FOUND, naming="gone.pem")):
        read_private_key(tmp_path / "gone.pem")
