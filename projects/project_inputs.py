"""The files of a project that a model needs on another host."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..calibration.label_files import find_companion_files
from ..checkpoints.checkpoint_files import find_contents
from ..core.errors import ErrorCode, ModelcError, UsageError
from ..core.records import FileRecord
from ..pipeline.cache.dependencies import list_declared_files
from ..pipeline.cache.file_digests import FileDigests
from ..pipeline.cache.remote_files import RemoteFiles
from ..pipeline.cache.stored_folder import StoredFolder
from ..pipeline.option_spec import ValueKind
from .project_records import ModelOrder, Setting
from .setting_keys import MODEL_KEYS

_CODE_SUFFIXES = (".py", ".toml", ".json", ".yaml", ".yml", ".txt", ".cfg", ".ini")
_MAX_CODE_BYTES = 1 << 20  # a larger file is data, which a setting or `depends` has to name
_ENVIRONMENT_MARK = "pyvenv.cfg"
_PATHS = (ValueKind.PATH, ValueKind.SOURCE)


class ProjectInputs:
    """Uploads the files that models need, each once."""

    def __init__(self, root: Path, out: Path, files: RemoteFiles, digests: FileDigests) -> None:
        self._root = root.resolve()
        self._out = out.resolve()
        self._files = files
        self._digests = digests
        self._stored: dict[Path, FileRecord] = {}
        self._code = sorted(self._iter_code(self._root))

    def store(self, model: ModelOrder, said: Iterable[Setting]) -> StoredFolder:
        """Upload the files of one model, and the code of the project.

        Raises:
            UsageError: a file lies outside of the project's folder.
        """
        found = {*self._code, *map(Path.resolve, self._iter_named(model, said))}
        return StoredFolder(name=model.name, files=tuple(map(self._record, sorted(found))))

    def _record(self, path: Path) -> FileRecord:
        if path not in self._stored:
            if not path.is_relative_to(self._root):
                raise UsageError(
                    f"{path} lies outside of the project, and workers get only what is inside",
                    hint=f"move it below {self._root}",
                    code=ErrorCode.UNSAFE_PATH,
                )
            name = path.relative_to(self._root).as_posix()
            size = path.stat().st_size
            file = FileRecord(name=name, size=size, sha256=self._digests.of(path), role="input")
            self._files.put_blob(path, file)
            self._stored[path] = file
        return self._stored[path]

    def _iter_code(self, folder: Path) -> Iterator[Path]:
        """Yield small text files, except of results, environments and hidden folders."""
        for entry in os.scandir(folder):
            path = Path(entry.path)
            if entry.name.startswith(".") or entry.name == "__pycache__" or path == self._out:
                continue
            if entry.is_dir():
                if not (path / _ENVIRONMENT_MARK).exists():
                    yield from self._iter_code(path)
            elif path.suffix in _CODE_SUFFIXES and entry.stat().st_size <= _MAX_CODE_BYTES:
                yield path

    def _iter_named(self, model: ModelOrder, said: Iterable[Setting]) -> Iterator[Path]:
        """Yield the files that settings name, and those that belong to them."""
        source = model.order.source
        for one in said:
            values = one.value if isinstance(one.value, tuple) else (one.value,)
            spec = MODEL_KEYS.get(one.path[0])
            for text in map(str, values) if spec is not None else ():
                path = Path(text)
                if spec is not None and (spec.kind in _PATHS or path.is_file()):
                    yield from _files_at(path)
                    yield from find_companion_files(path) if one.path[0] == "data" else ()
        if source.hub is None:  # a worker downloads the same commit itself
            try:
                kind = find_contents(source.checkpoint, with_factory=source.model is not None)
                yield from kind[1]
            except ModelcError:  # the worker reports it
                return
        for entry in model.order.depends:
            if not entry.startswith("env:"):
                yield from list_declared_files(entry, self._root)


def _files_at(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (one for one in path.rglob("*") if one.is_file())
    elif path.is_file():
        yield path
