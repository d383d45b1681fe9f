"""Labels: separate them from the inputs of a file or item, and read class names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.contract import Feed
from ..core.errors import ErrorCode, UsageError
from ..core.nested_values import iterate_leaves
from ..core.torch_tools import is_array, is_tensor, to_array
from .calibration_report import FindingKind
from .sample_content import SampleContent, SampleError, make_content

if TYPE_CHECKING:
    from ..core.contract import Array

# usual names; an input of such a name is not a label
LABEL_NAMES = ("label", "labels", "y", "target", "targets", "class", "classes")
_PAIR = 2


class LabelError(SampleError):
    """A label is missing or invalid; `hint` says how to fix it."""

    def __init__(self, reason: str, hint: str, code: ErrorCode = ErrorCode.BAD_LABEL) -> None:
        super().__init__(FindingKind.NAMES, reason)
        self.hint = hint
        self.code = code


def split_label(
    value: object, names: Sequence[str], given: str | None
) -> tuple[SampleContent, Array]:
    """Separate the inputs in `value` from the label.

    A mapping has the label by name, a pair at its second place, a tuple of the inputs at its end.

    Args:
        value: arrays of a file or a loader's item.
        names: the inputs' names.
        given: the label's name, if the user named it.

    Raises:
        SampleError: an input is missing.
        LabelError: the label is missing or ambiguous.
    """
    if isinstance(value, Mapping):
        whole = {
            key: item
            for key, item in value.items()
            if isinstance(item, (list, tuple)) and key not in names and key in (given, *LABEL_NAMES)
        }  # a list of labels is one array
        rest = {key: item for key, item in value.items() if key not in whole}
        found = {".".join(path): leaf for path, leaf in iterate_leaves(rest, _is_label)} | whole
        name = _find_label_name(list(found), names, given)
        inputs = {key: leaf for key, leaf in found.items() if key != name}
        return make_content(inputs, names), to_label_array(found[name])
    if isinstance(value, (tuple, list)):
        pair = _split_pair(value, names)
        return make_content(pair[0], names), to_label_array(pair[1])
    raise LabelError(
        "has one array and no label",
        "save it in .npz with the inputs and `label` by name",
        ErrorCode.NO_LABEL,
    )


def _is_label(value: object) -> bool:
    """Whether the value is an array, a number or a text."""
    return is_array(value) or isinstance(value, (Real, str, bytes))


def _find_label_name(found: Sequence[str], names: Sequence[str], given: str | None) -> str:
    held = ", ".join(found) or "nothing"
    if given is not None:
        if given in found:
            return given
        raise LabelError(
            f"has no label {given!r}, only {held}", "name one of these: --label", ErrorCode.NO_LABEL
        )
    known = [name for name in found if name in LABEL_NAMES and name not in names]
    if len(known) == 1:
        return known[0]
    if known:
        raise LabelError(
            f"has {' and '.join(known)}",
            f"select the label: --label {known[0]}",
            ErrorCode.SEVERAL_LABELS,
        )
    others = [name for name in found if name not in names]
    hint = f"name the label: --label {others[0]}" if others else "save the labels as `label`"
    raise LabelError(f"has no label, only {held}", hint, ErrorCode.NO_LABEL)


def _split_pair(value: Sequence[object], names: Sequence[str]) -> tuple[object, object]:
    if len(value) == _PAIR and isinstance(value[0], (Mapping, tuple, list)):
        return value[0], value[1]
    if len(value) != len(names) + 1:
        raise LabelError(
            f"has {len(value)} elements; {', '.join(names)} and a label are {len(names) + 1}",
            "yield pairs of inputs and label, or a dict with the label by name",
        )
    return value[0] if len(names) == 1 else tuple(value[:-1]), value[-1]


def to_label_array(value: object) -> Array:
    """Return the label as an array of finite numbers.

    Raises:
        LabelError: it is text, NaN, or not numeric.
    """
    import numpy as np

    if is_tensor(value):
        array = to_array(value)  # type: ignore[arg-type]  # a tensor
    else:
        try:
            array = np.asarray(value)
        except ValueError as error:  # lists of unequal lengths
            raise LabelError(
                f"has a label that is not an array: {error}", "give numbers"
            ) from error
    if array.dtype.kind in "USO":
        shown = repr(array.reshape(-1)[0].item() if array.dtype.kind != "O" else value)
        raise LabelError(
            f"has the text {shown[:40]} as its label; labels are numbers",
            "use the number of the class, counted from 0",
        )
    if array.dtype.kind not in "fiub":
        raise LabelError(f"has a label of {array.dtype}", "give labels as numbers")
    if array.dtype.kind == "f" and not bool(np.isfinite(array).all()):
        count = int((~np.isfinite(array)).sum())
        raise LabelError(
            f"has NaN or Inf in {count:,} of {array.size:,} labels", "remove samples without label"
        )
    return array


def cut_labels(label: Array, rows: Sequence[Feed], *, stacked: bool) -> list[Array]:
    """Split the labels into one per row, each with a first axis of 1.

    Args:
        label: the label of the whole file or item.
        rows: the samples of the file or item.
        stacked: whether the inputs have a batch axis, so that the label may have one.

    Raises:
        LabelError: the numbers of labels and samples differ.
    """
    count = len(rows)
    if stacked and label.ndim and label.shape[0] == count:
        return [label[index : index + 1] for index in range(count)]
    if count == 1 and (not stacked or not label.ndim):
        return [label[None]]
    labels = label.shape[0] if label.ndim else 1
    raise LabelError(
        f"has {count:,} samples and {labels:,} label{'' if labels == 1 else 's'}",
        "give one label per sample",
    )


# Class names in the order of the outputs: `classes.txt`, or the sorted names of folders.


CLASSES_FILE = "classes.txt"


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file.

    Raises:
        UsageError: it cannot be read, or is not UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="save it as UTF-8 text") from error


def read_classes(folder: Path) -> tuple[str, ...]:
    """Return the names in the folder's `classes.txt`, one per line; empty without that file.

    Raises:
        UsageError: a name is empty or duplicated.
    """
    path = folder / CLASSES_FILE
    if not path.exists():
        return ()
    names = [line.strip() for line in read_lines(path)]
    while names and not names[-1]:
        names.pop()
    for number, name in enumerate(names, start=1):
        if not name or name in names[: number - 1]:
            what = f"names {name!r} twice" if name else f"is empty at line {number}"
            raise UsageError(
                f"{path} {what}", hint="write one class per line, in the outputs' order"
            )
    return tuple(names)


def order_classes(folder: Path, found: Sequence[str]) -> tuple[str, ...]:
    """Return the classes in the order of `classes.txt`, or sorted as by torchvision's ImageFolder.

    Raises:
        UsageError: a folder is not in `classes.txt`, or names are numbers whose numeric order
            differs.
    """
    listed = read_classes(folder)
    if listed:
        unlisted = sorted(set(found) - set(listed))
        if unlisted:
            raise UsageError(
                f"the folder {folder / unlisted[0]} is not in {folder / CLASSES_FILE}",
                hint=f"add {unlisted[0]!r} to {CLASSES_FILE}, or move the folder away",
                code=ErrorCode.UNKNOWN_CLASS,
            )
        return listed
    names = sorted(found)
    if all(name.isdecimal() for name in names) and names != sorted(names, key=int):
        first = next(a for a, b in pairwise(names) if int(a) > int(b))
        later = names[names.index(first) + 1]
        raise UsageError(
            f"the order of the class folders of {folder} is ambiguous: by name {first!r} comes "
            f"before {later!r}, as numbers it does not",
            hint=f"write {folder / CLASSES_FILE}: one folder name per line, in the "
            "order of the outputs",
            code=ErrorCode.CLASS_ORDER,
        )
    return tuple(names)


def parse_class(text: str, classes: Sequence[str]) -> int | float | None:
    """Parse a label: the name of a class, or a number; None for neither."""
    if text in classes:
        return classes.index(text)
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() else value
