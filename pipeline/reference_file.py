"""Eager's outputs in files of a prepared folder, with which another host judges without the model.

The files are `.npz` archives of arrays without objects: reading them runs no code. One array,
`index`, holds a JSON document that says which array is what. Equal arrays are stored once.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..calibration.sample_reader import feed_digest
from ..checkpoints.data_branches import BranchReport
from ..checkpoints.eager_probes import DiscreteOrigin
from ..core.contract import Array, Feed, Outputs
from ..core.errors import ErrorCode, UsageError, first_line
from ..core.manifest import Manifest
from ..core.records import FileRecord, is_as_recorded
from ..core.signature import InputSpec
from ..core.untrusted_files import read_npz
from ..validators.feeds import NamedFeed
from ..validators.judge import ReferenceOutputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

REFERENCES_ROLE = "references"
LARGE_SIZE = 10**9  # bytes of references, beyond which a warning names the option to omit them
_FORMAT = 1
_INDEX = "index"
_KINDS = "fciub"  # of dtypes: floats, complex numbers, integers, bools
_TIME = (1980, 1, 1, 0, 0, 0)  # the same bytes for the same arrays
_LEVEL = 6  # of deflate

# Variants of eager's outputs on a feed.
RUN, EXACT, SEQUENTIAL, PLAIN = "run", "float64", "sequential sums", "plain attention"
LABELLED = "labelled"  # the output that a metric reads, on a batch of labelled data


def noise_variant(share: float, seed: int) -> str:
    """Return the variant of one perturbed run; a negative share reverses the perturbation."""
    return f"perturbed {share:.9g} {seed}"


def tie_variant(*, last: bool, exact: bool) -> str:
    """Return the variant in which ties are broken by index."""
    return f"ties {'last' if last else 'first'}{f' {EXACT}' if exact else ''}"


@dataclass(frozen=True, kw_only=True)
class StoredArray:
    """One output: the number of its array; with `delta`, of its difference from eager's run."""

    array: int
    delta: bool = False


@dataclass(frozen=True, kw_only=True)
class StoredFeed:
    """A feed as in `NamedFeed`, with the numbers of its arrays; `left_out` as in its reference."""

    name: str
    kind: str
    sizes: dict[str, int]
    beyond: bool
    hiding: tuple[str, ...]
    arrays: dict[str, int]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StoredAnswer:
    """Eager's outputs in one variant on the feed with this digest; None if it gives none."""

    feed: str
    variant: str
    outputs: dict[str, StoredArray] | None


@dataclass(frozen=True, kw_only=True)
class ReferenceIndex:
    """What the arrays of a file are, and what else judging asks of eager.

    `checkpoint` is the digest of the model's; `modelc` and `torch` are the versions of the run.
    `inputs` are the domain of the feeds. `same` are variants in which the model always gives what
    it gives in `RUN`. `moved` is how far noise moves an output on an extreme feed, by feed and
    output; `no_float64` is why there are no float64 outputs.
    """

    checkpoint: str
    modelc: str
    torch: str
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    feeds: tuple[StoredFeed, ...] = ()
    answers: tuple[StoredAnswer, ...] = ()
    same: tuple[str, ...] = ()
    moved: dict[str, float] = field(default_factory=dict)
    no_float64: str = ""
    origins: tuple[DiscreteOrigin, ...] = ()
    branches: BranchReport = field(default_factory=BranchReport)
    format: int = _FORMAT


