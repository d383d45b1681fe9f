"""Compare a model that is in a repository of Triton with a new version of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from .repository_records import ServedModel, ServingOptions
from .triton_repository import CONFIG_FILE, make_config
from .triton_schema import MAX_CONFIG_BYTES, read_config


def find_config_difference(place: Path, model: ServedModel, options: ServingOptions) -> str:
    """Return how the interface of a model differs from that of the folder; empty if it does not.

    What an operator may tune, such as instances and batching delays, is not compared.
    """
    path = place / CONFIG_FILE
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_CONFIG_BYTES:
        return f"{place.name} has no readable {CONFIG_FILE}"
    try:
        there, _ = read_config(path.read_bytes(), str(path))
    except UsageError as error:
        return error.message
    new = make_config(model, options)
    for field in ("backend", "platform", "max_batch_size", "default_model_filename"):
        if getattr(there, field) != getattr(new, field):
            return f"{field} is {getattr(there, field)!r}, not {getattr(new, field)!r}"
    if dict(there.cc_model_filenames) != dict(new.cc_model_filenames):
        return "its engines are for other GPUs"
    for noun, old, given in (
        ("inputs", there.input, new.input), ("outputs", there.output, new.output)
    ):  # fmt: skip
        if _shape_of(old) != _shape_of(given):
            return f"its {noun} have other names, dtypes or dims"
    return ""


def _shape_of(tensors: Sequence[Any]) -> list[tuple[object, ...]]:
    return [
        (one.name, one.data_type, tuple(one.dims), one.HasField("reshape"),
         tuple(one.reshape.shape))
        for one in tensors
    ]  # fmt: skip
