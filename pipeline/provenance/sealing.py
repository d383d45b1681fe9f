"""Seals: digests inside a manifest, over each artifact with its verdict and over the whole text.

They tell damage and hasty edits, of a reader who knows nothing else. Whoever edits on purpose can
seal anew: against that there is the signature.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ...core.manifest import Manifest
from ...core.records import Artifact
from ...core.verdict import Verdict
from .digesting import canonical_digest, plain_json
from .stating import signature_digest

_EMPTY_SEAL = b'"seal": ""'
_SEAL_PATTERN = re.compile(rb'"seal": "([0-9a-f]{64})"(\n}\n)\Z')
_LOCATION_KEYS = ("artifact", "worst")  # of a verdict: where things lie, which moves change


def bind_manifest(manifest: Manifest) -> Manifest:
    """The manifest with every judged artifact bound to its verdict, where it was not before."""
    artifacts = (_bind_artifact(artifact, manifest) for artifact in manifest.artifacts)
    return replace(manifest, artifacts=tuple(artifacts))


def _bind_artifact(artifact: Artifact, manifest: Manifest) -> Artifact:
    verdict = manifest.verdict_of(artifact.name)
    if artifact.seal or verdict is None:
        return artifact
    return replace(artifact, seal=_seal_of(artifact, verdict, manifest))


def is_bound(artifact: Artifact, manifest: Manifest) -> bool:
    """Whether its verdict is the one that it was bound to; what was never bound is as it is."""
    verdict = manifest.verdict_of(artifact.name)
    if not artifact.seal or verdict is None:
        return not artifact.seal
    return artifact.seal == _seal_of(artifact, verdict, manifest)


def _seal_of(artifact: Artifact, verdict: Verdict, manifest: Manifest) -> str:
    return bond_digest(
        (file.sha256 for file in artifact.files if file.role != "debug"),
        verdict=plain_json(verdict),
        checkpoint=manifest.checkpoint.digest,
        signature=signature_digest(manifest.signature),
    )


def unbind_artifact(manifest: Manifest, name: str) -> Manifest:
    """The manifest with that artifact to be bound anew: it was judged again."""
    artifacts = (replace(a, seal="") if a.name == name else a for a in manifest.artifacts)
    return replace(manifest, artifacts=tuple(artifacts))


def bond_digest(
    files: Iterable[str], *, verdict: Mapping[str, Any], checkpoint: str, signature: str
) -> str:
    """SHA-256 over digests: of an artifact's files, its verdict and what it was held to."""
    return canonical_digest(
        {
            "files": sorted(files),
            "verdict": verdict_digest(verdict),
            "checkpoint": checkpoint,
            "signature": signature,
        }
    )


def verdict_digest(verdict: Mapping[str, Any] | Verdict) -> str:
    """SHA-256 over a verdict, as a record or as JSON, but for the places where its files lie."""
    told = plain_json(verdict) if isinstance(verdict, Verdict) else verdict
    return canonical_digest(
        {key: value for key, value in told.items() if key not in _LOCATION_KEYS}
    )


def seal_document(text: bytes) -> bytes:
    """A JSON document that ends with an empty `seal`, with the SHA-256 of itself in that place."""
    if not text.endswith(_EMPTY_SEAL + b"\n}\n"):
        raise RuntimeError("what is to be sealed has no place for it")
    seal = hashlib.sha256(text).hexdigest().encode()
    return text[: -len(_EMPTY_SEAL) - 3] + b'"seal": "' + seal + b'"\n}\n'


def seal_holds(text: bytes) -> bool | None:
    """Whether a document is as it was when it was sealed; None where it never was."""
    found = _SEAL_PATTERN.search(text)
    if found is None:
        return None
    blank = text[: found.start()] + _EMPTY_SEAL + found.group(2)
    return hashlib.sha256(blank).hexdigest().encode() == found.group(1)
