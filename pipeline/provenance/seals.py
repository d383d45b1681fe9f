"""Digests of records: seals in a manifest, and the keys of an artifact's metadata."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ...core.manifest import FeedPlan, Manifest
from ...core.records import Artifact
from ...core.signature import Signature
from ...core.verdict import Tolerance, Verdict

_EMPTY_SEAL = b'"seal": ""'
_SEAL_PATTERN = re.compile(rb'"seal": "([0-9a-f]{64})"(\n}\n)\Z')
_LOCATION_KEYS = ("artifact", "worst")  # fields of a verdict that change when files move


def bind_manifest(manifest: Manifest) -> Manifest:
    """Seal every judged artifact that has no seal yet."""
    artifacts = list(manifest.artifacts)
    for place, artifact in enumerate(artifacts):
        verdict = manifest.verdict_of(artifact.name)
        if not artifact.seal and verdict is not None:
            artifacts[place] = replace(artifact, seal=_seal_of(artifact, verdict, manifest))
    return replace(manifest, artifacts=tuple(artifacts))


def is_bound(artifact: Artifact, manifest: Manifest) -> bool:
    """Whether the artifact's seal matches its verdict; True for an unsealed artifact."""
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
    """Remove the seal of an artifact that was judged again."""
    artifacts = (replace(a, seal="") if a.name == name else a for a in manifest.artifacts)
    return replace(manifest, artifacts=tuple(artifacts))


def bond_digest(
    files: Iterable[str], *, verdict: Mapping[str, Any], checkpoint: str, signature: str
) -> str:
    """Return a SHA-256 over the digests of files, verdict, checkpoint and signature."""
    return canonical_digest(
        {
            "files": sorted(files),
            "verdict": verdict_digest(verdict),
            "checkpoint": checkpoint,
            "signature": signature,
        }
    )


def verdict_digest(verdict: Mapping[str, Any] | Verdict) -> str:
    """Return the SHA-256 of a verdict, as a record or as JSON, without its file locations."""
    record = plain_json(verdict) if isinstance(verdict, Verdict) else verdict
    return canonical_digest(
        {key: value for key, value in record.items() if key not in _LOCATION_KEYS}
    )


def seal_document(text: bytes) -> bytes:
    """Set the empty `seal` at the end of a JSON document to the document's own SHA-256."""
    if not text.endswith(_EMPTY_SEAL + b"\n}\n"):
        raise RuntimeError("the document does not end with an empty seal")
    seal = hashlib.sha256(text).hexdigest().encode()
    return text[: -len(_EMPTY_SEAL) - 3] + b'"seal": "' + seal + b'"\n}\n'


def seal_holds(text: bytes) -> bool | None:
    """Whether a document is unchanged since it was sealed; None if it has no seal."""
    found = _SEAL_PATTERN.search(text)
    if found is None:
        return None
    blank = text[: found.start()] + _EMPTY_SEAL + found.group(2)
    return hashlib.sha256(blank).hexdigest().encode() == found.group(1)


CHECKPOINT_KEY, SIGNATURE_KEY = "checkpoint", "signature_digest"
PARENT_KEY, JUDGING_KEY, MODELC_KEY = "parent", "judging", "modelc"
PRECISION_KEY, CAPTURE_KEY, QUANTIZER_KEY = "precision", "capture", "quantizer"
SAMPLES_KEY = "samples"  # the digest of the samples that a quantizer used
DOMAIN_KEY = "domain"  # the inputs in the syntax of `--input`, with their bounds
STATED_KEYS = (
    *(MODELC_KEY, CHECKPOINT_KEY, SIGNATURE_KEY, PARENT_KEY, CAPTURE_KEY),
    *(PRECISION_KEY, JUDGING_KEY),
)


def signature_digest(signature: Signature) -> str:
    """Return the SHA-256 of the inputs, in the syntax of `--input`, and the output names."""
    return canonical_digest(
        {"inputs": [str(spec) for spec in signature.inputs], "outputs": list(signature.outputs)}
    )


def digest_judging(feeds: FeedPlan, tolerance: Tolerance) -> str:
    """Return the SHA-256 of the terms of judging: count, seed, samples and tolerance."""
    return digest_terms(
        {"count": feeds.count, "seed": feeds.seed, "samples_digest": feeds.samples_digest},
        plain_json(tolerance),
    )


def digest_terms(feeds: Mapping[str, Any], tolerance: Mapping[str, Any]) -> str:
    """Return the same digest as `digest_judging`, from the JSON of a manifest."""
    kept = {name: feeds.get(name) for name in ("count", "seed", "samples_digest")}
    return canonical_digest({"feeds": kept, "tolerance": tolerance})


def capture_method(artifact: Artifact, manifest: Manifest) -> str:
    """Return how the artifact or its ancestor was captured from eager; empty if unknown."""
    seen: set[str] = set()
    one: Artifact | None = artifact
    while one is not None and one.name not in seen:
        if one.parent == manifest.checkpoint.digest:
            return one.capture or ""
        seen.add(one.name)
        origin = one.parent
        one = next((a for a in manifest.artifacts if a.digest == origin), None)
    return ""


def plain_json(record: object) -> Any:
    """Convert a record to the JSON value that a manifest holds."""
    import msgspec

    return json.loads(msgspec.json.encode(record))


def canonical_digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value with sorted keys and without empty values.

    Empty values are omitted because later versions of modelc add fields, which are empty in older
    records. 1 and 1.0 have the same digest.
    """
    text = json.dumps(
        _without_empty(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _without_empty(value: Any) -> Any:
    """Drop keys whose values are null, false, zero or empty.

    A warm run digests thousands of values per verdict, so this avoids slow abstract classes.
    """
    if isinstance(value, dict):
        return {key: kept for key, item in value.items() if (kept := _without_empty(item))}
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
