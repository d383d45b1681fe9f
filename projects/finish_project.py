"""Finish the pending steps of all models of a project on the host that can."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core.children.limits import ProcessLimits
from ..core.children.messages import ChildBugError
from ..core.errors import ModelcError
from ..core.events import Tell
from ..core.manifest import Manifest
from ..core.records import step_of
from ..pipeline.output_folder import LOGS_FOLDER
from ..pipeline.parts.joined_manifest import join_parts, load_results
from ..pipeline.parts.parts_file import has_parts, part_folder, read_parts
from ..pipeline.recorded_run import FinishRequest
from ..reports.result_rows import Outcome
from .project_faults import Faults, read_gates
from .project_reader import read_project_leniently
from .project_records import Gate, ModelOutcome, find_breaches, find_doubts
from .project_results import ProjectResults
from .ready_models import report_bug
from .run_record import RunRecord, make_model_run, with_regression
from .setting_layers import Overrides, resolve_settings_leniently

MakeRequest = Callable[[Path], FinishRequest]


@dataclass(frozen=True, kw_only=True)
class _KnownModel:
    """A model before its pending steps are finished; `steps` are those of its last run."""

    name: str
    folder: Path
    manifest: Manifest
    steps: tuple[str, ...]
    gates: tuple[Gate, ...] = field(default=())

    def make_outcome(self, manifest: Manifest, done: Sequence[str], seconds: float) -> ModelOutcome:
        """Make the outcome; `done` are the steps that were finished now."""
        whole = replace(manifest, steps=tuple(dict.fromkeys((*self.steps, *done))))
        return ModelOutcome(
            name=self.name,
            folder=str(self.folder),
            manifest=whole,
            breaches=find_breaches(self.gates, whole.steps, whole),
            doubts=find_doubts(self.gates, whole.steps, whole),
            kept=tuple(sorted(set(whole.steps) - set(done))),
            seconds=seconds,
        )


def finish_project(
    results: ProjectResults,
    make_request: MakeRequest,
    listener_of: Callable[[str], Tell],
    *,
    gates: Mapping[str, tuple[Gate, ...]],
    limits: ProcessLimits,
) -> dict[str, ModelOutcome]:
    """Finish what is pending in the folders of all models, one after the other.

    Args:
        results: the folder of all models.
        make_request: the request for the folder of a model.
        listener_of: returns the listener for a model by name.
        gates: the gates by model.
        limits: the limits of each step.

    Returns:
        The outcomes of the models that had pending steps.
    """
    recorded = {one.name: [a.name for a in one.artifacts] for one in results.record.models}
    found = {}
    for name, manifest in results.manifests.items():
        if not manifest.pending:
            continue
        known = _KnownModel(
            name=name,
            folder=results.folder / name,
            manifest=manifest,
            steps=tuple(recorded.get(name) or _list_steps(manifest)),
            gates=gates.get(name, ()),
        )
        found[name] = _finish_model(known, make_request, listener_of(name), limits)
    return found


def _list_steps(manifest: Manifest) -> list[str]:
    steps = [step_of(one.name) for one in manifest.artifacts]
    steps += [one.step for one in manifest.failures] + [one.step for one in manifest.pending]
    return list(dict.fromkeys(steps))


def update_record(
    record: RunRecord, ended: Mapping[str, ModelOutcome], *, prepare_only: bool = False
) -> RunRecord:
    """Return the record of a run with the outcomes of models that were finished since."""
    models = tuple(
        make_model_run(ended[one.name]) if one.name in ended else one for one in record.models
    )
    codes = [
        one.exit_code
        for one in models
        if not (prepare_only and one.state is Outcome.PENDING and not one.breaches)
    ]
    made = replace(
        record,
        models=models,
        exit_code=1 if 1 in codes else next(filter(None, codes), 0),
        seconds=round(record.seconds + sum(one.seconds for one in ended.values()), 3),
    )
    return with_regression(made, record.regression)


def _finish_model(
    known: _KnownModel, make_request: MakeRequest, tell: Tell, limits: ProcessLimits
) -> ModelOutcome:
    waiting = [one.step for one in known.manifest.pending]
    since = time.perf_counter()
    finish = _finish_parts if has_parts(known.folder) else _finish_one
    try:
        manifest = finish(known.folder, make_request, tell, limits)
    except (ModelcError, ChildBugError) as fault:
        error = (
            fault
            if isinstance(fault, ModelcError)
            else report_bug(fault, known.folder / LOGS_FOLDER)
        )
        seconds = round(time.perf_counter() - since, 3)
        left = known.make_outcome(load_results(known.folder), (), seconds)
        return replace(left, error=error)
    still = {one.step for one in manifest.pending}
    new = (step for step in manifest.steps if step not in known.steps)  # the whole of parts
    done = [step for step in dict.fromkeys((*waiting, *new)) if step not in still]
    return known.make_outcome(manifest, done, round(time.perf_counter() - since, 3))


def _finish_one(
    folder: Path, make_request: MakeRequest, tell: Tell, limits: ProcessLimits
) -> Manifest:
    from ..pipeline.isolation.supervisor import run_isolated

    return run_isolated(make_request(folder), tell, bounds=limits)


def _finish_parts(
    folder: Path, make_request: MakeRequest, tell: Tell, limits: ProcessLimits
) -> Manifest:
    from ..pipeline.parts.export_parts import finish_parts
    from ..pipeline.parts.run_parts import PartsRequest

    asked = make_request(part_folder(folder, read_parts(folder).parts[0].name))
    request = PartsRequest.of_record(folder, asked.moved, asked.judging)
    whole, manifests = finish_parts(request, make_request, limits, tell)
    return join_parts(whole, manifests)


def read_project_gates(file: Path, given: Overrides) -> dict[str, tuple[Gate, ...]]:
    """Return the gates of each model, without looking for checkpoints.

    Raises:
        UsageError: the file cannot be read, or has faults.
    """
    faults = Faults()
    project = read_project_leniently(file, faults)
    settings = resolve_settings_leniently(project, given, faults)
    faults.raise_any()
    return {model.name: read_gates(model.said) for model in settings.models}
