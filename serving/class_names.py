"""The names of a model's classes, for servers that put them beside scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..calibration.labels import read_classes
from ..core.errors import UsageError
from ..core.manifest import Manifest
from ..core.nested_values import is_loader_spec
from ..core.records import Artifact
from .repository_records import ServedTensor


def find_class_names(folder: Path, manifest: Manifest, artifact: Artifact) -> tuple[str, ...]:
    """Return the names of the classes, in the order of the outputs; empty if they are unknown.

    They are those of the metadata, else those of `classes.txt` in the folder of labelled or
    calibration samples.

    Args:
        folder: the output folder.
        manifest: its manifest.
        artifact: the artifact to serve.
    """
    if manifest.meta.classes:
        return manifest.meta.classes
    sources = [
        "" if artifact.accuracy is None else artifact.accuracy.data,
        "" if artifact.calibration is None else artifact.calibration.source,
        *(one.calibration.source for one in manifest.artifacts if one.calibration is not None),
    ]
    for source in filter(None, sources):
        place = folder / source
        if is_loader_spec(source) or not place.is_dir():
            continue
        try:
            names = read_classes(place)
        except UsageError:  # the file was changed since; nothing depends on it
            continue
        if names:
            return names
    return ()


def find_class_output(outputs: Sequence[ServedTensor], classes: Sequence[str]) -> str:
    """Return the only output with one value per class; empty if there is none or several."""
    found = [one.name for one in outputs if one.dims and one.dims[-1] == len(classes)]
    return found[0] if len(found) == 1 else ""
