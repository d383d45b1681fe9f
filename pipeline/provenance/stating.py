"""What an artifact says inside of where it came from, all of it known before it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.manifest import FeedPlan, Manifest
from ...core.records import Artifact
from ...core.signature import Signature
from ...core.verdict import Tolerance
from .digesting import digest_of, plain

CHECKPOINT, SIGNATURE, PARENT, JUDGING = "checkpoint", "signature_digest", "parent", "judging"
DOMAIN = "domain"  # the inputs as `--input` reads them, with their bounds
MODELC, PRECISION, CAPTURE, QUANTIZER = "modelc", "precision", "capture", "quantizer"
STATED = (MODELC, CHECKPOINT, SIGNATURE, PARENT, CAPTURE, PRECISION, JUDGING)


def signature_digest(signature: Signature) -> str:
    """SHA-256 of the inputs as `--input` reads them and the outputs' names, in their order."""
    return digest_of(
        {"inputs": [str(spec) for spec in signature.inputs], "outputs": list(signature.outputs)}
    )


def judging_digest(feeds: FeedPlan, tolerance: Tolerance) -> str:
    """SHA-256 of how it is judged: how many feeds from which seed and samples, within what."""
    return terms_digest(
        {"count": feeds.count, "seed": feeds.seed, "samples_digest": feeds.samples_digest},
        plain(tolerance),
    )


def terms_digest(feeds: Mapping[str, Any], tolerance: Mapping[str, Any]) -> str:
    """As `judging_digest`, of the two as a manifest has them in JSON."""
    kept = {name: feeds.get(name) for name in ("count", "seed", "samples_digest")}
    return digest_of({"feeds": kept, "tolerance": tolerance})


def captured_by(artifact: Artifact, manifest: Manifest) -> str:
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
