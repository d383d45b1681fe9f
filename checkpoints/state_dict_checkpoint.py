"""Load files of torch.save: a state dict, or, with consent, a pickled module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.call import parameters_of
from ..core.errors import CheckpointError, ConsentError, ErrorCode, Hint, Option, first_line
from ..core.torch_file import load_torch_file, read_torch_file, unreadable_error
from .checkpoint_files import needs_factory_error, weight_files
from .factory import call_factory, check_acyclic, wrap_built_module
from .loaded_module import HPARAMS, LoadedModule, find_hyper_parameters, is_lightning
from .sniff import PICKLE, SAFETENSORS, STATE_DICT
from .torchao_weights import is_flattened, unflatten
from .user_code import make_user_code_importable
from .weight_loading import ModuleFiller, find_renaming
from .weight_sets import (
    TOP_KEY,
    USUAL_KEYS,
    WeightSet,
    choose_weight_set,
    find_states,
    make_weight_set,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import torch

    from ..core.records import Checkpoint


_NO_CLASS = re.compile(r"Can't get attribute '(?P<name>[\w.]+)' on <module '(?P<module>[\w.]+)'")


def load_state_dict_file(checkpoint: Checkpoint) -> LoadedModule:
    """Load the weights into the module that the factory builds."""
    from torch import nn

    files = weight_files(checkpoint)
    if len(files) > 1:
        return _load_shards(checkpoint, files)
    (path,) = files
    found, kind = _read_file(path, allow_pickle=checkpoint.allow_pickle)
    if isinstance(found, nn.Module):
        check_acyclic(found)
    if isinstance(found, nn.Module) and checkpoint.factory is None:
        return LoadedModule(kind=kind, module=found, takes=parameters_of(found.forward))
    if isinstance(found, nn.Module):
        found = found.state_dict()
    if checkpoint.factory is None:
        raise needs_factory_error(path, STATE_DICT)
    states = find_states(found) or {TOP_KEY: _empty_state(found, path)}
    made = call_factory(checkpoint.factory, checkpoint.factory_args, find_hyper_parameters(found))
    chosen, set_notes = choose_weight_set(
        [make_weight_set(key, state) for key, state in states.items()], made.module,
        key=checkpoint.weights_key, strict=checkpoint.strict, path=str(path),
    )  # fmt: skip
    filling = _fill_module(made.module, chosen, states)
    notes = (*set_notes, *made.notes, *filling.finish(str(path), strict=checkpoint.strict))
    return wrap_built_module(made.module, kind=kind, notes=notes)


def _fill_module(
    module: torch.nn.Module, chosen: WeightSet, states: Mapping[str, Mapping[str, object]]
) -> ModuleFiller:
    """Fill the module with a set, and with entries of its state dict that are not tensors."""
    import torch

    within = max((key for key in states if chosen.is_in(key)), key=len)
    state = states[within]
    entries = chosen.within({str(key): value for key, value in state.items()})
    tensors = {name: one for name, one in entries.items() if isinstance(one, torch.Tensor)}
    filling = ModuleFiller(
        module,
        find_renaming(tensors, module.state_dict()),
        versions=chosen.within(getattr(state, "_metadata", None) or {}) or None,
        others={key: value for key, value in entries.items() if key not in tensors},
    )
    filling.add(tensors)
    return filling


def _load_shards(checkpoint: Checkpoint, files: Sequence[Path]) -> LoadedModule:
    """Load several memory-mapped files of weights into the factory's module."""
    shards = [_read_shard(file) for file in files]
    together = {key: one for shard in shards for key, one in shard.items()}
    return _fill_in_portions(checkpoint, STATE_DICT, make_weight_set(TOP_KEY, together), shards)


def _fill_in_portions(
    checkpoint: Checkpoint,
    kind: str,
    weights: WeightSet,
    portions: Iterable[Mapping[str, torch.Tensor]],
) -> LoadedModule:
    """Build the module, and fill it with one portion of its weights after the other."""
    if checkpoint.factory is None:
        raise needs_factory_error(Path(checkpoint.path), kind)
    made = call_factory(checkpoint.factory, checkpoint.factory_args)
    chosen, set_notes = choose_weight_set(
        [weights], made.module, key=checkpoint.weights_key, strict=checkpoint.strict,
        path=checkpoint.path,
    )  # fmt: skip
    rename = find_renaming(chosen.shapes, made.module.state_dict())
    filling = ModuleFiller(module=made.module, rename=rename)
    for portion in portions:
        filling.add(chosen.within(portion))
    notes = (*set_notes, *made.notes, *filling.finish(checkpoint.path, strict=checkpoint.strict))
    return wrap_built_module(made.module, kind=kind, notes=notes)


