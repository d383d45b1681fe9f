"""Labelled samples on disk: finds out how a file or folder holds its labels and opens it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..core.errors import UsageError
from .assume import Images
from .content import Content, MisfitError
from .folder import Listing, list_files
from .formats import ARRAYS, IMAGE, SHARD
from .label_classes import told_classes
from .label_listed import class_folders, list_in, listed_files
from .label_split import LabelError, split_label

if TYPE_CHECKING:
    from ..core.contract import Array

_ARRAY = ".npy"


class LabelledSource(Protocol):
    """Labelled samples in places, as `formats.Source` is without labels."""

    @property
    def shared(self) -> bool:
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

    def read(self, place: int) -> tuple[Content, Array]:
        """The arrays at the place and the label, or labels, of them.

        Raises:
            MisfitError: it cannot be read, or holds something else.
        """
        ...


class LabelledArrays:
    """Files that hold samples and their labels: `.npz`, `.safetensors`, `.pt`, `.pth`."""

    shared = False

    def __init__(self, listing: Listing, names: Sequence[str], label: str | None) -> None:
        self.skipped: Mapping[str, int] = listing.skipped
        self._root = listing.root
        self._files = listing.groups[listing.main]
        self._names = names
        self._label = label
        self.classes = told_classes(self._root if self._root.is_dir() else self._root.parent)

    def __len__(self) -> int:
        return len(self._files)

    def name(self, place: int) -> str:
        """The path below the folder; of a single file its name."""
        path = self._files[place]
        return path.name if path == self._root else path.relative_to(self._root).as_posix()

    def read(self, place: int) -> tuple[Content, Array]:
        """The samples of the file and the label beside them."""
        path = self._files[place]
        value = ARRAYS[path.suffix.lower()](path).value
        return split_label(value, self._names, self._label)


class ArrayFolder:
    """One `.npy` file an input and one of labels, as `x.npy` and `y.npy`: one place."""

    shared = False
    skipped: Mapping[str, int] = {}

    def __init__(self, folder: Path, names: Sequence[str], label: str | None) -> None:
        self.classes = told_classes(folder)
        self._folder = folder
        self._names = names
        self._label = label

    def __len__(self) -> int:
        return 1

    def name(self, place: int) -> str:  # noqa: ARG002 - there is one
        """The folder."""
        return self._folder.name

    def read(self, place: int) -> tuple[Content, Array]:  # noqa: ARG002 - there is one
        """Every array of the folder, mapped; the inputs' and the label's are taken."""
        paths = sorted(self._folder.glob(f"*{_ARRAY}"))
        value = {path.stem: ARRAYS[_ARRAY](path).value for path in paths}
        return split_label(value, self._names, self._label)


def open_path(
    path: Path, names: Sequence[str], images: Images, label: str | None
) -> LabelledSource:
    """Find out how a file or folder holds labels.

    Raises:
        UsageError: it does not, or in no form that is known.
    """
    listed = list_in(path)
    if listed is not None:
        return listed_files(listed, names, images)
    listing = list_files(path)
    if listing.main == SHARD:
        raise UsageError(
            f"labels of {SHARD} shards are not read: {path}",
            hint="name a loader that yields them with their labels: PKG.MOD:FUNCTION",
        )
    if not listing.main:
        raise UsageError(
            f"there are no samples in {path}",
            hint="give images in a folder a class, or .npz files with the inputs and `label`",
        )
    if path.is_dir() and listing.main == _ARRAY and list(path.glob(f"*{_ARRAY}")):
        return ArrayFolder(path, names, label)
    if listing.main in (IMAGE, _ARRAY) or _without_labels(listing, names, label):
        return class_folders(listing, names, images)
    return LabelledArrays(listing, names, label)


def _without_labels(listing: Listing, names: Sequence[str], label: str | None) -> bool:
    """Whether array files in class folders say their labels by the folder alone."""
    first = listing.groups[listing.main][0]
    if label is not None or listing.root in (first.parent, first):
        return False
    try:
        split_label(ARRAYS[first.suffix.lower()](first).value, names, None)
    except LabelError:
        return True
    except MisfitError:
        return False
    return False
