"""Files with a label each: by a list as `labels.csv`, or by the folder that they lie in."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UsageError
from .assume import ImageReaders
from .content import SampleContent, make_content
from .folder import FolderListing, list_sample_files
from .formats import SHARD_SUFFIX, file_group
from .label_classes import CLASSES_FILE, order_classes, parse_class, read_classes, read_lines
from .label_split import LABEL_NAMES, LabelError, to_label_array

if TYPE_CHECKING:
    from ..core.contract import Array

# Files with a label each: by a list as `labels.csv`, or by the folder that they lie in.


LISTS = ("labels.csv", "labels.txt", "labels.tsv")
_HEADER_NAMES = {*LABEL_NAMES, "file", "filename", "image", "path"}


class ListedFiles:
    """Files with a label each, by a list or by the folder that they lie in."""

    is_shared = True

    def __init__(
        self,
        root: Path,
        files: Sequence[tuple[Path, Array]],
        names: Sequence[str],
        images: ImageReaders,
    ) -> None:
        self.classes: tuple[str, ...] = ()
        self.skipped: Mapping[str, int] = {}
        self._root = root
        self._files = files
        self._names = names
        self._images = images

    def __len__(self) -> int:
        return len(self._files)

    def name(self, place: int) -> str:
        """The path below the folder."""
        path = self._files[place][0]
        return path.relative_to(self._root).as_posix() if self._root in path.parents else str(path)

    def read(self, place: int) -> tuple[SampleContent, Array]:
        """What the file holds, and its label."""
        path, label = self._files[place]
        found = self._images.any_reader(path.suffix, self._names)(path)
        return make_content(found.value, self._names, found.look), label


def open_class_folders(
    listing: FolderListing, names: Sequence[str], images: ImageReaders
) -> ListedFiles:
    """The folder below the root that a file lies in is its class."""
    import numpy as np

    root = listing.root
    files = listing.groups[listing.main]
    loose = [path for path in files if root in (path, path.parent)]
    if loose:
        raise UsageError(
            f"{loose[0]} has no label",
            hint=f"move it to a folder of its class, or write {LISTS[0]} beside it: file,label",
        )
    classes = order_classes(root, sorted({path.relative_to(root).parts[0] for path in files}))
    numbers = {name: np.asarray(number) for number, name in enumerate(classes)}
    found = ListedFiles(
        root, [(path, numbers[path.relative_to(root).parts[0]]) for path in files], names, images
    )
    found.classes = classes
    skipped = Counter({kind: count for kind, count in listing.skipped.items() if kind != ".txt"})
    found.skipped = skipped + Counter(listing.others)
    return found


def find_list(path: Path) -> Path | None:
    """The list of files and labels, if `path` is one or a folder with one."""
    if path.is_file():
        return path if path.suffix.lower() in (".csv", ".tsv", ".txt") else None
    return next((path / name for name in LISTS if (path / name).is_file()), None)


def find_companion_files(path: Path) -> tuple[Path, ...]:
    """What labelled data at `path` is read from beside that file or folder, wherever it lies.

    Files that a list names, and the names of classes.

    Raises:
        UsageError: the list cannot be read.
    """
    listed = find_list(path)
    named = [] if listed is None else [listed.parent / row[0] for _, row in _read_rows(listed)]
    classes = (path if path.is_dir() else path.parent) / CLASSES_FILE
    return (*named, *([classes] if classes.is_file() else []))


def open_list(path: Path, names: Sequence[str], images: ImageReaders) -> ListedFiles:
    """The files that a list names, relative to its folder."""
    folder, classes = path.parent, read_classes(path.parent)
    rows = _read_rows(path)
    files = [_read_entry(path, number, row, classes) for number, row in rows]
    seen: set[Path] = set()
    for (number, _), (file, _) in zip(rows, files, strict=True):
        if file in seen:
            raise UsageError(f"{path} line {number}: {file.name} is there twice", hint="remove one")
        seen.add(file)
    found = ListedFiles(folder, files, names, images)
    found.classes = classes
    here = [one for kind in list_sample_files(folder).groups.values() for one in kind]
    left = sum(one not in seen for one in here)
    found.skipped = {f"files that {path.name} does not name": left} if left else {}
    return found


def _read_rows(path: Path) -> list[tuple[int, list[str]]]:
    """The lines with their numbers, cut at commas, tabs or blanks; a head is left out."""
    lines = [(n, line) for n, line in enumerate(read_lines(path), start=1) if line.strip()]
    if not lines:
        raise UsageError(f"{path} is empty", hint="write a line a sample: file,label")
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
        raise UsageError(f"{where} has no label: {' '.join(row)!r}", hint="write file,label")
    file = path.parent / row[0]
    if not file.is_file():
        raise UsageError(
            f"{where}: there is no {file}", hint=f"files are relative to {path.parent}"
        )
    if file_group(file.suffix) in ("", SHARD_SUFFIX):
        raise UsageError(f"{where}: {file.name} is no sample", hint="name images or arrays")
    values = [parse_class(text, classes) for text in row[1:]]
    if None in values:
        text = row[1 + values.index(None)]
        hint = f"write {path.parent / CLASSES_FILE}: one class a line, in the order of the outputs"
        known = (
            f"{text!r} is no class of {CLASSES_FILE}"
            if classes
            else f"the label {text!r} is no number"
        )
        raise UsageError(f"{where}: {known}", hint=hint)
    try:
        return file, to_label_array(values[0] if len(values) == 1 else values)
    except LabelError as error:
        raise UsageError(f"{where} {error.reason}", hint=error.hint) from error
