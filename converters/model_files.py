"""The files that a model consists of: what a digest must cover, and a copy must take along."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .capturing import guarded


def files_of(path: Path) -> tuple[Path, ...]:
    """The model file, then those that its weights lie in, wherever it says they are.

    Raises:
        ConversionError: the model cannot be read.
    """
    if path.suffix == ".onnx":
        return (path, *(path.parent / name for name in dict.fromkeys(_locations(path))))
    weights = path.with_suffix(".bin")
    return (path, weights) if weights.is_file() else (path,)


def _locations(path: Path) -> Iterator[str]:
    import onnx
    from onnx.external_data_helper import uses_external_data

    model = guarded("onnx", lambda: onnx.load(str(path), load_external_data=False))
    for tensor in onnx.external_data_helper._get_all_tensors(model):
        if uses_external_data(tensor):
            yield from (entry.value for entry in tensor.external_data if entry.key == "location")