class ReferenceWriter:
    """Writes a file: arrays as they come, then the index with all feeds and answers.

    The same content gives the same bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL)
        self._known: dict[bytes, int] = {}
        self._runs: dict[str, Outputs] = {}
        self._feeds: list[StoredFeed] = []
        self._answers: list[StoredAnswer] = []

    def add_feed(self, reference: ReferenceOutputs) -> None:
        """Add a feed with eager's outputs on it."""
        feed = reference.feed
        self._feeds.append(
            StoredFeed(
                name=feed.name,
                kind=feed.kind,
                sizes=dict(feed.sizes),
                beyond=feed.beyond,
                hiding=tuple(sorted(feed.hiding)),
                arrays={name: self._add(array) for name, array in feed.arrays.items()},
                left_out=tuple(sorted(reference.left_out)),
            )
        )
        self.add_answer(feed.arrays, RUN, reference.outputs)

    def know_run(self, feed: Feed, outputs: Outputs) -> None:
        """Note eager's outputs that another file holds: differences are taken from them."""
        self._runs[feed_digest(feed).hex()] = outputs

    def add_predictions(self, output: str, predictions: Mapping[str, Array]) -> None:
        """Add eager's predictions on labelled data, by digest of the feed."""
        for key, array in predictions.items():
            outputs = {output: StoredArray(array=self._add(array))}
            self._answers.append(StoredAnswer(feed=key, variant=LABELLED, outputs=outputs))

    def add_answer(self, feed: Feed, variant: str, outputs: Outputs | None) -> None:
        """Add eager's outputs in a variant; floats as differences from its run, which are small."""
        key = feed_digest(feed).hex()
        run = self._runs.get(key, {})
        if variant == RUN and outputs is not None:
            self._runs[key] = outputs
        stored = None if outputs is None else {
            name: self._add_output(array, run.get(name)) for name, array in outputs.items()
        }  # fmt: skip
        self._answers.append(StoredAnswer(feed=key, variant=variant, outputs=stored))

    def _add_output(self, array: Array, run: Array | None) -> StoredArray:
        import numpy as np

        if run is None or not _has_delta(array, run):
            return StoredArray(array=self._add(array))
        with np.errstate(over="ignore"):  # differences wrap around
            delta = np.asarray(_bits(array) - _bits(run.astype(array.dtype)))
        return StoredArray(array=self._add(delta), delta=True)

    def _add(self, array: Array) -> int:
        key = feed_digest({"": array})
        if key not in self._known:
            self._known[key] = len(self._known)
            self._write(str(self._known[key]), array)
        return self._known[key]

    def _write(self, name: str, array: Array) -> None:
        import numpy as np

        member = zipfile.ZipInfo(f"{name}.npy", _TIME)
        member.compress_type = zipfile.ZIP_DEFLATED
        with self._archive.open(member, "w", force_zip64=True) as stream:
            np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)

    def finish(self, index: ReferenceIndex) -> None:
        """Write the index and close the file."""
        import msgspec
        import numpy as np

        index = replace(index, feeds=tuple(self._feeds), answers=tuple(self._answers))
        self._write(_INDEX, np.frombuffer(msgspec.json.encode(index), dtype=np.uint8))
        self._archive.close()


def _has_delta(array: Array, run: Array) -> bool:
    floats = array.dtype.kind == run.dtype.kind == "f"
    return floats and array.shape == run.shape and array.dtype.itemsize >= run.dtype.itemsize


def _bits(array: Array) -> NDArray[np.signedinteger]:
    """Return the bits of floats as integers, whose differences wrap around."""
    import numpy as np

    bits: NDArray[np.signedinteger] = np.array(array, order="C").view(f"i{array.dtype.itemsize}")
    return bits


@dataclass(frozen=True, kw_only=True)
class StoredReferences:
    """The content of a step's reference files; `answers` by digest of the feed and variant."""

    index: ReferenceIndex
    references: tuple[ReferenceOutputs, ...]
    answers: Mapping[tuple[str, str], Outputs | None]


class ReferenceFileError(UsageError):
    """The references of a step are missing, changed, damaged, or those of another model."""


def read_references(
    folder: Path, files: Sequence[FileRecord], manifest: Manifest
) -> StoredReferences:
    """Read the references of a pending step; the last file has the index of the step.

    Raises:
        ReferenceFileError: a file is missing, is not as recorded, or does not fit the manifest.
    """
    answers: dict[tuple[str, str], Outputs | None] = {}
    feeds: list[tuple[StoredFeed, NamedFeed]] = []
    index: ReferenceIndex | None = None
    for file in files:
        path = folder / file.name
        if not is_as_recorded(path, file):
            state = "changed since it was written" if path.is_file() else "is missing"
            raise _make_fault(file.name, state, ErrorCode.FILE_CHANGED)
        try:
            index, arrays = _read_file(path)
            _check_fits(index, manifest)
            feeds += [(one, _read_feed(one, arrays, index)) for one in index.feeds]
            _read_answers(index, arrays, answers)
        except (ValueError, KeyError) as error:
            raise _make_fault(file.name, f"is damaged: {first_line(error)}") from error
    if index is None:
        raise RuntimeError("the step has no references")
    found = tuple(_make_reference(*one, answers, files[-1].name) for one in feeds)
    if all(one.feed.beyond for one in found):
        raise _make_fault(files[-1].name, "holds no feed within the domain")
    return StoredReferences(index=index, references=found, answers=answers)


def _make_fault(
    name: str, text: str, code: ErrorCode = ErrorCode.CORRUPT_FILE
) -> ReferenceFileError:
    hint = "copy the folder again, or prepare it again from the checkpoint"
    return ReferenceFileError(f"{name} {text}", hint=hint, code=code)


