"""Pack models into a repository, and check a repository."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from ..core.children.limits import ProcessLimits
from ..core.errors import ErrorCode, Hint, Option, UsageError, unknown_name_error
from ..pipeline.manifest_file import encode_json
from ..pipeline.recorded_run import load_manifest
from .describe_models import describe_models
from .ensembles import EnsembleModel, EnsembleSpec, build_ensemble, find_exchanged_maps
from .pick_artifacts import (
    ArtifactChoice,
    ModelFolder,
    PickedArtifact,
    make_served_model,
    name_models,
    pick_artifacts,
    share_row_evidence,
)
from .repository_kinds import RepositoryKind, RepositoryPart, kind_of
from .repository_reader import RepositoryReader
from .repository_records import (
    ENSEMBLE_FILE,
    VERSION_FILE,
    CheckedRepository,
    ModelInterface,
    OmittedArtifact,
    PackedModel,
    PackedVersion,
    PackReport,
    ServedModel,
    ServingOptions,
)
from .version_folders import (
    PlannedFile,
    PlannedModel,
    RepositoryPlan,
    check_place,
    list_versions,
    open_repository,
    write_repository,
)


@dataclass(frozen=True, kw_only=True)
class PackRequest:
    """What to pack: output folders, ensembles of their models, and where to.

    `bounds` are the limits of the process that opens the artifacts; None opens them in this one.
    `trust` runs machine code, too, to see its interface.
    """

    folders: tuple[ModelFolder, ...]
    repository: Path
    kind: RepositoryKind
    choice: ArtifactChoice = field(default_factory=ArtifactChoice)
    options: ServingOptions = field(default_factory=ServingOptions)
    ensembles: tuple[EnsembleSpec, ...] = ()
    bounds: ProcessLimits | None = None
    trust: bool = False


def pack_models(
    request: PackRequest, advance: Callable[[int, int], object] = lambda _, __: None
) -> PackReport:
    """Write the artifacts into a repository: as new models, or as the next version of known ones.

    Args:
        request: what to pack.
        advance: is called with the number of artifacts that are looked at, and of all.

    Raises:
        UsageError: nothing can be packed, or an artifact, name or ensemble does not fit.
    """
    _check_choice(request)
    picked: list[PickedArtifact] = []
    left_out: list[OmittedArtifact] = []
    for source in request.folders:
        found = pick_artifacts(source, request.choice, request.kind.targets, request.kind.decline)
        picked += found.picked
        left_out += found.left_out
        if not found.picked and request.kind.joins and source.group:
            raise _nothing_error(request, found.left_out)  # the others do not run without it
    if not picked:
        raise _nothing_error(request, left_out)
    interfaces = _describe(picked, request, advance)
    models = request.kind.prepare(
        [
            make_served_model(one, name, interface)
            for one, name, interface in zip(picked, name_models(picked), interfaces, strict=True)
        ]
    )
    _check_names(models, request.ensembles)
    part = RepositoryPart(
        models=tuple(models),
        ensembles=_build_ensembles(request, models),
        options=request.options,
    )
    with open_repository(request.repository):
        plan, packed = _plan(request, part)
        write_repository(request.repository, plan)
    return PackReport(
        repository=str(request.repository),
        kind=request.kind.name,
        models=packed,
        left_out=tuple(left_out),
        written=tuple(plan.root_files),
    )


def _check_choice(request: PackRequest) -> None:
    """Check that each name that the user gave is that of an artifact or a pending step.

    Raises:
        UsageError: one is not.
    """
    manifests = [load_manifest(source.folder) for source in request.folders]
    known = {name for one in manifests for artifact in one.artifacts
             for name in (artifact.name, artifact.step)}  # fmt: skip
    known |= {step.step for one in manifests for step in one.steps_pending}
    for name in request.choice.only:
        if not any(fnmatchcase(one, name) for one in known):
            raise unknown_name_error("artifact", name, sorted(known) or ["(none)"])
    for name in request.choice.allow:
        if name not in known:
            raise unknown_name_error("artifact in --allow:", name, sorted(known) or ["(none)"])


def _nothing_error(request: PackRequest, left_out: Sequence[OmittedArtifact]) -> UsageError:
    """Return the error for no artifact to pack, with what would pack the first one."""
    why, hint = "no artifact has this name", "give names as modelc report shows them, or leave out"
    advice = Hint(f"{hint} ", Option("artifact"))
    if left_out:
        why, advice = left_out[0].text, Hint(left_out[0].hint)
    return UsageError(
        f"nothing to pack for {request.kind.name}: {why}",
        hint=advice, option="artifact", code=ErrorCode.NOTHING_TO_DO,
    )  # fmt: skip


def _describe(
    picked: Sequence[PickedArtifact],
    request: PackRequest,
    advance: Callable[[int, int], object],
) -> tuple[ModelInterface, ...]:
    """Learn the interface of each artifact from its file.

    Raises:
        UsageError: one cannot be read or run.
    """
    requests = [replace(one.request, trust=request.trust) for one in picked]
    advance(0, len(requests))
    described = describe_models(requests, request.bounds, lambda done: advance(done, len(requests)))
    found: list[ModelInterface] = []
    for one, result in zip(picked, described, strict=True):
        if result.interface is None:
            raise UsageError(
                f"{one.source.name}: {one.artifact.name} cannot be packed: {result.fault}",
                hint=Hint("leave it out with ", Option("artifact"), ", or export it again"),
                code=ErrorCode.RUNTIME_FAILED,
            )
        _check_against_signature(one, result.interface)
        found.append(result.interface)
    return share_row_evidence(picked, found)


def _check_against_signature(picked: PickedArtifact, interface: ModelInterface) -> None:
    """Check that the file takes what the manifest says: a server would load any other.

    Raises:
        UsageError: names or dims of inputs or outputs differ.
    """
    signature, label = picked.signature, f"{picked.source.name}: {picked.artifact.name}"
    specs = {spec.name: spec for spec in signature.inputs}
    for tensor in interface.inputs:
        spec = specs.get(tensor.source)
        if spec is None:
            raise _misfit(f"{label} has an input {tensor.name!r}, the manifest has none")
        if len(spec.dims) != len(tensor.dims):
            raise _misfit(f"{label}: {tensor.name} has {len(tensor.dims)} dims in the file")
        for dim, size in zip(spec.dims, tensor.dims, strict=True):
            if size >= 0 and (dim.dynamic or dim.opt != size):
                raise _misfit(f"{label}: {tensor.name} has a dim of {size} for {dim}")
    if len(interface.outputs) != len(signature.outputs):
        count = len(interface.outputs)
        raise _misfit(f"{label} has {count} outputs, the manifest {len(signature.outputs)}")


def _misfit(message: str) -> UsageError:
    return UsageError(message, hint="export it again", code=ErrorCode.FILE_CHANGED)


def _check_names(models: Sequence[ServedModel], ensembles: Sequence[EnsembleSpec]) -> None:
    names: set[str] = set()
    for name in (*(one.name for one in models), *(one.name for one in ensembles)):
        if name.lower() in names:
            raise UsageError(
                f"two models would be named {name}",
                hint="pack them one by one, each with a --name",
                option="name",
                code=ErrorCode.SAME_FILE,
            )
        names.add(name.lower())


def _build_ensembles(
    request: PackRequest, models: Sequence[ServedModel]
) -> tuple[EnsembleModel, ...]:
    if request.ensembles and not request.kind.has_ensembles:
        return ()
    interfaces = {one.name: request.kind.interface(one) for one in models}
    return tuple(build_ensemble(spec, interfaces) for spec in request.ensembles)


def _plan(
    request: PackRequest, part: RepositoryPart
) -> tuple[RepositoryPlan, tuple[PackedModel, ...]]:
    """Return what to write, and what the repository then holds of these models."""
    kind, plans, packed = request.kind, [], []
    single: dict[str, bytes] = {}
    for model in part.models:
        planned, version = _plan_model(request, model)
        if planned is None or not planned.is_new:
            edited = kind.edit_files(request.repository / model.name, model, version)
            single |= {f"{model.name}/{name}": content for name, content in edited.items()}
        plans += [] if planned is None else [planned]
        packed.append(
            PackedModel(
                name=model.name, version=version, artifact=model.record.artifact,
                is_new=planned is not None, batch=kind.interface(model).batch,
                notes=model.record.notes,
            )
        )  # fmt: skip
    writer = kind.ensemble_files
    for ensemble in part.ensembles if writer is not None else ():
        files = () if writer is None else tuple(writer(ensemble, part.models))
        planned = _plan_ensemble(request.repository, ensemble, files)
        plans += [] if planned is None else [planned]
        packed.append(
            PackedModel(
                name=ensemble.name, version=1, artifact="ensemble", is_new=planned is not None,
                notes=tuple(find_exchanged_maps(ensemble.steps)),
            )
        )  # fmt: skip
    single |= kind.root_files(request.repository, part)
    return RepositoryPlan(models=tuple(plans), root_files=single), tuple(packed)


def _plan_model(request: PackRequest, model: ServedModel) -> tuple[PlannedModel | None, int]:
    """Plan the next version of a model; none where the newest version is this artifact.

    Raises:
        UsageError: the repository has another model of that name.
    """
    kind, options = request.kind, request.options
    place = check_place(request.repository, model.name)
    is_new = not place.exists()
    if not is_new:
        difference = kind.find_difference(place, model, options)
        if difference:
            raise UsageError(
                f"{place} holds another model: {difference}",
                hint=Hint("give the new one another name: ", Option("name", "NAME")),
                option="name",
                code=ErrorCode.FOLDER_OCCUPIED,
            )
    versions = list_versions(place)
    files = tuple(kind.version_files(model))
    records = tuple(replace(one.record, name=one.name) for one in files if one.record is not None)
    record = replace(model.record, files=records)
    if versions and _is_packed(place / str(versions[-1]), record):
        return None, versions[-1]
    version = (versions[-1] if versions else 0) + 1
    return PlannedModel(
        name=model.name,
        version=version,
        is_new=is_new,
        version_files=(*files, PlannedFile(name=VERSION_FILE, content=encode_json(record))),
        model_files=tuple(kind.model_files(model, options)) if is_new else (),
    ), version


def _is_packed(place: Path, record: PackedVersion) -> bool:
    """Whether a version holds the same artifact, intact, that had passed or was allowed as now."""
    reader = RepositoryReader(root=place.parent.parent)
    there = reader.load_record(place)
    return there is not None and (there.digests, there.allowed) == (record.digests, record.allowed)


def _plan_ensemble(
    repository: Path, ensemble: EnsembleModel, files: Sequence[PlannedFile]
) -> PlannedModel | None:
    """Plan an ensemble; none where the repository has it.

    Raises:
        UsageError: it has another one of that name.
    """
    place = check_place(repository, ensemble.name)
    if place.exists():
        same = all(
            (place / one.name).is_file() and (place / one.name).read_bytes() == one.content
            for one in files
        )
        if same:
            return None
        raise UsageError(
            f"{place} holds another ensemble",
            hint="give the new one another name in modelc.toml, or move that one away",
            code=ErrorCode.FOLDER_OCCUPIED,
        )
    content = encode_json({"ensemble": ensemble.name, "steps": ensemble.steps})
    return PlannedModel(
        name=ensemble.name, version=1, is_new=True, model_files=tuple(files),
        version_files=(PlannedFile(name=ENSEMBLE_FILE, content=content),),
    )  # fmt: skip


def check_repository(
    repository: Path,
    *,
    kind: RepositoryKind | None = None,
    bounds: ProcessLimits | None = None,
    trust: bool = False,
) -> CheckedRepository:
    """Compare the configuration of each model with its files; no model is run.

    Args:
        repository: the folder.
        kind: of the repository; by its content if not given.
        bounds: the limits of the process that opens model files; None opens them in this one.
        trust: open programs that no record beside them names.

    Raises:
        UsageError: the folder is not a repository.
    """
    known = kind or kind_of(repository)
    reader = RepositoryReader(root=repository, bounds=bounds, trust=trust)
    models = known.check(reader)
    if not models and not reader.faults:
        raise UsageError(
            f"{repository} has no model", hint="pack one: modelc pack OUT --to triton -o REPO",
            code=ErrorCode.NOTHING_TO_DO,
        )  # fmt: skip
    return CheckedRepository(
        repository=str(repository),
        kind=known.name,
        models=models,
        versions=tuple(dict.fromkeys(reader.compared)),  # of several models, once
        faults=tuple(reader.faults),
        unchecked=tuple(reader.unchecked),
    )
