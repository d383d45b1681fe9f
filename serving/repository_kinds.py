"""The kinds of repository that can be packed and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from ..core.errors import ErrorCode, UsageError, unknown_name_error
from ..runtimes.generation_files import (
    GENAI_CONFIG,
    ONNXRUNTIME_GENAI,
    OPENVINO_GENAI,
    OPENVINO_MODEL,
)
from . import (
    generation_repository,
    kserve_service,
    mlflow_model,
    onnx_folder,
    openvino_server,
    triton_repository,
)
from .ensembles import EnsembleModel
from .pick_artifacts import Decline
from .repository_reader import RepositoryReader
from .repository_records import ModelInterface, ServedModel, ServingOptions
from .triton_check import check_triton
from .triton_comparison import find_config_difference
from .triton_schema import write_config
from .version_folders import PlannedFile, list_versions

EnsembleWriter: TypeAlias = Callable[[EnsembleModel, Sequence[ServedModel]], Iterable[PlannedFile]]
"""Makes the files of an ensemble of these models."""


@dataclass(frozen=True, kw_only=True)
class RepositoryPart:
    """What one call packs: models, ensembles of them, and how they are served."""

    models: tuple[ServedModel, ...]
    ensembles: tuple[EnsembleModel, ...]
    options: ServingOptions


@dataclass(frozen=True, kw_only=True)
class RepositoryKind:
    """A kind of repository: which artifacts it takes, and how its files are written and checked.

    Attributes:
        name: the value of `--to`.
        summary: one line for the help.
        targets: the targets that its server loads.
        prepare: gives models the tensor names of the server, and joins engines for several GPUs.
        interface: a model as clients and ensembles see it.
        version_files: the files of a version's folder.
        model_files: the files beside the versions, written with a new model.
        edit_files: files beside the versions that change with a new version.
        find_difference: why a model in the repository is another one; empty if it is not.
        ensemble_files: the files of an ensemble; None for a server without ensembles, or one that
            has them in its own configuration.
        root_files: the files of the repository itself.
        has_ensembles: whether the server runs ensembles.
        joins: whether models that run together become one.
        decline: why an artifact cannot be served, and what to do; empty texts if it can.
        claims: whether a folder is such a repository.
        check: checks one, and returns the names of its models.
    """

    name: str
    summary: str
    targets: tuple[str, ...]
    prepare: Callable[[Sequence[ServedModel]], tuple[ServedModel, ...]]
    interface: Callable[[ServedModel], ModelInterface]
    version_files: Callable[[ServedModel], Iterable[PlannedFile]]
    model_files: Callable[[ServedModel, ServingOptions], Iterable[PlannedFile]]
    edit_files: Callable[[Path, ServedModel, int], dict[str, bytes]]
    find_difference: Callable[[Path, ServedModel, ServingOptions], str]
    root_files: Callable[[Path, RepositoryPart], dict[str, bytes]]
    claims: Callable[[Path], bool]
    check: Callable[[RepositoryReader], tuple[str, ...]]
    ensemble_files: (
        Callable[[EnsembleModel, Sequence[ServedModel]], Iterable[PlannedFile]] | None
    ) = None
    has_ensembles: bool = True
    joins: bool = False
    decline: Decline = generation_repository.decline_states


def _prepare_triton(models: Sequence[ServedModel]) -> tuple[ServedModel, ...]:
    made = (triton_repository.add_capabilities(one) for one in models)
    return triton_repository.merge_engines([triton_repository.rename_tensors(one) for one in made])


def _triton_interface(model: ServedModel) -> ModelInterface:
    return triton_repository.interface_of(triton_repository.make_config(model, ServingOptions()))


def _triton_ensemble(
    ensemble: EnsembleModel, models: Sequence[ServedModel]
) -> Iterable[PlannedFile]:
    limits = {one.name: triton_repository.batch_limit(one.record) for one in models}
    config = triton_repository.make_ensemble_config(ensemble, limits)
    yield PlannedFile(name=triton_repository.CONFIG_FILE, content=write_config(config))


def _own_interface(model: ServedModel) -> ModelInterface:
    return model.interface


def _find_difference(place: Path, model: ServedModel, options: ServingOptions) -> str:  # noqa: ARG001 - as the field
    """Return how the interface of a model differs from that of the newest version's record."""
    newest = str(max(list_versions(place), default=""))
    record = RepositoryReader(root=place.parent).load_record(place / newest)
    if record is None:
        return ""
    for noun in ("inputs", "outputs"):
        old, new = (
            [(one.name, one.dtype, one.dims) for one in getattr(own, noun)]
            for own in (record.interface, model.interface)
        )
        if old != new:
            return f"its {noun} have other names, dtypes or dims"
    return ""


def _find_member_difference(place: Path, model: ServedModel, options: ServingOptions) -> str:
    found = onnx_folder.find_difference(place, model, options)
    return found or _find_difference(place, model, options)


def _no_files(model: ServedModel, options: ServingOptions) -> Iterable[PlannedFile]:  # noqa: ARG001 - as the field
    return ()


def _no_edits(place: Path, model: ServedModel, version: int) -> dict[str, bytes]:  # noqa: ARG001 - as the field
    return {}


def _no_root_files(repository: Path, part: RepositoryPart) -> dict[str, bytes]:  # noqa: ARG001 - as the field
    return {}


def _server_config(repository: Path, part: RepositoryPart) -> dict[str, bytes]:
    return openvino_server.plan_server_config(repository, part.models, part.ensembles, part.options)


