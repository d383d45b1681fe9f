"""Labelled samples on disk: detect how a file or folder stores labels, and open it."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..core.errors import ErrorCode, UsageError
from .labels import (
    CLASSES_FILE,
    LABEL_NAMES,
    LabelError,
    order_classes,
    parse_class,
    read_classes,
    read_lines,
    split_label,
    to_label_array,
)
from .sample_content import SampleContent, SampleError, make_content
from .sample_formats import ARRAY_READERS, IMAGE_GROUP, SHARD_SUFFIX, ImageReaders, file_group
from .sample_sources import FolderListing, list_sample_files

if TYPE_CHECKING:
    from ..core.contract import Array

_ARRAY = ".npy"


class LabelledSource(Protocol):
    """Labelled samples in places, like `SampleSource`."""

    @property
    def is_shared(self) -> bool:
        """Whether a place has one label for all its samples."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the outputs; empty if unknown."""
        ...

    @property
    def skip_counts(self) -> Mapping[str, int]:
        """Kinds of ignored files, with counts."""
        ...

    def __len__(self) -> int:
        """The number of places."""
        ...

    def name(self, place: int) -> str:
        """Return the name of a place in errors."""
        ...

    def read(self, place: int) -> tuple[SampleContent, Array]:
        """Return the arrays at a place and their label or labels.

        Raises:
            SampleError: it cannot be read, or has no such arrays.
        """
        ...


class LabelledArrays:
    """Files that hold samples and their labels: `.npz`, `.safetensors`, `.pt`, `.pth`."""

    is_shared = False

    def __init__(self, listing: FolderListing, names: Sequence[str], label: str | None) -> None:
        self.skip_counts: Mapping[str, int] = listing.skip_counts
        self._root = listing.root
        self._files = listing.groups[listing.main]
        self._names = names
        self._label = label
        self.classes = read_classes(self._root if self._root.is_dir() else self._root.parent)

    def __len__(self) -> int:
        return len(self._files)

    def name(self, place: int) -> str:
        """Return the path relative to the folder, or the name of a single file."""
        path = self._files[place]
        return path.name if path == self._root else path.relative_to(self._root).as_posix()

    def read(self, place: int) -> tuple[SampleContent, Array]:
        """Return the samples of the file and their labels."""
        path = self._files[place]
        value = ARRAY_READERS[path.suffix.lower()](path).value
        return split_label(value, self._names, self._label)


class ArrayFolder:
    """A folder with one `.npy` file per input and one of labels, such as `x.npy` and `y.npy`."""

    is_shared = False
    skip_counts: Mapping[str, int] = {}

    def __init__(self, folder: Path, names: Sequence[str], label: str | None) -> None:
        self.classes = read_classes(folder)
        self._folder = folder
        self._names = names
        self._label = label

    def __len__(self) -> int:
        return 1

    def name(self, place: int) -> str:  # noqa: ARG002 - there is one
        """The folder."""
        return self._folder.name

    def read(self, place: int) -> tuple[SampleContent, Array]:  # noqa: ARG002 - there is one
        """Every array of the folder, mapped; the inputs' and the label's are taken."""
        paths = sorted(self._folder.glob(f"*{_ARRAY}"))
        value = {path.stem: ARRAY_READERS[_ARRAY](path).value for path in paths}
        return split_label(value, self._names, self._label)


def open_labelled_path(
    path: Path, names: Sequence[str], images: ImageReaders, label: str | None
) -> LabelledSource:
    """Detect how a file or folder stores labels, and open it.

    Raises:
        UsageError: it has no labels in a known form.
    """
    listed = find_list(path)
    if listed is not None:
        return open_list(listed, names, images)
    listing = list_sample_files(path)
    if listing.main == SHARD_SUFFIX:
        raise UsageError(
            f"labels of {SHARD_SUFFIX} shards are not supported: {path}",
            hint="name a loader that yields samples with labels: PKG.MOD:FUNCTION",
            code=ErrorCode.NO_LABEL,
        )
    if not listing.main:
        raise UsageError(
            f"there are no samples in {path}",
            hint="provide a folder of images per class, or .npz files with the inputs and `label`",
            code=ErrorCode.NO_SAMPLES,
        )
    if path.is_dir() and listing.main == _ARRAY and list(path.glob(f"*{_ARRAY}")):
        return ArrayFolder(path, names, label)
    if listing.main in (IMAGE_GROUP, _ARRAY) or _has_no_labels(listing, names, label):
        return open_class_folders(listing, names, images)
    return LabelledArrays(listing, names, label)


def _has_no_labels(listing: FolderListing, names: Sequence[str], label: str | None) -> bool:
    """Whether array files in class folders contain no labels."""
    first = listing.groups[listing.main][0]
    if label is not None or listing.root in (first.parent, first):
        return False
    try:
        split_label(ARRAY_READERS[first.suffix.lower()](first).value, names, None)
    except LabelError:
        return True
    except SampleError:
        return False
    return False


# Files with a label each: by a list as `labels.csv`, or by the folder that they lie in.


LISTS = ("labels.csv", "labels.txt", "labels.tsv")
_HEADER_NAMES = {*LABEL_NAMES, "file", "filename", "image", "path"}


