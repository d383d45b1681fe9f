"""Labelled samples on disk: detect how a file or folder stores labels, and open it."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core.contract import Array
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
from .sample_content import SampleContent, SampleError
from .sample_formats import IMAGE_GROUP, SHARD_SUFFIX, ImageReaders, file_group, read_arrays
from .sample_sources import FolderListing, list_sample_files

_ARRAY = ".npy"


@dataclass(frozen=True, kw_only=True)
class LabelledSource:
    """Labelled samples in places, like `SampleSource`; `read` returns arrays with their labels.

    If `is_shared`, a place has one label for all its samples. `classes` are the names in the order
    of the outputs, empty if unknown.
    """

    count: int
    name: Callable[[int], str]
    read: Callable[[int], tuple[SampleContent, Array]]
    is_shared: bool = False
    classes: tuple[str, ...] = ()
    skip_counts: Mapping[str, int] = field(default_factory=dict)
    close: Callable[[], object] = lambda: None


def _open_array_files(
    listing: FolderListing, names: Sequence[str], label: str | None
) -> LabelledSource:
    """Open files that hold samples and their labels: `.npz`, `.safetensors`, `.pt`, `.pth`."""
    root, files = listing.root, listing.groups[listing.main]
    return LabelledSource(
        count=len(files),
        name=lambda place: listing.name(files[place]),
        read=lambda place: split_label(
            read_arrays(files[place], files[place].suffix), names, label
        ),
        classes=read_classes(root if root.is_dir() else root.parent),
        skip_counts=listing.skip_counts,
    )


def _open_array_folder(folder: Path, names: Sequence[str], label: str | None) -> LabelledSource:
    """Open a folder with one `.npy` file per input and one of labels: `x.npy` and `y.npy`."""

    def read(_: int) -> tuple[SampleContent, Array]:
        paths = sorted(folder.glob(f"*{_ARRAY}"))
        return split_label({path.stem: read_arrays(path, _ARRAY) for path in paths}, names, label)

    return LabelledSource(
        count=1, name=lambda _: folder.name, read=read, classes=read_classes(folder)
    )


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
        return _open_array_folder(path, names, label)
    if listing.main in (IMAGE_GROUP, _ARRAY) or _has_no_labels(listing, names, label):
        return open_class_folders(listing, names, images)
    return _open_array_files(listing, names, label)


def _has_no_labels(listing: FolderListing, names: Sequence[str], label: str | None) -> bool:
    """Whether array files in class folders contain no labels."""
    first = listing.groups[listing.main][0]
    if label is not None or listing.root in (first.parent, first):
        return False
    try:
        split_label(read_arrays(first, first.suffix), names, None)
    except LabelError:
        return True
    except SampleError:
        return False
    return False


# Files with a label each: by a list as `labels.csv`, or by the folder that they lie in.


LISTS = ("labels.csv", "labels.txt", "labels.tsv")
_HEADER_NAMES = {*LABEL_NAMES, "file", "filename", "image", "path"}


def _open_files(
    root: Path,
    files: Sequence[tuple[Path, Array]],
    names: Sequence[str],
    images: ImageReaders,
) -> LabelledSource:
    """Open files with one label each."""

    def name(place: int) -> str:
        path = files[place][0]
        return path.relative_to(root).as_posix() if root in path.parents else str(path)

    def read(place: int) -> tuple[SampleContent, Array]:
        path, label = files[place]
        return images.read(path, path.suffix, names), label

    return LabelledSource(count=len(files), name=name, read=read, is_shared=True)


def open_class_folders(
    listing: FolderListing, names: Sequence[str], images: ImageReaders
) -> LabelledSource:
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
    labelled = [(path, numbers[path.relative_to(root).parts[0]]) for path in files]
    skip_counts = Counter(listing.others)
    skip_counts.update({k: count for k, count in listing.skip_counts.items() if k != ".txt"})
    source = _open_files(root, labelled, names, images)
    return replace(source, classes=classes, skip_counts=skip_counts)


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


def open_list(path: Path, names: Sequence[str], images: ImageReaders) -> LabelledSource:
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
    here = [one for kind in list_sample_files(folder).groups.values() for one in kind]
    left = sum(one not in seen for one in here)
    skip_counts = {f"files that {path.name} does not name": left} if left else {}
    source = _open_files(folder, files, names, images)
    return replace(source, classes=classes, skip_counts=skip_counts)


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
