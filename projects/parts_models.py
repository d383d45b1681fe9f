"""Models of several parts in a run: what is up to date of them, and how they are built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from ..checkpoints.user_code import project_folder
from ..core.children.limits import ProcessLimits
from ..core.errors import UsageError
from ..core.events import Entered, Event, Noted, Tell
from ..core.manifest import Manifest
from ..core.part_records import PARTS_FILE, PartsManifest
from ..core.records import artifact_names
from ..pipeline.cache.dependencies import find_unmet_dependency
from ..pipeline.cache.reuse import ReuseResult, ReuseSources, find_up_to_date
from ..pipeline.order import ResumeState
from ..pipeline.parts.export_parts import judge_whole, plan_parts
from ..pipeline.parts.joined_manifest import join_parts, rename_step
from ..pipeline.parts.parts_file import BuiltPart, has_parts, read_parts
from ..pipeline.parts.parts_order import PartsOrder, list_whole, order_part
from ..pipeline.provenance.seals import seal_holds
from .project_records import ModelOrder, ModelOutcome

RunPart: TypeAlias = Callable[[ModelOrder, Tell], ModelOutcome]
"""Builds what is not up to date of one part, as of a model of its own."""


@dataclass(frozen=True, kw_only=True)
class BuiltParts:
    """A model whose parts were built and judged: its manifest, and what was reused of it."""

    manifest: Manifest
    taken: ReuseResult


def reuse_parts(
    model: ModelOrder, parts: PartsOrder, keys: Mapping[str, str], caching: ReuseSources
) -> ReuseResult:
    """Return the results in the model's folder if all of them are up to date, or why none is."""
    nothing = ReuseResult(manifest=None, resume=ResumeState(keys=parts.keys(keys)))
    if not has_parts(model.order.out):
        return nothing
    try:
        whole = read_parts(model.order.out)
        built = [
            BuiltPart.read(model.order.out, name, method) for name, method in parts.methods.items()
        ]
    except UsageError as error:
        return replace(nothing, again=f"rebuild: {error.message}")
    why = _find_change(model, parts, whole, parts.keys(keys), caching)
    others = (_find_change_of(one, whole, model, caching) for one in built)
    why = why or next(filter(None, others), "")
    if why:
        return replace(nothing, again=f"rebuild: {why}")
    manifests = {one.name: one.manifest for one in built if one.manifest is not None}
    joined = _restrict_steps(join_parts(whole, manifests), model)
    resume = ResumeState(keys=nothing.resume.keys, kept=frozenset(model.step_names))
    return ReuseResult(manifest=joined, resume=resume)


def _find_change(
    model: ModelOrder,
    parts: PartsOrder,
    whole: PartsManifest,
    keys: Mapping[str, str],
    caching: ReuseSources,
) -> str:
    """Return why the verdicts on the whole are not up to date; empty if they are."""
    text = (model.order.out / PARTS_FILE).read_bytes()
    methods = {one.name: one.method for one in whole.parts}
    asked = [step.name for step in model.plan if step.asked]
    lacking = {*asked} - {one.artifact for one in whole.verdicts}
    if seal_holds(text) is not True:
        return f"{PARTS_FILE} was edited"
    if methods != dict(parts.methods) or whole.compose != parts.compose:
        return "the parts or compose changed"
    if any(one.step in asked for one in whole.failures) or lacking:
        return "it was not judged end to end"
    if not all(whole.keys.get(name) for name in asked):
        return "it was judged again since"
    if any(whole.keys[name] != keys.get(name) for name in asked):
        return "a file, an option, modelc or this machine changed"
    return find_unmet_dependency(whole.needs, project_folder(), caching.digests)


def _find_change_of(
    part: BuiltPart, whole: PartsManifest, model: ModelOrder, caching: ReuseSources
) -> str:
    """Return why a part is not as it was when the whole was judged; empty if it is."""
    manifest = part.manifest
    if manifest is None:
        return part.problem
    then = next(one.artifacts for one in whole.parts if one.name == part.name)
    asked = {step.name for step in model.plan if step.asked}
    now = {name: digest for name, digest in part.record().artifacts.items() if name in asked}
    if now != {name: digest for name, digest in then.items() if name in asked}:
        return f"{part.name} is not the part that was judged end to end"
    keyed = (*((one.step, one.key) for one in manifest.artifacts),
             *((one.step, one.key) for one in manifest.failures))  # fmt: skip
    found = find_up_to_date(manifest, part.folder, dict(keyed), caching)
    done = {*found.artifacts, *found.failures}
    missing = [step.name for step in model.plan if step.name not in done]
    return f"{missing[0]} of {part.name} changed" if missing else ""


def build_parts(
    model: ModelOrder, keys: Mapping[str, str], run_part: RunPart, bounds: ProcessLimits, tell: Tell
) -> BuiltParts | ModelOutcome:
    """Build the parts that are not up to date, and judge the whole; or return why a part failed.

    Args:
        model: a model of several parts.
        keys: the cache keys of the verdicts on the whole; none if nothing is reused.
        run_part: builds one part.
        bounds: the limits of the child processes.
        tell: called with each event.

    Raises:
        ModelcError: the checkpoint, a part or the user's function cannot be used.
    """
    parts, order = model.parts, model.order
    if parts is None:
        raise TypeError(f"{model.name} is a model without parts")
    request = parts.request(order, keys)
    plan = plan_parts(request, bounds, tell)
    ends: dict[str, ModelOutcome] = {}
    manifests: dict[str, Manifest] = {}
    for part in plan.parts:
        one = replace(model, order=order_part(order, part), parts=None, gates=())
        end = run_part(one, partial(_send_event, part.name, tell))
        if end.manifest is None:
            return end
        ends[part.name], manifests[part.name] = end, end.manifest
    whole = judge_whole(request, list_whole(model.plan, manifests.values()), bounds, tell)
    whole = replace(whole, notes=(*whole.notes, *plan.all_notes))
    kept = {rename_step(name, step) for name, end in ends.items() for step in end.kept}
    restored = tuple(rename_step(name, step) for name, end in ends.items() for step in end.restored)
    resume = ResumeState(kept=frozenset({*kept, *restored}))
    manifest = _restrict_steps(join_parts(whole, manifests), model)
    taken = ReuseResult(manifest=manifest, resume=resume, restored=restored)
    return BuiltParts(manifest=manifest, taken=taken)


def _restrict_steps(manifest: Manifest, model: ModelOrder) -> Manifest:
    """Return the manifest with the steps of this run alone, in the order of its plan."""
    mine = artifact_names(model.step_names)
    known = {*manifest.steps}
    return replace(
        manifest,
        steps=tuple(one for one in model.step_names if one in known),
        failures=tuple(one for one in manifest.failures if one.step in mine),
    )


def _send_event(part: str, tell: Tell, event: Event) -> None:
    """Send an event of a part on, with its name."""
    match event:
        case Entered():
            tell(Entered(artifact=rename_step(part, event.artifact)))
        case Noted():
            tell(replace(event, text=f"{part}: {event.text}"))
        case _:
            tell(replace(event, step=f"{part}: {event.step}"))
