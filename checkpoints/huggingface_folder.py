"""Load folders of transformers: config.json determines the class and most inputs."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, TypeAlias, cast

from ..core.call import parameters_of
from ..core.errors import (
    CheckpointError,
    ErrorCode,
    Hint,
    MissingError,
    Option,
    UsageError,
    first_line,
)
from ..core.installation import hint_for_extra
from ..core.torch_file import check_torch_file
from .checkpoint_files import weight_files
from .factory import use_fixed_seed
from .float32_copy import widen_folder
from .huggingface_cache import cache_inputs, inputs_of_one_graph, wrap_with_cache
from .huggingface_inputs import LONGEST, InputQuery, config_number, count_positions, infer_inputs
from .huggingface_seq2seq import split_part
from .huggingface_tasks import (
    CACHED,
    MERGED,
    PARTS,
    PREFILL,
    WITH_PAST,
    find_class,
    keeps_cache,
    length_of,
    note_cache_tasks,
    task_of,
)
from .loaded_module import LoadedModule
from .packed_folder import attach_integers, unpack_folder
from .sniff import HUGGINGFACE, STATE_DICT, sniff_kind
from .torchao_weights import check_quantization

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..core.records import Checkpoint

_POOLER = ".pooler."  # part of the body, but specific to each head


def load_huggingface(checkpoint: Checkpoint) -> LoadedModule:
    """Load the class that config.json names, with weights in float32."""
    folder = Path(checkpoint.path)
    config = _read_config(folder)
    with blame_broken_package("transformers"):
        _check_installed(folder)
        check_quantization(folder, config)
        task, length = task_of(checkpoint.factory_args), length_of(checkpoint.factory_args)
        kind, found_by = find_class(folder, config, task)
    files = weight_files(checkpoint)
    for file in (one for one in files if one.suffix != ".json" and sniff_kind(one) == STATE_DICT):
        check_torch_file(file, str(file))
    with (
        blame_broken_package("transformers"),
        unpack_folder(folder, config, files) as floats,
        widen_folder(floats.path, floats.files) as (read, where),
    ):
        model, report = _from_pretrained(kind, folder, read)
        kept_integers = attach_integers(model, floats)
    misfit = _make_misfit_error(kind, folder, config, task)
    notes = [*found_by, *_load_notes(report, misfit, strict=checkpoint.strict), *kept_integers]
    stored = str(config.get("dtype", config.get("torch_dtype", "float32")))
    if stored in ("float16", "bfloat16"):
        notes.append(f"the checkpoint's weights are {stored}; they were cast to float32{where}")
    if config.get("auto_map"):
        notes.append(f"its own code (auto_map) was not run: it is transformers' {kind.__name__}")
    cached, kept = task in CACHED or task in PARTS, keeps_cache(checkpoint.factory_args)
    if not kept and _disable_cache(model) and not cached and checkpoint.method is None:
        notes.append(note_cache_tasks(model.config))
    loaded = _make_loaded(model, folder, tuple(notes), length or LONGEST)
    if task is not None and cached:
        loaded = _with_cache(loaded, task)
    if length is not None and not any(name.endswith("input_ids") for name in loaded.known):
        raise UsageError(
            f"--model-arg length={length} has no effect: {kind.__name__} has no token inputs",
            hint="leave it out",
            option="model-arg",
            code=ErrorCode.NO_EFFECT,
        )
    return loaded


def _make_loaded(
    model: PreTrainedModel, folder: Path, notes: tuple[str, ...], length: int
) -> LoadedModule:
    takes, reserved = parameters_of(model.forward), _count_reserved_positions(model)
    asked = InputQuery(
        name=type(model).__name__,
        required={parameter.name for parameter in takes if parameter.required},
        reserved=reserved,
        length=length,
        preprocessor=_read_preprocessor(folder),
    )
    known = infer_inputs(model.config, tuple(parameter.name for parameter in takes), asked)
    return LoadedModule(
        kind=HUGGINGFACE, module=model, takes=takes, known=known, assumed=True, notes=notes,
        positions=count_positions(model.config, reserved),
    )  # fmt: skip


def _with_cache(loaded: LoadedModule, task: str) -> LoadedModule:
    """Add keys and values to the outputs, and to the inputs."""
    if task in PARTS:
        return split_part(loaded, task)
    model = cast("PreTrainedModel", loaded.module.eval())
    module, takes, layers = wrap_with_cache(model, past=task != PREFILL)
    names = [parameter.name for parameter in takes]
    if task == MERGED:
        known = inputs_of_one_graph(loaded.known, names, layers, loaded.positions)
    else:
        window = config_number(model.config, "sliding_window")
        past = task == WITH_PAST
        known = cache_inputs(loaded.known, names, layers, past=past, window=window)
    return replace(loaded, module=module, takes=takes, known=known)


def _disable_cache(model: PreTrainedModel) -> bool:
    """Disable the cache in all configs; return whether the model would use one.

    An encoder's `use_cache` has no effect.
    """
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    kept = [one for one in configs.values() if getattr(one, "use_cache", False)]
    for one in kept:
        one.use_cache = False
    return any(
        getattr(one, "is_encoder_decoder", False) or getattr(one, "is_decoder", True)
        for one in kept
    )


def _count_reserved_positions(model: PreTrainedModel) -> int:
    """Return how many positions are reserved: those up to the padding's, as in RoBERTa."""
    places = [part for name, part in model.named_modules() if name.endswith("position_embeddings")]
    padding = [index for p in places if isinstance(index := getattr(p, "padding_idx", None), int)]
    return max(padding) + 1 if padding else 0


