"""The results of a project on disk, compared with those of another run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.errors import ErrorCode, UsageError, first_line
from ..core.manifest import Manifest
from ..core.records import artifact_names
from ..pipeline.manifest_file import MANIFEST_FILE as MANIFEST
from ..pipeline.parts.joined_manifest import load_results, read_results_of
from ..pipeline.parts.parts_file import has_parts
from ..reports.comparison import Change, ComparedRun, Comparison, Measure, compare_manifests
from ..reports.result_rows import Outcome
from ..reports.text_format import count_text
from .model_orders import PlannedProject
from .project_records import NOT_STARTED, MeasureChange, ModelOrder, ModelOutcome, Regression
from .run_record import RUN_FILE, RunRecord, make_record, read_record


@dataclass(frozen=True, kw_only=True)
class ProjectResults:
    """A folder of models: the `record` of its last run, and the `manifests` by model."""

    folder: Path
    record: RunRecord
    manifests: Mapping[str, Manifest]


def is_project_folder(folder: Path) -> bool:
    """Whether the folder holds results of several models, and no manifest of its own."""
    if not folder.is_dir() or (folder / MANIFEST).is_file() or has_parts(folder):
        return False
    return (folder / RUN_FILE).is_file() or bool(_model_folders(folder))


def read_results(folder: Path) -> ProjectResults:
    """Read the results of `modelc run`; without its record, derive them from the manifests.

    Raises:
        UsageError: a record cannot be read.
    """
    if not (folder / RUN_FILE).is_file():
        found = {place.name: load_results(place) for place in _model_folders(folder)}
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
            f"{folder / RUN_FILE} is not a record of modelc run: {first_line(error)}",
            hint="pass the `out` folder of modelc run",
            code=ErrorCode.CORRUPT_FILE,
        ) from error
    manifests = {
        model.name: load_results(folder / model.name)
        for model in record.models
        if _is_model_folder(folder / model.name)
    }
    return ProjectResults(folder=folder, record=record, manifests=manifests)


def _model_folders(folder: Path) -> list[Path]:
    return sorted(place for place in folder.iterdir() if _is_model_folder(place))


def _is_model_folder(place: Path) -> bool:
    """Whether this is a model's folder and not a link; reports are not written through links."""
    return not place.is_symlink() and ((place / MANIFEST).is_file() or has_parts(place))


def compare_projects(
    before: ProjectResults, after: ProjectResults, *, latency: bool = False
) -> Comparison:
    """Compare two projects model by model; artifacts are named `model/artifact`.

    Raises:
        UsageError: one of them has no model with a manifest.
    """
    for one in (before, after):
        if not one.manifests:
            raise UsageError(
                f"{one.folder} has no model with a {MANIFEST}",
                hint="run it again",
                code=ErrorCode.NO_MANIFEST,
            )
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
    """Return both manifests; replace a missing one by the other's without artifacts."""
    known = before or after
    if known is None:
        raise ValueError("no run has the model")
    bare = replace(known, artifacts=(), verdicts=(), failures=(), pending=(), localisations=())
    return before or bare, after or bare


_BASE_HINT = (
    "pass the `out` folder of a run on the base branch, or its run.json; without one, remove "
    "--fail-on-regression"
)
_VERDICT_MEASURE = "verdict"


@dataclass(frozen=True, kw_only=True)
class BaseRun:
    """An earlier run: the manifest of each of its models."""

    path: Path
    manifests: Mapping[str, Manifest]


@dataclass(frozen=True, kw_only=True)
class RunScope:
    """The artifacts that this run builds, and those that the project declares, by model.

    `models` are all models of the project, including those that do not run.
    """

    made: Mapping[str, frozenset[str]]
    declared: Mapping[str, frozenset[str]]
    models: tuple[str, ...]

    @classmethod
    def of(cls, planned: PlannedProject, run: Sequence[ModelOrder]) -> RunScope:
        """Create the scope from the planned project and the models that run."""
        models = tuple(model.name for model in planned.settings.models)
        return cls(made=_step_names(run), declared=_step_names(planned.models), models=models)