def _read_file(path: Path, *, allow_pickle: bool) -> tuple[object, str]:
    """Return the loaded object, and whether it had to be unpickled."""
    try:
        return read_torch_file(path, may_allow=True), STATE_DICT
    except ConsentError as refusal:
        if not allow_pickle and is_lightning(path):
            raise _consent_error(refusal) from refusal
        if not allow_pickle:
            raise
    with make_user_code_importable():
        try:
            return load_torch_file(path, weights_only=False), PICKLE
        except Exception as error:
            raise _no_class_error(path, error) or unreadable_error(path, error) from error


def _no_class_error(path: Path, error: Exception) -> CheckpointError | None:
    """Return the error for a pickle with missing classes; None for other errors."""
    found = _NO_CLASS.search(str(error))
    if found is not None and found["module"] == "__main__":
        return CheckpointError(
            f"{path} requires the class {found['name']} of the script that saved it",
            hint=Hint(
                "use torch.save(model.state_dict(), ...) in that script, and name the class with ",
                Option("model", f"PKG.MOD:{found['name']}"),
            ),
            option="model",
        )
    if found is not None:
        return CheckpointError(
            f"{path} requires the class {found['name']}, which {found['module']} does not have",
            hint=f"add it to {found['module']}, or save module.state_dict() instead",
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        file = error.name.replace(".", "/")
        return CheckpointError(
            f"{path} requires the module {error.name}, which is not installed",
            hint=f"run modelc in the folder that contains {file}.py, or install it",
        )
    return None


def _consent_error(refusal: ConsentError) -> ConsentError:
    return ConsentError(
        f"{refusal.message} (a Lightning checkpoint, whose {HPARAMS} or callbacks contain objects)",
        hint=Hint(
            "save only its 'state_dict' with torch.save on the training machine, or add ",
            Option("allow-pickle"),
            " if you trust its author: loading runs code in the file",
        ),
        option="allow-pickle",
    )


def _read_shard(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of one shard."""
    import torch

    found = read_torch_file(path)
    states = find_states(found) or {TOP_KEY: _empty_state(found, path)}
    state = next(iter(states.values()))
    return {str(k): v for k, v in state.items() if isinstance(v, torch.Tensor)}


def _empty_state(found: object, path: Path) -> dict[str, object]:
    """Return the empty state dict of a module without parameters.

    Raises:
        CheckpointError: the file contains something else.
    """
    if isinstance(found, Mapping):
        states = [found[key] for key in USUAL_KEYS if isinstance(found.get(key), Mapping)]
        if not (states or [found])[0]:
            return {}
    keys = ", ".join(map(repr, list(found)[:8])) if isinstance(found, Mapping) else "no keys"
    raise CheckpointError(
        f"{path} contains a {type(found).__name__} with {keys}, not a state dict",
        hint="save module.state_dict() instead",
        code=ErrorCode.NOT_A_CHECKPOINT,
    )


# safetensors files, one or several shards, in portions.

PORTION_BYTES = 256 * 2**20  # bytes of a file mapped at once


def load_safetensors(checkpoint: Checkpoint) -> LoadedModule:
    """Build the module and fill it; at most one portion is in memory twice."""
    files = weight_files(checkpoint)
    portions = (portion for file in files for portion in read_portions(file))
    return _fill_in_portions(checkpoint, SAFETENSORS, read_weight_set(files), portions)


def read_weight_set(files: Sequence[Path]) -> WeightSet:
    """Return the weights of all files; only names and shapes are read."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    places: dict[str, Path] = {}
    joined: dict[str, torch.Tensor] = {}
    for path in files:
        with _translate_errors(path), safe_open(path, framework="pt") as file:
            if is_flattened(file.metadata()):
                joined |= next(read_portions(path))
                continue
            for key in file.keys():  # noqa: SIM118 - not a dict
                shapes[key] = tuple(file.get_slice(key).get_shape())
                places[key] = path
    shapes |= {key: tuple(tensor.shape) for key, tensor in joined.items()}

    def read(name: str) -> torch.Tensor:
        if name in joined:
            return joined[name]
        with _translate_errors(places[name]), safe_open(places[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
            return tensor

    return WeightSet(key=TOP_KEY, shapes=shapes, read=read)


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Translate errors of the reader, which raises anything for changed files or new dtypes."""
    try:
        yield
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be read: {first_line(error)}",
            hint="download the file again",
            code=ErrorCode.CORRUPT_FILE,
        ) from error


def read_portions(path: Path, *, size: int = PORTION_BYTES) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the tensors of a file in portions of about `size` bytes, each with its own mapping."""
    from safetensors import safe_open

    with _translate_errors(path), safe_open(path, framework="pt") as file:
        keys = list(file.keys())
        metadata = file.metadata()
        whole = {key: file.get_tensor(key) for key in keys if is_flattened(metadata)}
    if whole:
        yield unflatten(path, whole, metadata or {})
        return
    while keys:
        portion: dict[str, torch.Tensor] = {}
        held = 0
        with _translate_errors(path), safe_open(path, framework="pt") as file:
            while keys and held < size:
                key = keys.pop(0)
                portion[key] = file.get_tensor(key)
                held += portion[key].nbytes
        yield portion
