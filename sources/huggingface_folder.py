"""Folders that transformers saved: config.json says the class, and much about the inputs."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..core.call import parameters_of
from ..core.errors import CheckpointError, MissingError, first_line
from .factory import seeded
from .huggingface_inputs import known_inputs
from .loaded import Loaded
from .sniff import HUGGINGFACE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel

    from ..core.records import Checkpoint


def load(checkpoint: Checkpoint) -> Loaded:
    """Build the class that config.json names, with its weights in float32."""
    folder = Path(checkpoint.path)
    config = _config(folder)
    kind = _model_class(folder, config)
    model, report = _from_pretrained(kind, folder)
    notes = _notes(report, folder, strict=checkpoint.strict)
    stored = str(config.get("dtype", config.get("torch_dtype", "float32")))
    if stored in ("float16", "bfloat16"):
        notes.append(f"the checkpoint's weights are {stored}; they were brought to float32")
    if getattr(model.config, "use_cache", False):
        model.config.use_cache = False
        notes.append("use_cache was turned off: key-value caches are no outputs")
    takes = parameters_of(model.forward)
    known = known_inputs(model.config, tuple(parameter.name for parameter in takes))
    return Loaded(kind=HUGGINGFACE, module=model, takes=takes, known=known, notes=tuple(notes))


def _config(folder: Path) -> dict[str, object]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(
            f"{folder / 'config.json'} is not JSON: {first_line(error)}",
            hint="download the folder again",
        ) from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise CheckpointError(
            f"{folder / 'config.json'} has no model_type: it is not of transformers",
            hint="add --model PKG.MOD:FACTORY to load the weights into a module of your own",
        )
    return config


def _model_class(folder: Path, config: dict[str, object]) -> type[PreTrainedModel]:
    try:
        import transformers
    except ImportError as error:
        raise MissingError(
            f"{folder} is a Hugging Face folder, and transformers is not installed",
            hint="pip install 'modelc[hf]'",
        ) from error
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else "AutoModel"
    found = getattr(transformers, name, None)
    if found is None:
        raise CheckpointError(
            f"{folder} is a {name}, which transformers {transformers.__version__} does not have",
            hint="add --model PKG.MOD:FACTORY; code that comes with a checkpoint is never run",
        )
    chosen: type[PreTrainedModel] = found
    return chosen


def _from_pretrained(
    kind: type[PreTrainedModel], folder: Path
) -> tuple[PreTrainedModel, dict[str, set[object]]]:
    import torch

    try:
        with _quiet(), seeded():
            loaded: object = kind.from_pretrained(
                folder,
                dtype=torch.float32,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # to be told of all of them, and judged here
            )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, ImportError) as error:
        raise CheckpointError(
            f"transformers cannot load {folder}: {first_line(error)}",
            hint="see whether transformers' AutoModel.from_pretrained loads it by itself",
        ) from error
    return cast("tuple[PreTrainedModel, dict[str, set[object]]]", loaded)


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars and no load report: what they say comes back as notes and errors."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call] # transformers leaves it so
    logging.disable_progress_bar()  # type: ignore[no-untyped-call] # as above
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call] # as above


def _notes(report: dict[str, set[object]], folder: Path, *, strict: bool) -> list[str]:
    """Missing and misfitting weights stop a strict load: they would be random numbers.

    Weights that the class does not use (a pre-training head, say) are usual, and only noted.
    """
    missing = sorted(map(str, report["missing_keys"]))
    mismatched = sorted(
        str(entry[0]) for entry in report["mismatched_keys"] if isinstance(entry, tuple)
    )
    unused = sorted(map(str, report["unexpected_keys"]))
    parts = [
        f"{len(names)} {word}: {', '.join(names[:10])}"
        for word, names in (("missing", missing), ("of another shape", mismatched))
        if names
    ]
    if parts and strict:
        raise CheckpointError(
            f"{folder} does not fit the class its config names: {'; '.join(parts)}",
            hint="correct 'architectures' in config.json, or add --no-strict to go on without",
        )
    if parts:
        kept = len(missing) + len(mismatched)
        parts.append(f"kept as the class drew them from seed 0: {kept} tensors")
    if unused:
        parts.append(f"{len(unused)} unused: {', '.join(unused[:10])}")
    return parts
