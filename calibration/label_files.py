"""Labelled samples on disk: finds out how a file or folder holds its labels and opens it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..core.errors import UsageError
from .assume import ImageReaders
from .content import SampleContent, SampleError
from .folder import FolderListing, list_sample_files
from .formats import ARRAY_READERS, IMAGE_GROUP, SHARD_SUFFIX
from .label_classes import read_classes
from .label_listed import find_list, open_class_folders, open_list
from .label_split import LabelError, split_label

if TYPE_CHECKING:
    from ..core.contract import Array

_ARRAY = ".npy"


class LabelledSource(Protocol):
    """Labelled samples in places, as `SampleSource` is without labels."""

    @property
    def is_shared(self) -> bool:
        """Whether the one label of a place is for all samples of it."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names in the order of the outputs; empty where only numbers are known."""
        ...

    @property
    def skipped(self) -> Mapping[str, int]:
        """What was passed over, and how often."""
        ...

    def __len__(self) -> int:
        """The number of places."""
        ...

    def name(self, place: int) -> str:
        """What an error calls the place."""
        ...

    def read(self, place: int) -> tuple[SampleContent, Array]:
        """The arrays at the place and the label, or labels, of them.

        Raises:
            SampleError: it cannot be read, or holds something else.
        """
        ...


class LabelledArrays:
    """Files that hold samples and their labels: `.npz`, `.safetensors`, `.pt`, `.pth`."""

    is_shared = False

    def __init__(self, listing: FolderListing, names: Sequence[str], label: str | None) -> None:
        self.skipped: Mapping[str, int] = listing.skipped
        self._root = listing.root
        self._files = listing.groups[listing.main]
        self._names = names
        self._label = label
        self.classes = read_classes(self._root if self._root.is_dir() else self._root.parent)

    def __len__(self) -> int:
        return len(self._files)

    def name(self, place: int) -> str:
        """The path below the folder; of a single file its name."""
        path = self._files[place]
        return path.name if path == self._root else path.relative_to(self._root).as_posix()

    def read(self, place: int) -> tuple[SampleContent, Array]:
        """The samples of the file and the label beside them."""
        path = self._files[place]
        value = ARRAY_READERS[path.suffix.lower()](path).value
        return split_label(value, self._names, self._label)


class ArrayFolder:
    """One `.npy` file an input and one of labels, as `x.npy` and `y.npy`: one place."""

    is_shared = False
    skipped: Mapping[str, int] = {}

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
    """Find out how a file or folder holds labels.

    Raises:
        UsageError: it does not, or in no form that is known.
    """
    listed = find_list(path)
    if listed is not None:
        return open_list(listed, names, images)
    listing = list_sample_files(path)
    if listing.main == SHARD_SUFFIX:
        raise UsageError(
            f"labels of {SHARD_SUFFIX} shards are not read: {path}",
            hint="name a loader that yields them with their labels: PKG.MOD:FUNCTION",
        )
    if not listing.main:
        raise UsageError(
            f"there are no samples in {path}",
            hint="give images in a folder a class, or .npz files with the inputs and `label`",
        )
    if path.is_dir() and listing.main == _ARRAY and list(path.glob(f"*{_ARRAY}")):
        return ArrayFolder(path, names, label)
    if listing.main in (IMAGE_GROUP, _ARRAY) or _has_no_labels(listing, names, label):
        return open_class_folders(listing, names, images)
    return LabelledArrays(listing, names, label)


def _has_no_labels(listing: FolderListing, names: Sequence[str], label: str | None) -> bool:
    """Whether array files in class folders say their labels by the folder alone."""
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
