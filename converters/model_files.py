"""The files that a model consists of: what a digest must cover, and a copy must take along."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from ..core.errors import ConversionError
from .guarded import call_framework
from .onnx_guard import external_path, external_path_fault

if TYPE_CHECKING:
    import onnx


def list_model_files(path: Path) -> tuple[Path, ...]:
    """The model file, then those that its weights lie in, wherever it says they are.

    Raises:
        ConversionError: the model cannot be read, or names files outside its folder.
    """
    if path.suffix == ".onnx":
        import onnx

        model = call_framework("onnx", lambda: onnx.load(str(path), load_external_data=False))
        names = external_weight_names(model)
        _check_external_paths(path, names)
        return (path, *(external_path(path, name) for name in names))
    weights = path.with_suffix(".bin")
    return (path, weights) if weights.is_file() else (path,)


def external_weight_names(model: onnx.ModelProto) -> tuple[str, ...]:
    """The files that hold weights of the model and of its nodes' bodies, as it names them.

    Raises:
        ConversionError: a name leads out of the model's folder.
    """
    names = tuple(dict.fromkeys(_external_locations(model)))
    for name in names:
        parts = {*PurePosixPath(name).parts, *PureWindowsPath(name).parts}
        absolute = PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive
        if absolute or ".." in parts:
            raise ConversionError(
                f"the model keeps weights outside its folder: {name!r}",
                hint="save it with its weights beside it",
            )
    return names


def copy_external_weights(model: onnx.ModelProto, path: Path, folder: Path) -> tuple[str, ...]:
    """Copy the files that hold the weights of the model read from `path`; their names.

    Raises:
        ConversionError: one is not there, or lies outside the model's folder.
    """
    names = external_weight_names(model)
    _check_external_paths(path, names)
    for name in names:
        source = external_path(path, name)
        if not source.is_file():
            raise ConversionError(
                f"the weights of {path.name} are in {name!r}, which is not beside it",
                hint="copy that file too",
            )
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / name)
    return names


def _check_external_paths(path: Path, names: tuple[str, ...]) -> None:
    """That no name leads out of the model's folder, by links neither.

    Raises:
        ConversionError: one does.
    """
    for name in names:
        if fault := external_path_fault(path, name):
            raise ConversionError(
                f"the model {fault}", hint="save it with its weights themselves beside it"
            )


def _external_locations(model: onnx.ModelProto) -> Iterator[str]:
    from onnx.external_data_helper import _get_all_tensors, uses_external_data

    for tensor in _get_all_tensors(model):
        if uses_external_data(tensor):
            yield from (entry.value for entry in tensor.external_data if entry.key == "location")
