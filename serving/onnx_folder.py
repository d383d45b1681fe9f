"""Write and check ONNX models that run together: one folder, where equal weights are stored once.

Runtimes read weights only from the folder of a model: ONNX Runtime refuses `../` and links out of
it, and the onnx package hard links too. So models that share weights are beside each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ..converters.onnx_files import FILE_LIMIT
from ..converters.onnx_guard import external_place, read_graph
from ..converters.onnx_topology import model_graphs
from ..core.errors import ErrorCode, Hint, Option, UsageError
from ..core.records import FileRecord
from .describe_models import DescribeRequest
from .pick_artifacts import check_served_name
from .repository_reader import CheckedVersion, RepositoryReader
from .repository_records import FaultCode, ModelInterface, ServedModel, ServingOptions
from .version_folders import FilePiece, PlannedFile, list_versions

if TYPE_CHECKING:
    import onnx

TARGETS = ("onnx",)
WEIGHTS = "weights.data"
_LEAST = 4096  # bytes: shape inference reads small constants, so they stay in the model
_PAGE = 4096  # bytes: a runtime can map a tensor that starts at a page


@dataclass(kw_only=True)
class SharedWeights:
    """The weights of several models: each value once, in files of at most the size of FAT32's.

    `places` are file, offset and length by digest, `files` the pieces of each file in order.
    `repeated` are the bytes that were there before, and are not stored again.
    """

    places: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    files: dict[str, list[FilePiece]] = field(default_factory=dict)
    end: int = 0
    repeated: int = 0

    def add_model(self, path: Path) -> bytes:
        """Store the weights of a model, and return the model that refers to them.

        Raises:
            RunnerError: it cannot be read, or names weights outside of its folder.
        """
        model = read_graph(path)
        for tensor in chain.from_iterable(one.initializer for one in model_graphs(model)):
            piece = _find_bytes(tensor, path)
            if piece is not None:
                self._add(tensor, piece)
        return bytes(model.SerializeToString(deterministic=True))

    def _add(self, tensor: onnx.TensorProto, piece: FilePiece) -> None:
        digest = _digest_of([piece])
        if digest in self.places:
            self.repeated += piece.size
        else:
            self.places[digest] = self._append(piece)
        tensor.ClearField("raw_data")
        tensor.data_location = tensor.EXTERNAL
        del tensor.external_data[:]
        for key, value in zip(("location", "offset", "length"), self.places[digest], strict=True):
            tensor.external_data.add(key=key, value=str(value))

    def _append(self, piece: FilePiece) -> tuple[str, int, int]:
        """Return the place after the last piece, at the next page."""
        if not self.files or (self.end and self.end + piece.size > FILE_LIMIT):
            number = len(self.files) + 1
            self.files[WEIGHTS if number == 1 else f"{number}.{WEIGHTS}"] = []
            self.end = 0
        name, pieces = list(self.files.items())[-1]
        gap = -self.end % _PAGE
        pieces += [FilePiece(content=bytes(gap)), piece] if gap else [piece]
        offset = self.end + gap
        self.end = offset + piece.size
        return name, offset, piece.size

    def plan_files(self) -> Iterator[PlannedFile]:
        """Yield the files of the weights."""
        for name, pieces in self.files.items():
            size = sum(one.size for one in pieces)
            record = FileRecord(name=name, size=size, sha256=_digest_of(pieces), role="data")
            yield PlannedFile(name=name, record=record, pieces=tuple(pieces))


def _find_bytes(tensor: onnx.TensorProto, path: Path) -> FilePiece | None:
    """Return the bytes of a weight; None if it is small, or not stored as plain bytes."""
    if tensor.data_location != tensor.EXTERNAL:
        raw = tensor.raw_data
        return FilePiece(content=raw) if len(raw) >= _LEAST else None
    source, offset, length = external_place(tensor, path)
    return FilePiece(source=source, offset=offset, length=length)


def _digest_of(pieces: Iterable[FilePiece]) -> str:
    digest = hashlib.sha256()
    for block in chain.from_iterable(one.read_blocks() for one in pieces):
        digest.update(block)
    return digest.hexdigest()


def join_models(models: Sequence[ServedModel]) -> tuple[ServedModel, ...]:
    """Make one model of those of a group that are of the same artifact, with shared weights.

    Raises:
        UsageError: a model of a group lacks an artifact that others have.
    """
    groups: dict[str, dict[str, list[ServedModel]]] = {}
    for one in models:
        by_artifact = groups.setdefault(one.group or one.folder.resolve().name, {})
        by_artifact.setdefault(one.record.artifact, []).append(one)
    found = []
    for group, by_artifact in groups.items():
        _check_complete(group, by_artifact)
        for artifact, members in by_artifact.items():
            name = group if len(by_artifact) == 1 else f"{group}-{artifact}"
            found.append(join_members(check_served_name(name), _name_members(members)))
    return tuple(found)


def _check_complete(group: str, by_artifact: Mapping[str, Sequence[ServedModel]]) -> None:
    """Check that every model of a group has every artifact.

    Raises:
        UsageError: one lacks one.
    """
    folders = dict.fromkeys(one.folder for some in by_artifact.values() for one in some)
    for artifact, members in by_artifact.items():
        lacking = [one for one in folders if one not in [member.folder for member in members]]
        if lacking:
            raise UsageError(
                f"{group}: {lacking[0]} has no {artifact} to pack, {members[0].folder} has",
                hint=Hint("choose what all have with ", Option("artifact", "NAME")),
                option="artifact",
                code=ErrorCode.NOTHING_TO_DO,
            )


def _name_members(members: Sequence[ServedModel]) -> dict[str, ServedModel]:
    """Return the models by the names of their folders.

    Raises:
        UsageError: two folders have the same name.
    """
    found: dict[str, ServedModel] = {}
    for one in members:
        name = check_served_name(one.folder.resolve().name)
        if name in found:
            raise UsageError(
                f"{found[name].folder} and {one.folder} would both be {name}.onnx",
                hint="rename one of the folders",
                code=ErrorCode.SAME_FILE,
            )
        found[name] = one
    return found


def join_members(name: str, members: Mapping[str, ServedModel]) -> ServedModel:
    """Return the first model with the others as twins, and the files of all beside it.

    Args:
        name: of the model that they become.
        members: the models, by the names of their files without the suffix.
    """
    weights, files, records = SharedWeights(), [], {}
    for stem, one in members.items():
        content = weights.add_model(one.folder / one.files[0].name)
        digest = hashlib.sha256(content).hexdigest()
        written = FileRecord(name=f"{stem}.onnx", size=len(content), sha256=digest)
        files.append(PlannedFile(name=written.name, content=content, record=written))
        records[written.name] = replace(one.record, files=one.files)
    first, *others = members.values()
    notes = [f"{file}: {note}" for file, one in records.items() for note in one.notes]
    if weights.repeated:
        notes.append(f"{weights.repeated / 1e6:.1f} MB of equal weights are not stored again")
    record = replace(
        first.record, interface=ModelInterface(inputs=(), outputs=()), domain="", verdict=None,
        allowed=any(one.allowed for one in records.values()), notes=tuple(notes), members=records,
    )  # fmt: skip
    return replace(
        first, name=name, record=record, beside=(*files, *weights.plan_files()),
        twins=tuple(others),
    )  # fmt: skip


def plan_folder_files(model: ServedModel) -> Iterator[PlannedFile]:
    """Yield the models, then the weights of all."""
    yield from model.beside


def find_difference(place: Path, model: ServedModel, options: ServingOptions) -> str:  # noqa: ARG001 - as the field
    """Return how the models differ from those of the newest version; empty if they do not."""
    newest = str(max(list_versions(place), default=""))
    record = RepositoryReader(root=place.parent).load_record(place / newest)
    if record is None:
        return ""
    old, new = record.members, model.record.members
    if [*old] != [*new]:
        return f"its models are {', '.join(old)}"
    changed = (name for name in old if not _is_same(old[name].interface, new[name].interface))
    name = next(changed, "")
    return name and f"{name} has other names, dtypes or dims"


def _is_same(old: ModelInterface, new: ModelInterface) -> bool:
    """Whether names, dtypes and dims are the same."""
    sides = ((old.inputs, new.inputs), (old.outputs, new.outputs))
    return all(
        [(one.name, one.dtype, one.dims) for one in first]
        == [(one.name, one.dtype, one.dims) for one in second]
        for first, second in sides
    )


def check_folders(reader: RepositoryReader) -> tuple[str, ...]:
    """Check folders of models that run together; return their names."""
    found: list[CheckedVersion] = []
    names = []
    for folder in reader.list_models():
        versions = list_versions(folder)
        names += [folder.name] if versions else []
        for number in versions:
            found += _list_members(reader, folder / str(number))
    for one, interface in reader.describe(found):
        if one.record is not None and not _is_same(one.record.interface, interface):
            message = f"{one.request.path.name} has other tensors than its record"
            hint = "remove this version, and pack the models again"
            place = one.request.path.name
            reader.add(FaultCode.TENSOR_NAME, (one.model, one.version), message, hint, place)
    return tuple(names)


def _list_members(reader: RepositoryReader, place: Path) -> Iterator[CheckedVersion]:
    """Yield the models of a version whose files are the recorded ones."""
    at, before = reader.place_of(place), len(reader.faults)
    record = reader.load_record(place)
    members = {} if record is None else record.members
    names = [*members] or sorted(one.name for one in place.glob("*.onnx"))
    if not names:
        reader.add(FaultCode.MISSING_FILE, at, "it has no .onnx", "pack it again")
    for name in names if len(reader.faults) == before else ():
        path = reader.find_file(place, name, at)
        if path is not None and reader.is_recorded(place, path, record):
            request = DescribeRequest(path=path, target="onnx")
            own = members.get(name)
            yield CheckedVersion(model=at[0], version=at[1], request=request, record=own)
