"""Files that torch.save wrote: a state dict, or a pickled module where that is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..core.call import parameters_of
from ..core.errors import CheckpointError, UsageError
from ..core.torch_file import read_safely, torch_load, unreadable
from .factory import built, check_acyclic
from .factory_inputs import loaded_from
from .hyper_parameters import KEY, is_lightning, recorded_in
from .identify import weight_files
from .loaded import Loaded
from .sniff import PICKLE, STATE_DICT
from .user_code import user_code_importable
from .weights import Filling, renaming

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from ..core.records import Checkpoint

NESTED = ("state_dict", "model_state_dict", "model")  # Lightning; the tutorials; many trainers


def load(checkpoint: Checkpoint) -> Loaded:
    """Read the weights and fill the module that the factory builds."""
    from torch import nn

    files = weight_files(checkpoint)
    if len(files) > 1:
        return _load_shards(checkpoint, files)
    (path,) = files
    found, kind = _read(path, allow_pickle=checkpoint.allow_pickle)
    if isinstance(found, nn.Module):
        check_acyclic(found)
    if isinstance(found, nn.Module) and checkpoint.factory is None:
        return Loaded(kind=kind, module=found, takes=parameters_of(found.forward))
    if isinstance(found, nn.Module):
        found = found.state_dict()
    if checkpoint.factory is None:
        raise _needs_factory(path)
    tensors, notes = _tensors(found, path)
    made = built(checkpoint.factory, checkpoint.factory_args, recorded_in(found))
    state, _ = _state(found)
    filling = Filling(
        made.module,
        renaming(tensors, made.module.state_dict()),
        versions=getattr(state, "_metadata", None),
        others={key: value for key, value in state.items() if key not in tensors},
    )
    filling.add(tensors)
    notes = (*notes, *made.notes, *filling.finish(str(path), strict=checkpoint.strict))
    return loaded_from(made.module, kind=kind, notes=notes)


def _load_shards(checkpoint: Checkpoint, files: Sequence[Path]) -> Loaded:
    """Fill the factory's module from several files, of weights alone; they are mapped, not read."""
    if checkpoint.factory is None:
        raise _needs_factory(checkpoint.path)
    shards = [_tensors(read_safely(file), file)[0] for file in files]
    made = built(checkpoint.factory, checkpoint.factory_args)
    keys = [key for shard in shards for key in shard]
    filling = Filling(module=made.module, rename=renaming(keys, made.module.state_dict()))
    for shard in shards:
        filling.add(shard)
    notes = (*made.notes, *filling.finish(checkpoint.path, strict=checkpoint.strict))
    return loaded_from(made.module, kind=STATE_DICT, notes=notes)


def _needs_factory(path: Path | str) -> UsageError:
    return UsageError(
        f"{path} holds weights alone: --model PKG.MOD:FACTORY is needed",
        hint="add --model with the function or class that builds the module",
    )


def _read(path: Path, *, allow_pickle: bool) -> tuple[object, str]:
    """What the file holds, and whether it had to be unpickled."""
    try:
        return read_safely(path), STATE_DICT
    except CheckpointError as refusal:
        if not allow_pickle and is_lightning(path):
            raise _with_objects(refusal) from refusal
        if not allow_pickle or "refused" not in refusal.message:
            raise
    with user_code_importable():
        try:
            return torch_load(path, weights_only=False), PICKLE
        except Exception as error:
            raise unreadable(path, error) from error


def _with_objects(refusal: CheckpointError) -> CheckpointError:
    return CheckpointError(
        f"{refusal.message} (a Lightning checkpoint, whose {KEY} or callbacks hold objects)",
        hint="save torch.load(...)['state_dict'] alone with torch.save where it was made, or add "
        "--allow-pickle, only if you trust its maker: it runs code of theirs",
    )


def _state(found: object) -> tuple[Mapping[str, object], tuple[str, ...]]:
    """The entries of the state dict, and a note on the key that it was under."""
    if not isinstance(found, Mapping):
        return {}, ()
    for key in NESTED:
        if isinstance(found.get(key), Mapping):
            return found[key], (f"the weights were under the key {key!r}",)
    return found, ()


def _tensors(found: object, path: Path) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """The state dict in what was read: at the top, or under a well-known key."""
    import torch

    state, notes = _state(found)
    tensors = {str(k): v for k, v in state.items() if isinstance(v, torch.Tensor)}
    if tensors or (isinstance(found, Mapping) and not state):  # without parameters it is empty
        return tensors, notes
    keys = ", ".join(map(repr, list(found)[:8])) if isinstance(found, Mapping) else "no keys"
    raise CheckpointError(
        f"{path} holds no state dict but a {type(found).__name__} with {keys}",
        hint="save module.state_dict() instead",
    )