def read_base(path: Path) -> BaseRun:
    """Read an earlier run, before a new one changes any of its records.

    Raises:
        UsageError: there is no run, or a record of it cannot be read.
    """
    folder = path.parent if path.name == RUN_FILE else path
    if not folder.is_dir() or (path != folder and not path.is_file()):
        raise UsageError(
            f"--fail-on-regression {path} does not exist",
            hint=_BASE_HINT,
            option="fail-on-regression",
            code=ErrorCode.NOT_FOUND,
        )
    found: dict[str, Manifest] = {}
    for place in sorted(folder.iterdir()):
        manifest = read_results_of(place)
        if manifest is not None:
            found[place.name] = manifest
    if not found:
        raise UsageError(
            f"--fail-on-regression {path} contains no model with a manifest",
            hint=_BASE_HINT,
            option="fail-on-regression",
            code=ErrorCode.NO_MANIFEST,
        )
    return BaseRun(path=path, manifests=found)


def find_regression(
    base: BaseRun,
    ended: Sequence[ModelOutcome],
    parts: RunScope,
    *,
    prepare_only: bool = False,
    latency: bool = False,
) -> Regression:
    """Compare this run with an earlier one, by the rules of `modelc report`.

    An artifact that the project no longer declares is only reported; a declared one that no longer
    passes is worse. With `prepare_only`, steps that are now pending on another host are only
    reported; with `latency`, timings count.
    """
    changed: list[MeasureChange] = []
    compared = 0
    notes: dict[str, None] = {}
    left_out = []
    for one in ended:
        before = base.manifests.get(one.name)
        if before is None:
            changed.append(_model_change(one.name, before="none", after="new"))
        elif not one.started:
            left_out.append(f"{one.name}: {NOT_STARTED}")
        else:
            measures = tuple(_compare_model(before, one, parts, latency=latency))
            compared += len(measures)
            changed += _list_changes(one.name, measures, prepare_only=prepare_only)
            notes |= dict.fromkeys(_comparison_notes(before, one))
    for name in base.manifests:
        if name not in parts.models:
            changed.append(_model_change(name, before="declared", after="no longer declared"))
        elif name not in parts.made:
            left_out.append(f"{name}: not part of this run")
    return Regression(
        base=str(base.path),
        changed=tuple(changed),
        compared=compared,
        notes=tuple(notes),
        left_out=tuple(left_out),
    )


def _step_names(models: Sequence[ModelOrder]) -> dict[str, frozenset[str]]:
    return {model.name: frozenset(model.step_names) for model in models}


def _model_change(name: str, *, before: str, after: str) -> MeasureChange:
    return MeasureChange(
        model=name, artifact="", measure="model", change=Change.INFO, before=before, after=after
    )


def _comparison_notes(before: Manifest, one: ModelOutcome) -> tuple[str, ...]:
    return () if one.manifest is None else compare_manifests(before, one.manifest).notes


def _compare_model(
    before: Manifest, one: ModelOutcome, parts: RunScope, *, latency: bool
) -> Iterator[Measure]:
    """Yield the comparable measures of a model: of artifacts requested, or no longer declared."""
    declared, made = parts.declared[one.name], parts.made[one.name]
    after = one.manifest or replace(before, artifacts=(), verdicts=(), failures=(), pending=())
    why = "" if one.error is None else f"the model stopped: {one.error.text}"
    for measure in compare_manifests(
        before, _restrict_manifest(after, made), latency=latency
    ).measures:
        if measure.artifact in made:
            yield replace(measure, why=measure.why or why)
        elif measure.artifact not in declared:
            yield replace(measure, change=Change.INFO, after="no longer declared")


def _restrict_manifest(manifest: Manifest, made: Collection[str]) -> Manifest:
    """Return the manifest without artifacts of other runs."""
    names = artifact_names(made)
    return replace(
        manifest,
        artifacts=tuple(one for one in manifest.artifacts if one.name in names),
        failures=tuple(one for one in manifest.failures if one.step in names),
        pending=tuple(one for one in manifest.pending if one.step in names),
    )


def _list_changes(
    model: str, measures: Sequence[Measure], *, prepare_only: bool
) -> Iterator[MeasureChange]:
    """Yield the measures that changed beyond their margin."""
    for one in measures:
        waits = one.measure == _VERDICT_MEASURE and one.after == str(Outcome.PENDING)
        change = Change.INFO if waits and prepare_only else one.change
        if change not in (Change.SAME, Change.NOISE):
            yield MeasureChange(
                model=model,
                artifact=one.artifact,
                measure=one.measure,
                change=change,
                before=one.before,
                after=one.after,
                why=one.why,
            )
