"""Output folders to pack, and repositories packed from them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modelc.core.contract import Array
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Source, Wanted
from modelc.serving.pack_models import PackRequest, pack_models
from modelc.serving.pick_artifacts import ArtifactChoice, ModelFolder
from modelc.serving.repository_kinds import TRITON, RepositoryKind
from modelc.serving.repository_records import PackReport, ServingOptions
from modelc.serving.triton_schema import config_class, read_config, write_config

from ..conftest import exported

FORMATS = ("torchscript", "onnx", "openvino")


@pytest.fixture(scope="session")
def detector(tmp_path_factory: pytest.TempPathFactory, nested_source: Source) -> Path:
    """Two inputs, and outputs of one and two dims, in three formats. Copy it to change it."""
    wanted = (Wanted.parse(name) for name in FORMATS)
    return exported(nested_source, tmp_path_factory.mktemp("serving") / "detector", *wanted)


@pytest.fixture(scope="session")
def pack() -> Callable[..., PackReport]:
    """`pack(folder, repository)`: as `modelc pack`, in this process."""

    def run(folder: Path, repository: Path, **given: Any) -> PackReport:
        kind: RepositoryKind = given.get("kind", TRITON)
        return pack_models(
            PackRequest(
                folders=(ModelFolder(name=given.get("name", folder.name), folder=folder),),
                repository=repository,
                kind=kind,
                choice=ArtifactChoice(only=given.get("only", ()), allow=given.get("allow", ())),
                options=given.get("options", ServingOptions()),
                ensembles=given.get("ensembles", ()),
            )
        )

    return run


@pytest.fixture(scope="session")
def packed(
    tmp_path_factory: pytest.TempPathFactory, detector: Path, pack: Callable[..., PackReport]
) -> Path:
    """The detector in three formats for Triton. Copy it to change it."""
    repository = tmp_path_factory.mktemp("packed") / "repository"
    pack(detector, repository)
    return repository


@pytest.fixture
def repository(packed: Path, tmp_path: Path) -> Path:
    """A copy of the repository, to be changed."""
    return shutil.copytree(packed, tmp_path / "repository")


def config_of(model: Path) -> Any:
    """The configuration of a model."""
    config, unknown = read_config((model / "config.pbtxt").read_bytes(), "config.pbtxt")
    assert not unknown
    return config


def change_config(model: Path, change: Callable[[Any], object]) -> None:
    """Change the configuration of a model in place."""
    config = config_of(model)
    change(config)
    (model / "config.pbtxt").write_bytes(write_config(config))


def empty_config() -> Any:
    """A new configuration."""
    return config_class()()


def artifact_file(folder: Path, name: str) -> Path:
    """The model file of an artifact."""
    manifest = read_manifest(folder)
    assert manifest is not None
    return folder / next(one for one in manifest.artifacts if one.name == name).files[0].name


def warmup_of(model: Path, name: str, array: Array) -> Array:
    """A warm-up file as an array of this dtype and shape."""
    import numpy as np

    raw = (model / "warmup" / name).read_bytes()
    return np.frombuffer(raw, array.dtype).reshape(array.shape)