class ListedFiles:
    """Files with one label each, given by a list or by their folder."""

    is_shared = True

    def __init__(
        self,
        root: Path,
        files: Sequence[tuple[Path, Array]],
        names: Sequence[str],
        images: ImageReaders,
    ) -> None:
        self.classes: tuple[str, ...] = ()
        self.skip_counts: Mapping[str, int] = {}
        self._root = root
        self._files = files
        self._names = names
        self._images = images

    def __len__(self) -> int:
        return len(self._files)

    def name(self, place: int) -> str:
        """Return the path relative to the folder."""
        path = self._files[place][0]
        return path.relative_to(self._root).as_posix() if self._root in path.parents else str(path)

    def read(self, place: int) -> tuple[SampleContent, Array]:
        """Return the file's content and its label."""
        path, label = self._files[place]
        found = self._images.any_reader(path.suffix, self._names)(path)
        return make_content(found.value, self._names, found.look), label


def open_class_folders(
    listing: FolderListing, names: Sequence[str], images: ImageReaders
) -> ListedFiles:
    """Open files whose class is their folder below the root."""
    import numpy as np

    root = listing.root
    files = listing.groups[listing.main]
    loose = [path for path in files if root in (path, path.parent)]
    if loose:
        raise UsageError(
            f"{loose[0]} has no label",
            hint=f"move it to a folder of its class, or add {LISTS[0]} with lines file,label",
            code=ErrorCode.NO_LABEL,
        )
    classes = order_classes(root, sorted({path.relative_to(root).parts[0] for path in files}))
    numbers = {name: np.asarray(number) for number, name in enumerate(classes)}
    found = ListedFiles(
        root, [(path, numbers[path.relative_to(root).parts[0]]) for path in files], names, images
    )
    found.classes = classes
    skip_counts = Counter(
        {kind: count for kind, count in listing.skip_counts.items() if kind != ".txt"}
    )
    found.skip_counts = skip_counts + Counter(listing.others)
    return found


def find_list(path: Path) -> Path | None:
    """Return the list of files and labels at `path`, if there is one."""
    if path.is_file():
        return path if path.suffix.lower() in (".csv", ".tsv", ".txt") else None
    return next((path / name for name in LISTS if (path / name).is_file()), None)


def find_companion_files(path: Path) -> tuple[Path, ...]:
    """Return the other files that labelled data at `path` depends on: listed files, class names.

    Raises:
        UsageError: the list cannot be read.
    """
    listed = find_list(path)
    named = [] if listed is None else [listed.parent / row[0] for _, row in _read_rows(listed)]
    classes = (path if path.is_dir() else path.parent) / CLASSES_FILE
    return (*named, *([classes] if classes.is_file() else []))


def open_list(path: Path, names: Sequence[str], images: ImageReaders) -> ListedFiles:
    """Open the files that a list names, relative to its folder."""
    folder, classes = path.parent, read_classes(path.parent)
    rows = _read_rows(path)
    files = [_read_entry(path, number, row, classes) for number, row in rows]
    seen: set[Path] = set()
    for (number, _), (file, _) in zip(rows, files, strict=True):
        if file in seen:
            raise UsageError(
                f"{path} line {number}: duplicate file {file.name}", hint="remove one of the lines"
            )
        seen.add(file)
    found = ListedFiles(folder, files, names, images)
    found.classes = classes
    here = [one for kind in list_sample_files(folder).groups.values() for one in kind]
    left = sum(one not in seen for one in here)
    found.skip_counts = {f"files that {path.name} does not name": left} if left else {}
    return found


def _read_rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return numbered lines, split at commas, tabs or blanks, without a header."""
    lines = [(n, line) for n, line in enumerate(read_lines(path), start=1) if line.strip()]
    if not lines:
        raise UsageError(f"{path} is empty", hint="write one line per sample: file,label")
    sign = next((sign for sign in (",", "\t") if sign in lines[0][1]), "")
    cells = [
        (n, [c.strip() for c in next(csv.reader([line], delimiter=sign))])
        if sign
        else (n, line.rsplit(maxsplit=1))
        for n, line in lines
    ]
    head = cells[0][1]
    is_head = (
        all(cell.lower() in _HEADER_NAMES for cell in head) and not (path.parent / head[0]).exists()
    )
    return cells[1:] if is_head else cells


def _read_entry(
    path: Path, number: int, row: Sequence[str], classes: Sequence[str]
) -> tuple[Path, Array]:
    where = f"{path} line {number}"
    if len(row) < 2:  # noqa: PLR2004 - a file and a label
        raise UsageError(
            f"{where} has no label: {' '.join(row)!r}",
            hint="write file,label",
            code=ErrorCode.NO_LABEL,
        )
    file = path.parent / row[0]
    if not file.is_file():
        raise UsageError(
            f"{where}: no such file: {file}",
            hint=f"files are relative to {path.parent}",
            code=ErrorCode.NOT_FOUND,
        )
    if file_group(file.suffix) in ("", SHARD_SUFFIX):
        raise UsageError(
            f"{where}: {file.name} is not an image or an array", hint="name images or arrays"
        )
    values = [parse_class(text, classes) for text in row[1:]]
    if None in values:
        text = row[1 + values.index(None)]
        hint = (
            f"write {path.parent / CLASSES_FILE}: one class per line, in the order of the outputs"
        )
        known = (
            f"{text!r} is not in {CLASSES_FILE}"
            if classes
            else f"the label {text!r} is not a number"
        )
        raise UsageError(f"{where}: {known}", hint=hint, code=ErrorCode.UNKNOWN_CLASS)
    try:
        return file, to_label_array(values[0] if len(values) == 1 else values)
    except LabelError as error:
        raise UsageError(f"{where} {error.reason}", hint=error.hint, code=error.code) from error