def _read_preprocessor(folder: Path) -> dict[str, object]:
    """Read the folder's preprocessor config; only sizes are used."""
    try:
        found = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _read_config(folder: Path) -> dict[str, object]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{folder / 'config.json'} is not JSON: {first_line(error)}",
            hint="download the folder again",
        ) from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise CheckpointError(
            f"{folder / 'config.json'} has no model_type: it is not from transformers",
            hint=Hint(
                "add ",
                Option("model", "PKG.MOD:FACTORY"),
                " to load the weights into your own module",
            ),
            option="model",
        )
    return config


def _check_installed(folder: Path) -> None:
    try:
        import transformers  # noqa: F401 - only to see whether it is installed
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingError(
            f"{folder} is a Hugging Face folder, and transformers is not installed",
            hint=hint_for_extra("hf"),
        ) from error


def _from_pretrained(
    kind: type[PreTrainedModel], folder: Path, read: Path
) -> tuple[PreTrainedModel, dict[str, set[object]]]:
    """Load the class from `read`, which is the folder or its copy in float32."""
    import torch

    try:
        with silence_transformers(), use_fixed_seed():
            loaded: object = kind.from_pretrained(
                read,
                dtype=torch.float32,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported and handled here
            )
    except Exception as error:  # the edge of transformers: its readers raise anything at garbage
        raise CheckpointError(
            f"transformers cannot load {folder}: "
            f"{first_line(error).replace(str(read), str(folder))}",
            hint="try transformers' AutoModel.from_pretrained in Python",
            code=ErrorCode.CORRUPT_FILE,
        ) from error
    return cast("tuple[PreTrainedModel, dict[str, set[object]]]", loaded)


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Disable progress bars and load reports; notes and errors replace them."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call] # untyped in transformers
    logging.disable_progress_bar()  # type: ignore[no-untyped-call] # as above
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call] # as above


_MisfitError: TypeAlias = Callable[[Sequence[str], Sequence[str]], CheckpointError]


