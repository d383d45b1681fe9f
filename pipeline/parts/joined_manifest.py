"""A model of several parts as one manifest, for what shows or compares results.

An artifact of a part is named `PART/ARTIFACT` in it, and all parts together are `whole/ARTIFACT`.
It is never written: each part has its own manifest, and `parts.json` has the verdicts on the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...core.domain import Domain
from ...core.manifest import Failure, Manifest
from ...core.model_meta import ModelMeta
from ...core.part_records import WHOLE, PartsManifest
from ...core.records import REJECTED_FOLDER, Artifact, FileRecord, step_of
from ...core.verdict import Verdict
from ..manifest_file import read_manifest
from ..recorded_run import load_manifest
from .parts_file import BuiltPart, has_parts, read_parts


def load_results(folder: Path) -> Manifest:
    """Return the manifest of a folder, or of its parts as one.

    Raises:
        UsageError: it has neither, or one cannot be read.
    """
    return read_joined(folder) if has_parts(folder) else load_manifest(folder)


def read_results_of(folder: Path) -> Manifest | None:
    """As `load_results`; None if it has neither.

    Raises:
        UsageError: one cannot be read.
    """
    return read_joined(folder) if has_parts(folder) else read_manifest(folder)


def read_joined(folder: Path) -> Manifest:
    """Return the parts in a folder as one manifest.

    Raises:
        UsageError: `parts.json` cannot be read, or the folder of a part is a link.
    """
    whole = read_parts(folder)
    built = [BuiltPart.read(folder, one.name, one.method) for one in whole.parts]
    return join_parts(whole, {one.name: one.manifest for one in built if one.manifest is not None})


def rename_step(part: str, name: str) -> str:
    """Return the name of a part's artifact or step among those of all parts."""
    step = f"{part}/{step_of(name)}"
    return step if step_of(name) == name else f"{REJECTED_FOLDER}/{step}"


def join_parts(whole: PartsManifest, manifests: Mapping[str, Manifest]) -> Manifest:
    """Return the manifests of parts, and the verdicts on the whole, as one manifest."""
    parts = [_rename_all(name, one) for name, one in manifests.items()]
    order = {name: text for one in parts[:1] for name, text in one.order.items()}
    notes = (f"{name}: {note}" for name, one in manifests.items() for note in one.notes)
    methods = " ".join(f"{one.name}={one.method}" for one in whole.parts)
    return Manifest(
        modelc=whole.modelc,
        created=whole.created,
        order={**order, "inputs": " ".join(map(str, whole.signature.inputs)),
               "part": methods, "compose": whole.compose},
        checkpoint=whole.checkpoint,
        signature=whole.signature,
        feeds=whole.feeds,
        environment=whole.environment,
        artifacts=(*(a for one in parts for a in one.artifacts), *_join_artifacts(whole, parts)),
        verdicts=(
            *(verdict for one in parts for verdict in one.verdicts),
            *(replace(one, artifact=f"{WHOLE}/{one.artifact}") for one in whole.verdicts),
        ),
        failures=(
            *(failure for one in parts for failure in one.failures),
            *(replace(one, step=f"{WHOLE}/{one.step}") for one in whole.failures),
        ),
        pending=tuple(pending for one in parts for pending in one.pending),
        notes=(*whole.notes, *notes),
        localisations=tuple(found for one in parts for found in one.localisations),
        steps=(*(step for one in parts for step in one.steps), *_list_steps(whole)),
        needs=whole.needs,
        external=tuple(verdict for one in parts for verdict in one.external),
        meta=parts[0].meta if parts else ModelMeta(),
    )  # fmt: skip


def _list_steps(whole: PartsManifest) -> list[str]:
    names = [*(one.artifact for one in whole.verdicts), *(one.step for one in whole.failures)]
    return [f"{WHOLE}/{name}" for name in names]


def _join_artifacts(whole: PartsManifest, parts: list[Manifest]) -> list[Artifact]:
    """Return all parts together as one artifact for each verdict on the whole."""
    found = []
    for verdict in whole.verdicts:
        mine = [a for one in parts for a in one.artifacts if _names(a, verdict)]
        if not mine:
            continue
        first = mine[0]
        found.append(
            Artifact(
                name=f"{WHOLE}/{verdict.artifact}",
                target=first.target,
                precision=first.precision,
                files=tuple(file for one in mine for file in one.files),
                parent=whole.checkpoint.digest,
                made_from=", ".join(one.name for one in mine),
                seconds=verdict.seconds,
                tolerance=verdict.tolerance,
                domain=Domain(inputs=whole.signature.inputs) if verdict.passed else None,
                key=whole.keys.get(verdict.artifact, ""),
            )
        )
    return found


def _names(artifact: Artifact, verdict: Verdict) -> bool:
    """Whether a renamed artifact of a part is one of those that a verdict on the whole is on."""
    return not artifact.rejected and artifact.name.partition("/")[2] == verdict.artifact


def _rename_all(part: str, manifest: Manifest) -> Manifest:
    """Return the manifest of a part with its names and files as those of all parts."""

    def name(text: str) -> str:
        return rename_step(part, text)

    def files(records: tuple[FileRecord, ...]) -> tuple[FileRecord, ...]:
        return tuple(replace(one, name=f"{part}/{one.name}") for one in records)

    def verdict(one: Verdict) -> Verdict:
        worst = one.worst and replace(one.worst, file=f"{part}/{one.worst.file}")
        return one.file_under(name(one.artifact), worst)

    def failure(one: Failure) -> Failure:
        return replace(one, step=name(one.step), orphan_of=one.orphan_of and name(one.orphan_of))

    known = {one.step for one in manifest.artifacts}
    return replace(
        manifest,
        artifacts=tuple(
            replace(one, name=name(one.name), files=files(one.files),
                    made_from=name(one.made_from) if one.made_from in known else one.made_from)
            for one in manifest.artifacts
        ),
        verdicts=tuple(map(verdict, manifest.verdicts)),
        failures=tuple(map(failure, manifest.failures)),
        pending=tuple(
            replace(one, step=name(one.step), files=files(one.files),
                    references=files(one.references), command="modelc finish")
            for one in manifest.pending
        ),
        localisations=tuple(
            replace(one, artifact=name(one.artifact),
                    reproducer=one.reproducer and f"{part}/{one.reproducer}")
            for one in manifest.localisations
        ),
        external=tuple(replace(one, verdict=verdict(one.verdict)) for one in manifest.external),
        steps=tuple(map(name, manifest.steps)),
    )  # fmt: skip
