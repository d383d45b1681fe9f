"""Identify a checkpoint at a path: kind, files, digest, change guard. Loads no framework."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import (
    CheckpointError,
    ConsentError,
    ErrorCode,
    Hint,
    Option,
    UsageError,
    nearest_files,
    nearest_names,
    refuse_pipe,
)
from ..core.hub_ids import HUB_SCHEME
from ..core.records import Checkpoint, joint_digest, record_of
from ..core.untrusted_files import is_path_inside
from .sniff import HUGGINGFACE, SAFETENSORS, STATE_DICT, find_pickled_class, sniff_kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INDEX_SUFFIXES = {".safetensors.index.json": SAFETENSORS, ".bin.index.json": STATE_DICT}
_WEIGHT_PATTERNS = (  # in a folder, the first pattern that exactly one file matches
    "*.safetensors.index.json",
    "model.safetensors",
    "*.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_SHARD = re.compile(r"-\d{5}-of-(\d{5})\.safetensors$", re.ASCII)
_ADAPTER = "adapter_config.json"  # of peft
_OWNED = 2  # parts of `owner/model`
_HUB_ADDRESS = re.compile(r"(?:hf:|https?:/huggingface\.co/)([^/]+/[^/]+)")  # // is / in a path
WEIGHTS = "weights"
CONFIG = "config"


def identify(  # noqa: PLR0913 - what a Checkpoint says, as the user gave it
    path: Path,
    *,
    factory: str | None,
    factory_args: Mapping[str, str],
    strict: bool = True,
    allow_pickle: bool = False,
    method: str | None = None,
    drop_outputs: Sequence[str] = (),
    weights_key: str | None = None,
    preprocess: str = "",
    preprocess_input: str = "",
    postprocess: str = "",
) -> Checkpoint:
    """Identify the checkpoint at `path`, and hash its files.

    Raises:
        UsageError: `path` does not exist, or the kind requires a factory.
        ConsentError: it is a pickled module, without consent.
        CheckpointError: it is not a checkpoint, or corrupt.
    """
    kind, files = check_openable(path, factory, allow_pickle=allow_pickle)
    root = path if path.is_dir() else path.parent
    records = tuple(
        record_of(
            file,
            name=file.relative_to(root).as_posix(),
            role=CONFIG if file.suffix == ".json" else WEIGHTS,
        )
        for file in files
    )
    return Checkpoint(
        path=str(path),
        kind=kind,
        digest=joint_digest(records),
        files=records,
        factory=factory,
        factory_args=dict(factory_args),
        strict=strict,
        allow_pickle=allow_pickle,
        method=None if method == "forward" else method,
        drop_outputs=tuple(dict.fromkeys(drop_outputs)),
        weights_key=weights_key,
        preprocess=preprocess,
        preprocess_input=preprocess_input,
        postprocess=postprocess,
    )


def check_openable(
    path: Path, factory: str | None, *, allow_pickle: bool = False
) -> tuple[str, list[Path]]:
    """Return the kind and the files of a checkpoint, without hashing.

    Raises:
        UsageError: `path` does not exist, or the kind requires a factory.
        ConsentError: it is a pickled module, without consent.
        CheckpointError: it is not a checkpoint, or corrupt.
    """
    if not path.exists():
        raise _no_such_file_error(path)
    refuse_pipe(path)
    if factory is None and (path / _ADAPTER).is_file():
        raise CheckpointError(
            f"{path} has an adapter ({_ADAPTER}), as LoRA, that is not merged into the weights",
            hint="merge it with peft: PeftModel.from_pretrained(base, adapter).merge_and_unload()"
            ".save_pretrained(FOLDER), and convert FOLDER; for the base alone, remove the adapter",
            code=ErrorCode.UNSUPPORTED,
        )
    kind, files = find_contents(path, with_factory=factory is not None)
    if factory is None and kind in (STATE_DICT, SAFETENSORS) and not allow_pickle:
        raise needs_factory_error(path, kind)
    return kind, files


def weight_files(checkpoint: Checkpoint) -> tuple[Path, ...]:
    """Return the files with weights of a checkpoint."""
    path = Path(checkpoint.path)
    root = path if path.is_dir() else path.parent
    return tuple(root / file.name for file in checkpoint.files if file.role == WEIGHTS)


def find_contents(path: Path, *, with_factory: bool) -> tuple[str, list[Path]]:
    """Return the kind and the files; a factory takes precedence over a folder's config.json.

    Raises:
        CheckpointError: it is not a checkpoint, or corrupt.
    """
    if path.is_dir():
        kind, files = _find_weights(path)
        config = path / "config.json"
        if config.is_file() and not with_factory:
            return HUGGINGFACE, [config, *files]
        return kind, files
    for suffix, kind in INDEX_SUFFIXES.items():
        if path.name.endswith(suffix):
            return kind, [path, *_list_shards(path, kind)]
    return sniff_kind(path), [path]


def _find_weights(folder: Path) -> tuple[str, list[Path]]:
    """Find the weights of a folder: one index and its shards, or one file."""
    for pattern in _WEIGHT_PATTERNS:
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            _check_is_whole(found[0])
            return find_contents(found[0], with_factory=True)
    held = ", ".join(sorted(entry.name for entry in folder.iterdir())[:5])
    raise CheckpointError(
        f"{folder} has neither config.json with weights nor an index of shards, but {held}"
        if held
        else f"{folder} is an empty folder",
        hint="use the path of the weights file",
        code=ErrorCode.NOT_A_CHECKPOINT,
    )


def _check_is_whole(file: Path) -> None:
    """Check that the only weights of a folder are not one shard of several."""
    shard = _SHARD.search(file.name)
    if shard is not None and int(shard.group(1)) > 1:
        raise CheckpointError(
            f"{file} is one of {int(shard.group(1))} shards, and the others and their index are "
            "not in its folder",
            hint="download the whole folder again",
            code=ErrorCode.NOT_FOUND,
        )


def _list_shards(index: Path, kind: str) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        shards = [index.parent / name for name in names]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{index} is not an index of shards: it has no weight_map",
            hint="download the index again",
            code=ErrorCode.CORRUPT_FILE,
        ) from error
    for name, shard in zip(names, shards, strict=True):
        if not is_path_inside(name) or not _file_exists(shard):
            raise CheckpointError(
                f"{index} lists the shard {name!r}, which is not in its folder",
                hint="download every shard into the index's folder",
                code=ErrorCode.NOT_FOUND,
            )
        if sniff_kind(shard) != kind:
            raise CheckpointError(
                f"{index} lists the shard {name!r}, which is {sniff_kind(shard)}, not {kind}",
                hint="download every shard again",
                code=ErrorCode.CORRUPT_FILE,
            )
    return shards


def _file_exists(path: Path) -> bool:
    """Whether the file exists; its name may be invalid."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _no_such_file_error(path: Path) -> UsageError:
    if _is_hub_name(path):
        return UsageError(
            f"no such file or folder: {path}",
            hint=_hub_hint(path),
        )
    folder = path.parent
    near = nearest_files(path, 3)
    if near:
        hint = f"did you mean {' or '.join(map(str, near))}?"
    elif folder.is_dir():
        hint = f"list the folder: ls {folder}"
    else:
        hint = f"the folder {folder} does not exist"
    return UsageError(f"no such checkpoint: {path}", hint=hint, code=ErrorCode.NOT_FOUND)