def _make_misfit_error(
    kind: type[PreTrainedModel], folder: Path, config: dict[str, object], task: str | None
) -> _MisfitError:
    """Return a function that makes the error for missing names and parts that do not fit.

    The class is from config.json, or from the user's task; for a task, the error differs if only
    weights of the head are missing.
    """
    base = str(getattr(kind, "base_model_prefix", "") or "")
    body = f"{base}." if base and re.search("For|Head", kind.__name__) else ""
    named = config.get("architectures")
    saved = "without naming a class"
    if isinstance(named, list) and named:
        saved = f"as {', '.join(map(str, named))}"

    def make_error(missing: Sequence[str], parts: Sequence[str]) -> CheckpointError:
        of_body = [name for name in missing if name.startswith(body) and _POOLER not in name]
        summary = f"{folder} does not fit {kind.__name__}, the class of task {task}"
        hint = (
            f"it was saved {saved}: give a task that it has weights for, or add --no-strict for "
            "random ones"
        )
        if task is None:
            summary = f"{folder} does not fit the class its config names"
            hint = (
                "correct 'architectures' in config.json, or add --no-strict to continue without "
                "them"
            )
        elif missing and len(parts) == 1 and not of_body:
            summary = f"{folder} has no weights for the head of task {task} ({kind.__name__})"
        return CheckpointError(
            f"{summary}: {'; '.join(parts)}", hint=hint, code=ErrorCode.MISFIT_WEIGHTS
        )

    return make_error


def _load_notes(report: dict[str, set[object]], misfit: _MisfitError, *, strict: bool) -> list[str]:
    """Return notes on weights; missing and mismatched ones fail a strict load.

    Weights that the class does not use, such as a pre-training head, are common and only noted.
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
        raise misfit(missing, parts)
    if parts:
        kept = len(missing) + len(mismatched)
        parts.append(f"{kept} tensors keep random values (seed 0)")
    if unused:
        parts.append(f"{len(unused)} unused: {', '.join(unused[:10])}")
    return parts


# Which installed package an import broke on: what transformers says of it names another.


# Packages that are never the broken one.
_INTERMEDIARIES = frozenset({"transformers", "torch", "importlib", "modelc"})
_TORCH_COMPANIONS = ("torchvision", "torchaudio")  # compiled for one release of torch
_SITE_FOLDERS = ("site-packages", "dist-packages")


@contextmanager
def blame_broken_package(what: str) -> Iterator[None]:
    """Turn an import error into one that names the broken package.

    Errors without another package pass through.

    Raises:
        MissingError: a package that `what` imports cannot be imported.
    """
    try:
        yield
    except Exception as error:
        package = find_broken_package(error)
        if not package:
            raise
        inner = _error_chain(error)[-1]
        raise MissingError(
            f"{what} requires {_with_version(package)}, which cannot be imported: "
            f"{type(inner).__name__}: {first_line(inner)}",
            hint=_repair_command(package),
        ) from error


def find_broken_package(error: BaseException) -> str:
    """Return the top-level package whose import raised the innermost error of a chain.

    Empty if that is only transformers or torch, or nothing was being imported.
    """
    inner = _error_chain(error)[-1]
    if isinstance(inner, ModuleNotFoundError) and inner.name:
        return (
            "" if inner.name.partition(".")[0] in _INTERMEDIARIES else inner.name.partition(".")[0]
        )
    frames = traceback.extract_tb(inner.__traceback__)
    if not any(frame.name == "<module>" for frame in frames):
        return ""
    packages = [name for frame in frames if (name := _package_of(frame.filename))]
    return next((name for name in reversed(packages) if name not in _INTERMEDIARIES), "")


def _error_chain(error: BaseException) -> list[BaseException]:
    """Return the error with its causes and contexts, the innermost last."""
    found = [error]
    while (inner := found[-1].__cause__ or found[-1].__context__) is not None:
        if inner in found:
            break
        found.append(inner)
    return found


def _package_of(file: str) -> str:
    """Return the top-level package of a file."""
    parts = PurePath(file).parts
    for place in _SITE_FOLDERS:
        if place in parts:
            return parts[parts.index(place) + 1].removesuffix(".py")
    folder = Path(file).parent
    top = ""
    while (folder / "__init__.py").is_file():
        top, folder = folder.name, folder.parent
    return top


def _with_version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return package


def _repair_command(package: str) -> str:
    """Return the command that reinstalls a package, compatible with the installed torch."""
    held = ""
    if package in _TORCH_COMPANIONS:
        held = f" torch=={metadata.version('torch').partition('+')[0]}"
    return f"pip uninstall -y {package} && pip install {package}{held}; modelc doctor shows all"