def _read_file(path: Path) -> tuple[ReferenceIndex, dict[str, Array]]:
    import msgspec
    import numpy as np

    arrays = read_npz(path)
    text = arrays.pop(_INDEX, None)
    if text is None or text.dtype != np.uint8:
        raise ValueError("it has no index")
    try:
        index = msgspec.json.decode(text.tobytes(), type=ReferenceIndex)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"its index cannot be read: {first_line(error)}") from error
    if index.format != _FORMAT:
        raise ValueError(f"its format is {index.format}; this modelc reads {_FORMAT}")
    odd = next((a.dtype for a in arrays.values() if a.dtype.kind not in _KINDS), None)
    if odd is not None:
        raise ValueError(f"it has an array of {odd}")
    return index, arrays


def _check_fits(index: ReferenceIndex, manifest: Manifest) -> None:
    """Check that checkpoint, inputs and outputs are those of the manifest; raises ValueError."""
    if index.checkpoint != manifest.checkpoint.digest:
        raise ValueError("it belongs to another checkpoint")
    if index.outputs != manifest.signature.outputs:
        raise ValueError("its outputs are not those of the manifest")
    ours = [(one.name, one.dtype, len(one.dims)) for one in index.inputs]
    if ours != [(one.name, one.dtype, len(one.dims)) for one in manifest.signature.inputs]:
        raise ValueError("its inputs are not those of the manifest")


def _read_feed(stored: StoredFeed, arrays: Mapping[str, Array], index: ReferenceIndex) -> NamedFeed:
    """Return the feed, checked against the inputs; raises ValueError or KeyError."""
    if tuple(stored.arrays) != tuple(spec.name for spec in index.inputs):
        raise ValueError(f"feed {stored.name!r} has other inputs")
    found = {name: arrays[str(number)] for name, number in stored.arrays.items()}
    for spec in index.inputs:
        array = found[spec.name]
        fits = array.ndim == len(spec.dims) and all(
            dim.low <= size and (size <= dim.high or not dim.bounded)
            for dim, size in zip(spec.dims, array.shape, strict=True)
        )
        if array.dtype.name != spec.dtype or not fits:
            raise ValueError(f"feed {stored.name!r} does not fit input {spec.name!r}")
    return NamedFeed(
        name=stored.name,
        arrays=found,
        sizes=dict(stored.sizes),
        kind=stored.kind,
        beyond=stored.beyond,
        hiding=frozenset(stored.hiding),
    )


def _read_answers(
    index: ReferenceIndex,
    arrays: Mapping[str, Array],
    answers: dict[tuple[str, str], Outputs | None],
) -> None:
    """Add the answers of a file; raises ValueError or KeyError."""
    for one in index.answers:
        run = answers.get((one.feed, RUN)) or {}
        outputs = None if one.outputs is None else {
            name: _read_output(name, stored, arrays, run) for name, stored in one.outputs.items()
        }  # fmt: skip
        if one.variant == RUN and (outputs is None or tuple(outputs) != index.outputs):
            raise ValueError("eager's outputs on a feed are not all there")
        if outputs is not None and not set(outputs) <= set(index.outputs):
            raise ValueError(f"{one.variant!r} has unknown outputs")
        answers[one.feed, one.variant] = outputs


def _read_output(
    name: str, stored: StoredArray, arrays: Mapping[str, Array], run: Outputs
) -> Array:
    import numpy as np

    array = arrays[str(stored.array)]
    if not stored.delta:
        return array
    base = run[name]
    fits = array.dtype.kind == "i" and base.dtype.kind == "f"
    if base.shape != array.shape or not fits or array.dtype.itemsize == 1:  # no float of a byte
        raise ValueError(f"a difference of {name!r} does not fit")
    kind = np.dtype(f"f{array.dtype.itemsize}")
    with np.errstate(over="ignore"):
        bits = np.asarray(_bits(base.astype(kind)) + array)
    restored: Array = bits.view(kind)
    return restored


def _make_reference(
    stored: StoredFeed,
    feed: NamedFeed,
    answers: Mapping[tuple[str, str], Outputs | None],
    file: str,
) -> ReferenceOutputs:
    outputs = answers.get((feed_digest(feed.arrays).hex(), RUN))
    if outputs is None:
        raise _make_fault(file, f"has no outputs on feed {feed.name!r}")
    return ReferenceOutputs(feed=feed, outputs=outputs, left_out=frozenset(stored.left_out))


def iter_references(manifest: Manifest) -> Iterator[FileRecord]:
    """Yield the reference files of all pending steps, each once."""
    yield from dict.fromkeys(file for one in manifest.pending for file in one.references)
