"""Choose which files of a repository on the Hugging Face Hub make a checkpoint, by their names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import PurePosixPath

from ..core.errors import (
    CheckpointError,
    ConsentError,
    ErrorCode,
    Hint,
    Option,
    UsageError,
    is_file_name,
    join_some,
    nearest_names,
)
from ..core.hub_ids import HubId
from ..core.untrusted_files import is_path_inside

_INDEX, _SAFETENSORS = ".index.json", ".safetensors"
_PICKLED_FILE = "pytorch_model.bin"
# Files that may be pickles or programs; those of other frameworks are never downloaded.
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pt2", ".ts")
_TEXT_SUFFIXES = (".json", ".jinja", ".model", ".tiktoken")  # configs and tokenizers
_TEXT_FILES = ("vocab.txt", "merges.txt")
_MAX_NAMED = 4  # files in a message


def select_files(names: Collection[str], hub: HubId, *, allow_pickle: bool) -> tuple[str, ...]:
    """Return the files to read: one set of weights, configs and the tokenizer; sorted.

    Safetensors come before pickles. Code, and weights of other frameworks, are left out.

    Args:
        names: all files of the repository.
        hub: the repository, and the folder or the file in it.
        allow_pickle: whether files that may be pickles or programs are taken.

    Raises:
        CheckpointError: a name leads out of the repository, or there are no weights.
        ConsentError: there are only pickles, without consent.
        UsageError: the place does not exist, or has several sets of weights.
    """
    for name in names:
        check_file_name(name, hub)
    if hub.place in names:
        return _select_single(names, hub, allow_pickle=allow_pickle)
    folder = f"{hub.place}/" if hub.place else ""
    inside = [name.removeprefix(folder) for name in names if name.startswith(folder)]
    here = [name for name in inside if "/" not in name]
    if not here:
        raise _no_such_place_error(names, hub)
    weights = _choose_weights(here, hub, allow_pickle=allow_pickle)
    chosen = {*weights, *filter(_is_text, here)}
    return tuple(sorted(folder + name for name in chosen))


def check_file_name(name: str, hub: HubId) -> None:
    """Check that a file of a repository stays below its folder on every system.

    Raises:
        CheckpointError: it does not.
    """
    parts = name.split("/")
    odd = set(name) & set("\\:") or not name.isprintable() or {"", "."} & set(parts)
    if odd or not is_path_inside(name) or not all(map(is_file_name, parts)):
        raise CheckpointError(
            f"{hub.id} lists the file {name[:80]!r}, which is not a path inside of it",
            hint="use another repository: this one may be malicious",
            code=ErrorCode.UNSAFE_PATH,
        )


def _select_single(names: Collection[str], hub: HubId, *, allow_pickle: bool) -> tuple[str, ...]:
    """Return one file, or an index with its shards."""
    path = PurePosixPath(hub.place)
    here = [name for name in names if PurePosixPath(name).parent == path.parent]
    if path.name.endswith(_INDEX):
        _check_consent([path.name], hub, allow_pickle=allow_pickle)
        return tuple(sorted({hub.place, *_shards_of(hub.place, here)}))
    if path.suffix != _SAFETENSORS and path.suffix not in _PICKLE_SUFFIXES:
        raise CheckpointError(
            f"{hub.id} is not a file of PyTorch's weights",
            hint=f"give the repository, or one of its files: {HubId(repo=hub.repo).id}",
            code=ErrorCode.NOT_A_CHECKPOINT,
        )
    _check_consent([path.name], hub, allow_pickle=allow_pickle)
    return (hub.place,)


def _choose_weights(here: Sequence[str], hub: HubId, *, allow_pickle: bool) -> tuple[str, ...]:
    """Return the weights among the files of a folder, as `find_contents` takes them.

    Raises:
        CheckpointError: there are none.
        ConsentError: they are pickles, without consent.
        UsageError: there are several.
    """
    indexes = [name for name in here if name.endswith(_SAFETENSORS + _INDEX)]
    if len(indexes) == 1:
        return (indexes[0], *_shards_of(indexes[0], here))
    if f"model{_SAFETENSORS}" in here:
        return (f"model{_SAFETENSORS}",)
    single = [name for name in here if name.endswith(_SAFETENSORS)]
    if len(single) == 1:
        return (single[0],)
    if single:
        raise _several_error(single, hub)
    pickled = _find_pickles(here)
    _check_consent(pickled, hub, allow_pickle=allow_pickle)
    if pickled[0] == _PICKLED_FILE:
        return (_PICKLED_FILE,)
    if pickled[0].endswith(_INDEX):
        return (pickled[0], *_shards_of(pickled[0], here))
    if pickled[0]:
        raise _several_error(pickled, hub)
    raise CheckpointError(
        f"{hub.id} has no weights of PyTorch, but {join_some(sorted(here), _MAX_NAMED)}",
        hint="give a repository, or a folder in it, with safetensors: hf://org/name/folder",
        code=ErrorCode.NOT_A_CHECKPOINT,
    )


def _find_pickles(here: Sequence[str]) -> list[str]:
    """Return the pickled weights, those of transformers first; one empty name if there are none."""
    known = (_PICKLED_FILE, _PICKLED_FILE + _INDEX)
    first = [name for name in known if name in here]
    others = (name for name in here if name.endswith(_PICKLE_SUFFIXES) and name not in first)
    return [*first, *others] or [""]


def _shards_of(index: str, here: Sequence[str]) -> list[str]:
    """Return the shards of an index by their names: `model-00001-of-00002.safetensors`."""
    path = PurePosixPath(index.removesuffix(_INDEX))
    stem = f"{index.removesuffix(_INDEX).removesuffix(path.suffix)}-"
    return [name for name in here if name.startswith(stem) and name.endswith(path.suffix)]


def _is_text(name: str) -> bool:
    """Whether it is a config or a part of a tokenizer, not an index of weights."""
    text = name.endswith(_TEXT_SUFFIXES) or name in _TEXT_FILES
    return text and not name.endswith(_INDEX)


def _check_consent(names: Sequence[str], hub: HubId, *, allow_pickle: bool) -> None:
    pickled = [one for one in names if one.removesuffix(_INDEX).endswith(_PICKLE_SUFFIXES)]
    if pickled and not allow_pickle:
        raise ConsentError(
            f"{hub.id}: {join_some(pickled, _MAX_NAMED)} may be a pickle, which can run code when "
            "it is read, and is not downloaded",
            hint=Hint("add ", Option("allow-pickle"), " if you trust its author"),
            option="allow-pickle",
            code=ErrorCode.CONSENT_REQUIRED,
        )


def _several_error(names: Sequence[str], hub: HubId) -> UsageError:
    one = f"{hub.id}/{sorted(names)[0]}"
    return UsageError(
        f"{hub.id} has several sets of weights: {join_some(sorted(names), _MAX_NAMED)}",
        hint=f"give the one to load, with its builder in --model: {one}",
        code=ErrorCode.AMBIGUOUS_WEIGHTS,
    )


def _no_such_place_error(names: Collection[str], hub: HubId) -> UsageError:
    whole = HubId(repo=hub.repo, revision=hub.revision)
    folders = {str(PurePosixPath(name).parent) for name in names} - {"."}
    hint = f"give the repository itself: {whole.id}"
    for near in nearest_names(hub.place, {*names, *folders}):
        hint = f"did you mean {HubId(repo=hub.repo, revision=hub.revision, place=near).id}?"
    return UsageError(
        f"{whole.id} has no file or folder {hub.place!r}" if hub.place else f"{whole.id} is empty",
        hint=hint,
        code=ErrorCode.NOT_FOUND,
    )
