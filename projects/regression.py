"""What got worse against another run of the project, as that of the branch to merge into."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.errors import UsageError
from ..core.manifest import Manifest
from ..core.records import names_of
from ..pipeline.manifest_file import MANIFEST_FILE as MANIFEST
from ..pipeline.manifest_file import read_manifest
from ..reports.comparison import compare
from ..reports.differences import Change, Measure
from ..reports.rows import Outcome
from .orders import Planned
from .outcome import Ended
from .records import ModelOrder
from .regression_records import Changed, Regression
from .run_record import FILE

_HINT = (
    "give the `out` folder of a run on the base branch, or its run.json; where there is none yet, "
    "leave --fail-on-regression out"
)
_VERDICT = "verdict"


@dataclass(frozen=True, kw_only=True)
class Base:
    """An earlier run: the record of each of its models."""

    path: Path
    manifests: Mapping[str, Manifest]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Which artifacts this run is to make, and which the project declares; by model.

    `models` are all that the project has, those among them that are not run.
    """

    made: Mapping[str, frozenset[str]]
    declared: Mapping[str, frozenset[str]]
    models: tuple[str, ...]

    @classmethod
    def of(cls, planned: Planned, run: Sequence[ModelOrder]) -> Parts:
        """From what was planned of the project and the part of it that is run."""
        models = tuple(model.name for model in planned.settings.models)
        return cls(made=_names(run), declared=_names(planned.models), models=models)


def base_at(path: Path) -> Base:
    """An earlier run, to be read before a new one changes any of its records.

    Raises:
        UsageError: there is no run, or a record of it cannot be read.
    """
    folder = path.parent if path.name == FILE else path
    if not folder.is_dir() or (path != folder and not path.is_file()):
        raise UsageError(
            f"--fail-on-regression {path}: there is no run", hint=_HINT, option="fail-on-regression"
        )
    found: dict[str, Manifest] = {}
    for place in sorted(folder.iterdir()):
        manifest = read_manifest(place) if (place / MANIFEST).is_file() else None
        if manifest is not None:
            found[place.name] = manifest
    if not found:
        raise UsageError(
            f"--fail-on-regression {path}: no model has a record there",
            hint=_HINT,
            option="fail-on-regression",
        )
    return Base(path=path, manifests=found)


def regression_of(
    base: Base,
    ended: Sequence[Ended],
    parts: Parts,
    *,
    prepare_only: bool = False,
    latency: bool = False,
) -> Regression:
    """This run beside an earlier one, by the rules of `modelc report`.

    What the project no longer declares is told; what it declares and is no longer proven is worse.
    With `prepare_only` what only waits for another host now is told, with `latency` timings count.
    """
    changed: list[Changed] = []
    compared = 0
    notes: dict[str, None] = {}
    left_out = []
    for one in ended:
        before = base.manifests.get(one.name)
        if before is None:
            changed.append(_model(one.name, before="none", after="new"))
        elif not one.started:
            left_out.append(f"{one.name}: the run did not come to it")
        else:
            measures = tuple(_measures(before, one, parts, latency=latency))
            compared += len(measures)
            changed += _listed(one.name, measures, prepare_only=prepare_only)
            notes |= dict.fromkeys(_notes(before, one))
    for name in base.manifests:
        if name not in parts.models:
            changed.append(_model(name, before="there", after="no longer declared"))
        elif name not in parts.made:
            left_out.append(f"{name}: not asked for in this run")
    return Regression(
        base=str(base.path),
        changed=tuple(changed),
        compared=compared,
        notes=tuple(notes),
        left_out=tuple(left_out),
    )


def _names(models: Sequence[ModelOrder]) -> dict[str, frozenset[str]]:
    return {model.name: frozenset(step.name for step in model.plan) for model in models}


def _model(name: str, *, before: str, after: str) -> Changed:
    return Changed(
        model=name, artifact="", measure="model", change=Change.TOLD, before=before, after=after
    )


def _notes(before: Manifest, one: Ended) -> tuple[str, ...]:
    return () if one.manifest is None else compare(before, one.manifest).notes


def _measures(before: Manifest, one: Ended, parts: Parts, *, latency: bool) -> Iterator[Measure]:
    """What can be compared of one model: of artifacts that are asked for, or declared no more."""
    declared, made = parts.declared[one.name], parts.made[one.name]
    after = one.manifest or replace(before, artifacts=(), verdicts=(), failures=(), pending=())
    why = "" if one.error is None else f"the model stopped: {one.error.text}"
    for measure in compare(before, _of_run(after, made), latency=latency).measures:
        if measure.artifact in made:
            yield replace(measure, why=measure.why or why)
        elif measure.artifact not in declared:
            yield replace(measure, change=Change.TOLD, after="no longer declared")


def _of_run(manifest: Manifest, made: Collection[str]) -> Manifest:
    """The record without what the folder holds of other runs."""
    names = names_of(made)
    return replace(
        manifest,
        artifacts=tuple(one for one in manifest.artifacts if one.name in names),
        failures=tuple(one for one in manifest.failures if one.step in names),
        pending=tuple(one for one in manifest.pending if one.step in names),
    )


def _listed(model: str, measures: Sequence[Measure], *, prepare_only: bool) -> Iterator[Changed]:
    """What changed beyond its margin."""
    for one in measures:
        waits = one.measure == _VERDICT and one.after == str(Outcome.PENDING)
        change = Change.TOLD if waits and prepare_only else one.change
        if change not in (Change.SAME, Change.NOISE):
            yield Changed(
                model=model,
                artifact=one.artifact,
                measure=one.measure,
                change=change,
                before=one.before,
                after=one.after,
                why=one.why,
            )
