"""What an artifact says inside of where it came from, all of it known before it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.manifest import FeedPlan, Manifest
from ...core.records import Artifact
from ...core.signature import Signature
from ...core.verdict import Tolerance
from .digesting import canonical_digest, plain_json

CHECKPOINT_KEY, SIGNATURE_KEY, PARENT_KEY, JUDGING_KEY = (
    "checkpoint",
    "signature_digest",
    "parent",
    "judging",
)
DOMAIN_KEY = "domain"  # the inputs as `--input` reads them, with their bounds
MODELC_KEY, PRECISION_KEY, CAPTURE_KEY, QUANTIZER_KEY = (
    "modelc",
    "precision",
    "capture",
    "quantizer",
)
STATED_KEYS = (
    MODELC_KEY,
    CHECKPOINT_KEY,
    SIGNATURE_KEY,
    PARENT_KEY,
    CAPTURE_KEY,
    PRECISION_KEY,
    JUDGING_KEY,
)


def signature_digest(signature: Signature) -> str:
    """SHA-256 of the inputs as `--input` reads them and the outputs' names, in their order."""
    return canonical_digest(
        {"inputs": [str(spec) for spec in signature.inputs], "outputs": list(signature.outputs)}
    )


def digest_judging(feeds: FeedPlan, tolerance: Tolerance) -> str:
    """SHA-256 of how it is judged: how many feeds from which seed and samples, within what."""
    return digest_terms(
        {"count": feeds.count, "seed": feeds.seed, "samples_digest": feeds.samples_digest},
        plain_json(tolerance),
    )


def digest_terms(feeds: Mapping[str, Any], tolerance: Mapping[str, Any]) -> str:
    """As `judging_digest`, of the two as a manifest has them in JSON."""
    kept = {name: feeds.get(name) for name in ("count", "seed", "samples_digest")}
    return canonical_digest({"feeds": kept, "tolerance": tolerance})


def capture_method(artifact: Artifact, manifest: Manifest) -> str:
    """How it, or what it was made from, was taken from eager; empty where nobody knows."""
    seen: set[str] = set()
    one: Artifact | None = artifact
    while one is not None and one.name not in seen:
        if one.parent == manifest.checkpoint.digest:
            return one.capture or ""
        seen.add(one.name)
        origin = one.parent
        one = next((a for a in manifest.artifacts if a.digest == origin), None)
    return ""
