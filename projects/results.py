"""The results of a project on disk: the record of its run and the manifest of each model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.errors import UsageError, first_line
from ..core.manifest import Manifest
from ..pipeline.manifest_file import MANIFEST_FILE as MANIFEST
from ..pipeline.recorded_run import load_manifest
from ..reports.comparison import ComparedRun, Comparison, compare_manifests
from ..reports.words import count_text
from .outcome import ModelOutcome
from .run_record import RUN_FILE, RunRecord, make_record, read_record


@dataclass(frozen=True, kw_only=True)
class ProjectResults:
    """A folder of models: `record` is of its last run, `manifests` are by the model's name."""

    folder: Path
    record: RunRecord
    manifests: Mapping[str, Manifest]


def is_project_folder(folder: Path) -> bool:
    """Whether it holds the results of several models, and no manifest of its own."""
    if not folder.is_dir() or (folder / MANIFEST).is_file():
        return False
    return (folder / RUN_FILE).is_file() or any(folder.glob(f"*/{MANIFEST}"))


def read_results(folder: Path) -> ProjectResults:
    """What `modelc run` left in a folder; without its record, what the manifests say.

    Raises:
        UsageError: a record cannot be read.
    """
    if not (folder / RUN_FILE).is_file():
        found = {place.parent.name: load_manifest(place.parent) for place in _model_folders(folder)}
        ended = [
            ModelOutcome(name=name, folder=str(folder / name), manifest=one)
            for name, one in found.items()
        ]
        record = make_record(ended, seconds=0.0)
        return ProjectResults(folder=folder, record=record, manifests=found)
    try:
        record = read_record((folder / RUN_FILE).read_bytes())
    except ValueError as error:
        raise UsageError(
            f"{folder / RUN_FILE} is no record of modelc run: {first_line(error)}",
            hint="give the `out` folder of modelc run",
        ) from error
    manifests = {
        model.name: load_manifest(folder / model.name)
        for model in record.models
        if _is_model_folder(folder / model.name) and (folder / model.name / MANIFEST).is_file()
    }
    return ProjectResults(folder=folder, record=record, manifests=manifests)


def _model_folders(folder: Path) -> list[Path]:
    found = folder.glob(f"*/{MANIFEST}")
    return sorted(place for place in found if _is_model_folder(place.parent))


def _is_model_folder(place: Path) -> bool:
    """Whether a model's folder lies here: reports are not written through links."""
    return not place.is_symlink()


def compare_projects(
    before: ProjectResults, after: ProjectResults, *, latency: bool = False
) -> Comparison:
    """Two projects model by model; artifacts are named `model/artifact`.

    Raises:
        UsageError: one of them has no model with a manifest.
    """
    for one in (before, after):
        if not one.manifests:
            raise UsageError(f"{one.folder} has no model with a {MANIFEST}", hint="run it again")
    names = (str(before.folder), str(after.folder))
    measures, notes = [], []
    for model in dict.fromkeys((*before.manifests, *after.manifests)):
        pair = _pair_manifests(before.manifests.get(model), after.manifests.get(model))
        found = compare_manifests(*pair, names, latency=latency)
        measures += [replace(m, artifact=f"{model}/{m.artifact}") for m in found.measures]
        notes += [f"{model}: {note}" for note in found.notes]
    return Comparison(
        before=_describe_side(before),
        after=_describe_side(after),
        measures=tuple(measures),
        notes=tuple(dict.fromkeys(notes)),
    )


def _describe_side(results: ProjectResults) -> ComparedRun:
    return ComparedRun(
        name=str(results.folder),
        created=max(one.created for one in results.manifests.values()),
        modelc=results.record.modelc,
        checkpoint=count_text(len(results.manifests), "model"),
        digest="",
    )


def _pair_manifests(before: Manifest | None, after: Manifest | None) -> tuple[Manifest, Manifest]:
    """Both manifests; for a model that one run lacks, the other's without any artifact."""
    known = before or after
    if known is None:
        raise ValueError("a model of neither run")
    bare = replace(known, artifacts=(), verdicts=(), failures=(), pending=(), localisations=())
    return before or bare, after or bare