def _service(repository: Path, part: RepositoryPart) -> dict[str, bytes]:
    configs = (triton_repository.make_config(one, part.options) for one in part.models)
    groups = (group for config in configs for group in config.instance_group)
    gpu = any(group.kind == group.KIND_GPU for group in groups)
    return kserve_service.plan_service(repository, part.options, gpu=gpu)


def _has_config(folder: Path) -> bool:
    return any(folder.glob(f"*/{triton_repository.CONFIG_FILE}"))


TRITON = RepositoryKind(
    name="triton",
    summary="NVIDIA Triton Inference Server: config.pbtxt for each model",
    targets=tuple(triton_repository.BACKENDS),
    prepare=_prepare_triton,
    interface=_triton_interface,
    version_files=triton_repository.plan_version_files,
    model_files=triton_repository.plan_model_files,
    edit_files=triton_repository.add_digest,
    find_difference=find_config_difference,
    root_files=_no_root_files,
    ensemble_files=_triton_ensemble,
    claims=_has_config,
    check=check_triton,
)
KSERVE = replace(
    TRITON,
    name="kserve",
    summary="KServe with Triton: as triton, and an InferenceService",
    root_files=_service,
    claims=lambda folder: (folder / kserve_service.SERVICE_FILE).is_file(),
    check=kserve_service.check_kserve,
)
OVMS = RepositoryKind(
    name="ovms",
    summary="OpenVINO Model Server: config.json",
    targets=openvino_server.TARGETS,
    prepare=tuple,
    interface=_own_interface,
    version_files=openvino_server.plan_server_files,
    model_files=_no_files,
    edit_files=_no_edits,
    find_difference=_find_difference,
    root_files=_server_config,
    claims=lambda folder: (folder / openvino_server.SERVER_CONFIG).is_file(),
    check=openvino_server.check_server,
)
MLFLOW = RepositoryKind(
    name="mlflow",
    summary="MLflow: MLmodel with the ONNX flavour and a signature",
    targets=mlflow_model.TARGETS,
    prepare=tuple,
    interface=_own_interface,
    version_files=mlflow_model.plan_mlflow_files,
    model_files=_no_files,
    edit_files=_no_edits,
    find_difference=_find_difference,
    root_files=_no_root_files,
    claims=lambda folder: (
        any(folder.glob(f"*/*/{mlflow_model.MODEL_FILE}"))
        or any(folder.glob(f"*/{mlflow_model.MODEL_FILE}"))
    ),
    check=mlflow_model.check_mlflow,
    has_ensembles=False,
)
ORT_GENAI = replace(
    MLFLOW,
    name=ONNXRUNTIME_GENAI,
    summary="onnxruntime-genai: genai_config.json and the tokenizer of a decoder or a Whisper",
    targets=generation_repository.ONNX_TARGETS,
    prepare=generation_repository.prepare_onnx,
    version_files=generation_repository.plan_onnx_files,
    find_difference=_find_member_difference,
    claims=lambda folder: any(folder.glob(f"*/*/{GENAI_CONFIG}")),
    check=generation_repository.check_onnx,
    decline=generation_repository.decline_onnx,
)
OV_GENAI = replace(
    ORT_GENAI,
    name=OPENVINO_GENAI,
    summary="openvino-genai: a decoder with states, and its tokenizer",
    targets=generation_repository.OPENVINO_TARGETS,
    prepare=generation_repository.prepare_openvino,
    version_files=generation_repository.plan_openvino_files,
    claims=lambda folder: any(folder.glob(f"*/*/{OPENVINO_MODEL}")),
    check=generation_repository.check_openvino,
    decline=generation_repository.decline_openvino,
)
ONNX = replace(
    MLFLOW,
    name="onnx",
    summary="ONNX files that run together, in one folder: weights that they share are stored once",
    targets=onnx_folder.TARGETS,
    prepare=onnx_folder.join_models,
    version_files=onnx_folder.plan_folder_files,
    find_difference=onnx_folder.find_difference,
    claims=lambda folder: any(folder.glob("*/*/*.onnx")),
    check=onnx_folder.check_folders,
    joins=True,
)
KINDS = (TRITON, OVMS, KSERVE, MLFLOW, ONNX, ORT_GENAI, OV_GENAI)
_BY_CONTENT = (KSERVE, OVMS, TRITON, ORT_GENAI, OV_GENAI, MLFLOW, ONNX)  # the most specific first


def kind_named(name: str) -> RepositoryKind:
    """Return the kind of that name.

    Raises:
        UsageError: there is none.
    """
    for kind in KINDS:
        if kind.name == name:
            return kind
    raise unknown_name_error("repository in --to:", name, [kind.name for kind in KINDS])


def kind_of(repository: Path) -> RepositoryKind:
    """Return the kind of a repository by what it holds.

    Raises:
        UsageError: it is none that is known.
    """
    if not repository.is_dir():
        raise UsageError(
            f"{repository} is not a folder",
            hint="give the folder of a repository",
            code=ErrorCode.NOT_FOUND,
        )
    for kind in _BY_CONTENT:
        if kind.claims(repository):
            return kind
    names = ", ".join(kind.name for kind in KINDS)
    raise UsageError(
        f"{repository} is not a repository of a known kind: {names}",
        hint="say which with --to, or pack one: modelc pack OUT --to triton -o REPO",
        code=ErrorCode.NOT_FOUND,
    )
