"""Gates: what an artifact must keep to beside being right. They are held against the record."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import Place
from ..core.manifest import Manifest
from ..core.precision import Precision
from ..core.records import Artifact
from ..reports.words import size_text
from .records import Gate, ModelOrder


@dataclass(frozen=True, kw_only=True)
class Breach:
    """One gate that an artifact does not keep to, in words; `told` is where the gate was said."""

    artifact: str
    gate: str  # max-size, max-drop, max-latency-ratio
    message: str
    told: Place | None


def find_breaches(model: ModelOrder, manifest: Manifest) -> tuple[Breach, ...]:
    """What the artifacts that were asked for do not keep to.

    A gate on what was not measured is a breach: nothing shows that it is kept.
    """
    asked = {step.name for step in model.plan if step.asked}
    found: list[Breach] = []
    for artifact in manifest.artifacts:
        if artifact.name in asked:
            found += _gate_breaches(artifact, model.gate_for(artifact.name))
    return tuple(found)


def _gate_breaches(artifact: Artifact, gate: Gate) -> list[Breach]:
    checks = {
        "max-size": _size_breach(artifact, gate),
        "max-drop": _drop_breach(artifact, gate),
        "max-latency-ratio": _latency_breach(artifact, gate),
    }
    return [
        Breach(
            artifact=artifact.name,
            gate=name,
            message=message,
            told=gate.told.get(name.replace("-", "_")),
        )
        for name, message in checks.items()
        if message
    ]


def _size_breach(artifact: Artifact, gate: Gate) -> str:
    if gate.max_size is None or artifact.size <= gate.max_size:
        return ""
    return f"{size_text(artifact.size)}, and max-size is {size_text(gate.max_size)}"


def _drop_breach(artifact: Artifact, gate: Gate) -> str:
    if gate.max_drop is None:
        return ""
    found = artifact.accuracy
    if found is None:
        return "nothing was measured on labelled data, and there is a max-drop"
    if found.drop <= gate.max_drop:
        return ""
    return f"{found.metric} drops by {found.drop:.2%}, and max-drop is {gate.max_drop:.2%}"


def _latency_breach(artifact: Artifact, gate: Gate) -> str:
    """Against the FP32 model that it was made from; one that is FP32 itself is its own measure."""
    most, found = gate.max_latency_ratio, artifact.latency
    if most is None or (found is None and artifact.precision is Precision.FP32):
        return ""
    if found is None:
        return "its latency was not measured, and there is a max-latency-ratio"
    ratio = found.milliseconds / found.parent
    if ratio <= most:
        return ""
    return (
        f"{found.milliseconds:.3g} ms is {ratio:.2f} of its fp32 parent's {found.parent:.3g} ms, "
        f"and max-latency-ratio is {most:g}"
    )
