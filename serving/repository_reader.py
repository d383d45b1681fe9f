"""Read a repository that anyone may have made: sizes limited, links kept inside."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..core.children.limits import ProcessLimits
from ..core.errors import first_line
from ..core.records import FileRecord, sha256_of
from ..core.untrusted_files import is_path_inside
from .describe_models import DescribeRequest, describe_models
from .repository_records import (
    VERSION_FILE,
    FaultCode,
    ModelInterface,
    PackedVersion,
    RepositoryFault,
)
from .version_folders import is_below, list_versions

MAX_RECORD_BYTES = 1 << 22
_MAX_MODELS = 10_000
_LINK = "{} is a link that leads out of the repository"
_LINK_HINT = "put a copy in its place"
_MAX_FILES = 1_000  # of one version that a record may name
_MAX_RECORDS = 100  # of newest versions in which the owner of a file is looked for


def _read_start(path: Path, most: int) -> bytes:
    with path.open("rb") as stream:
        return stream.read(most)


@dataclass(frozen=True, kw_only=True)
class CheckedVersion:
    """A version to compare with its model file: how to open it, and its record if it is intact."""

    model: str
    version: str
    request: DescribeRequest
    record: PackedVersion | None = None


@dataclass
class RepositoryReader:
    """Collects what a check finds; files are opened in a child process within `bounds`.

    `trust` lets programs be opened that no record beside them names.
    """

    root: Path
    bounds: ProcessLimits | None = None
    trust: bool = False
    faults: list[RepositoryFault] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)

    def add(
        self, code: FaultCode, at: tuple[str, str], message: str, hint: str, place: str = ""
    ) -> None:
        """Add a fault of a model and version."""
        model, version = at
        self.faults.append(
            RepositoryFault(
                code=code, model=model, version=version, message=message, hint=hint, place=place
            )
        )

    def list_models(self) -> tuple[Path, ...]:
        """Return the folders of models, by name; those that begin with a dot are none."""
        found: list[Path] = []
        with os.scandir(self.root) as entries:
            for entry in entries:
                if entry.name.startswith(".") or not entry.is_dir():
                    continue
                if len(found) >= _MAX_MODELS:
                    self.unchecked.append(f"only {_MAX_MODELS} models are checked")
                    break
                path = Path(entry.path)
                if is_below(path, self.root):
                    found.append(path)
                else:
                    at, message = (entry.name, ""), _LINK.format(entry.name)
                    self.add(FaultCode.UNSAFE_FILE, at, message, _LINK_HINT, entry.name)
        return tuple(sorted(found))

    def find_file(self, folder: Path, name: str, at: tuple[str, str]) -> Path | None:
        """Return a regular file below a folder of the repository; add a fault if it is none."""
        if not is_path_inside(name):
            hint = "name a file below the model's folder"
            self.add(FaultCode.UNSAFE_FILE, at, f"{name[:80]!r} leads out of it", hint, name[:80])
            return None
        path = folder / name
        try:
            mode = path.stat().st_mode
        except (OSError, ValueError):
            self.add(
                FaultCode.MISSING_FILE, at, f"{name[:80]} is missing", "put it there", name[:80]
            )
            return None
        if not is_below(path, self.root):
            message = _LINK.format(name[:80])
            self.add(FaultCode.UNSAFE_FILE, at, message, _LINK_HINT, name[:80])
            return None
        if not stat.S_ISREG(mode):
            self.add(
                FaultCode.UNSAFE_FILE, at, f"{name[:80]} is not a file",
                "put the file in its place", name[:80],
            )  # fmt: skip
            return None
        return path

    def read_text(
        self, folder: Path, name: str, at: tuple[str, str], most: int = MAX_RECORD_BYTES
    ) -> bytes | None:
        """Return the content of a small file; add a fault if there is none."""
        path = self.find_file(folder, name, at)
        if path is None:
            return None
        try:
            raw = _read_start(path, most + 1)
        except OSError as error:
            message = f"{name} cannot be read: {error.strerror}"
            self.add(FaultCode.UNSAFE_FILE, at, message, "change its mode", name)
            return None
        if len(raw) > most:
            message = f"{name} is larger than {most} bytes"
            self.add(FaultCode.UNSAFE_FILE, at, message, "put the right file there", name)
            return None
        return raw

    def place_of(self, folder: Path) -> tuple[str, str]:
        """Return model and version of a folder; without a version for the folder of a model."""
        model, version = (*folder.relative_to(self.root).parts, "", "")[:2]
        return model, version

    def load_record(self, folder: Path) -> PackedVersion | None:
        """Return the record of a version if its files are the recorded ones; add faults if not."""
        import msgspec

        at = self.place_of(folder)
        if not os.path.lexists(folder / VERSION_FILE):
            return None
        raw = self.read_text(folder, VERSION_FILE, at)
        if raw is None:
            return None
        try:
            record = msgspec.json.decode(raw, type=PackedVersion)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self.add(
                FaultCode.CONFIG, at, f"{VERSION_FILE} is not a record: {first_line(error)}",
                "pack the model again", VERSION_FILE,
            )  # fmt: skip
            return None
        if len(record.files) > _MAX_FILES:
            self.add(
                FaultCode.CONFIG, at, f"{VERSION_FILE} names more than {_MAX_FILES} files",
                "pack the model again", VERSION_FILE,
            )  # fmt: skip
            return None
        changed = [self._is_changed(folder, file) for file in record.files]
        return None if any(changed) else record

    def is_recorded(self, folder: Path, path: Path, record: PackedVersion | None) -> bool:
        """Whether the record of a folder, if any, names the model file; add a fault if not."""
        if record is None or any(path == folder / one.name for one in record.files):
            return True
        at, message = self.place_of(folder), f"{VERSION_FILE} does not name {path.name}"
        self.add(FaultCode.OTHER_FILE, at, message, "pack the model again", path.name)
        return False

    def _is_changed(self, folder: Path, file: FileRecord) -> bool:
        """Whether a file is missing or another; add a fault if so."""
        at, name = self.place_of(folder), file.name
        path = self.find_file(folder, name, at)
        if path is None:
            return True
        if path.stat().st_size == file.size and sha256_of(path) == file.sha256:
            return False
        other = self._version_with(folder.parent, name, file.sha256, path)
        message = f"{name} is {other or 'not the recorded file'}"
        hint = "remove this version, and pack the model again"
        self.add(FaultCode.OTHER_FILE, at, message, hint, name)
        return True

    def _version_with(self, model: Path, name: str, recorded: str, path: Path) -> str:
        """Return `the file of version 1` if another version's record names this file."""
        import msgspec

        digest = sha256_of(path)
        for number in list_versions(model)[-_MAX_RECORDS:]:
            place = model / str(number)
            record = place / VERSION_FILE
            if place == path.parent or not record.is_file() or not is_below(record, self.root):
                continue
            try:
                raw = _read_start(record, MAX_RECORD_BYTES)
                found = msgspec.json.decode(raw, type=PackedVersion)
            except (msgspec.MsgspecError, OSError, UnicodeDecodeError, RecursionError):
                continue
            if any(one.name == name and one.sha256 == digest != recorded for one in found.files):
                return f"the file of version {place.name}"
        return ""

    def describe(
        self, versions: Sequence[CheckedVersion]
    ) -> Iterable[tuple[CheckedVersion, ModelInterface]]:
        """Yield the versions whose model file could be read, with what it declares."""
        found = describe_models([one.request for one in versions], self.bounds)
        for one, described in zip(versions, found, strict=True):
            if described.interface is None:
                self.add(
                    FaultCode.UNREADABLE, (one.model, one.version),
                    f"{one.request.path.name} cannot be read: {described.fault}",
                    "put a model of that format there", one.request.path.name,
                )  # fmt: skip
                continue
            self.compared.append(f"{one.model}/{one.version}")
            yield one, described.interface