def _hub_hint(path: Path) -> str:
    address = _HUB_ADDRESS.match(path.as_posix())
    if address or len(path.parts) == _OWNED:
        model = address[1] if address else path.as_posix()
        return f"for a model on the Hugging Face Hub, write {HUB_SCHEME}{model}"
    name = "NAME" if HUB_SCHEME.startswith(str(path)) else str(path).removeprefix("hf:")
    return f"for a model on the Hugging Face Hub, write {HUB_SCHEME}ORG/{name}"


def _is_hub_name(path: Path) -> bool:
    """Whether the path looks like the name of a model on a hub: `bert-base`, `google/vit-base`."""
    if _HUB_ADDRESS.match(path.as_posix()):
        return True
    if len(path.parts) == 1:
        near = nearest_names(path.name, (entry.name for entry in path.parent.iterdir()))
        return not path.suffix and not near
    return len(path.parts) == _OWNED and not path.suffix and not path.parent.exists()


def needs_factory_error(path: Path, kind: str) -> UsageError | ConsentError:
    """Return the error for weights without a factory."""
    whole = find_pickled_class(path) if kind == STATE_DICT and path.is_file() else None
    if whole is not None:
        return ConsentError(
            f"{path} contains a pickled {whole}; loading it runs code in the file",
            hint=Hint("add ", Option("allow-pickle"), " if you trust its author"),
            option="allow-pickle",
            code=ErrorCode.CONSENT_REQUIRED,
        )
    return UsageError(
        f"{path} contains only weights ({kind}): --model PKG.MOD:FACTORY is required",
        hint=Hint("add ", Option("model"), " with the function or class that builds the module"),
        option="model",
        code=ErrorCode.FACTORY_REQUIRED,
    )


# Whether a checkpoint stays as it is: mapped weights are read from it all through a run.


@dataclass(frozen=True, kw_only=True)
class ChangeGuard:
    """Detects writes to memory-mapped files by device, inode, size and modification time."""

    files: tuple[tuple[Path, tuple[int, int, int, int]], ...]

    def check(self) -> None:
        """Check that nothing wrote to the files since.

        A replaced file is harmless: the mapping is of the old one.

        Raises:
            CheckpointError: a file was written to; artifacts may mix both versions.
        """
        for path, before in self.files:
            now = _file_state(path)
            if now is not None and now[:2] == before[:2] and now != before:
                raise CheckpointError(
                    f"{path} changed during the run",
                    hint="run again without writing to the file, or export a copy of it",
                )


NO_GUARD = ChangeGuard(files=())  # checks nothing


def make_change_guard(checkpoint: Checkpoint) -> ChangeGuard:
    """Return a guard of the existing files of a checkpoint."""
    path = Path(checkpoint.path)
    root = path if path.is_dir() else path.parent
    states = ((root / file.name, _file_state(root / file.name)) for file in checkpoint.files)
    return ChangeGuard(files=tuple((path, state) for path, state in states if state is not None))


def _file_state(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
