"""The labelled set: samples with their labels, read by the readers that calibration has.

Every iteration reads anew and holds no more than one file and one batch.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from ..core.contract import Array, Feed
from ..core.errors import UsageError
from ..core.nested_values import is_loader_spec, load_items, wrap_loader_errors
from ..core.signature import Signature
from .calibration_options import LabelledOptions
from .calibration_report import FINDING_HINTS
from .feed_form import FeedForm
from .label_files import LabelledSource, open_labelled_path
from .labels import cut_labels, split_label
from .sample_content import SampleContent, SampleError
from .sample_formats import ImageReaders
from .sample_reader import feed_digest


@dataclass(frozen=True, kw_only=True)
class LabelledBatch:
    """Samples that are fed at once.

    `names` has one name a sample. The first `len(names)` rows of the feed are theirs; rows that
    fill it up to the fewest that the model takes repeat the last. `labels` has one row a sample.
    Where no axis counts samples, `axis` is False: the feed is one sample as it is.
    """

    names: tuple[str, ...]
    feed: Feed
    labels: Array
    digest: bytes
    axis: bool = True


class LabelledSet:
    """Labelled samples in batches of the size that the signature tunes for.

    Close it, or use it as a context manager: what a loader yields lies in a folder of its own.
    """

    def __init__(
        self, source: LabelledSource, images: ImageReaders, form: FeedForm, options: LabelledOptions
    ) -> None:
        self._source = source
        self._images = images
        self._options = options
        self._form = form
        # one row a sample, however many the model wants at once
        self._row_form = replace(self._form, per_feed=min(self._form.per_feed, 1))

    @property
    def source(self) -> str:
        """What the user named."""
        return self._options.source

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names in the order of the outputs; empty where only numbers are known."""
        return self._source.classes

    @property
    def preprocess(self) -> str:
        """What was done to images so far; empty without any."""
        return self._images.text

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed and passed over so far."""
        told = [f"passed over: {count:,} {what}" for what, count in self._source.skipped.items()]
        if self._options.preprocess is not None and not self._images.settled:
            told.append("it holds no images: --preprocess is not applied to it")
        return (*self._images.assumed, *told)

    @property
    def places(self) -> int:
        """Files or items; a place may hold several samples."""
        return len(self._source)

    @property
    def batch(self) -> int:
        """How many samples are fed at once: the opt size of the batch axis."""
        specs = self._form.signature.inputs
        dims = [spec.dims[0] for spec in specs if spec.name in self._form.batched]
        return max(dims[0].opt, 1) if dims and self._form.per_feed else 1

    def __iter__(self) -> Iterator[LabelledBatch]:
        """Every sample in order, neighbours of one shape together.

        Raises:
            UsageError: a file cannot be read, does not fit the inputs, or has no usable label.
        """
        waiting: list[tuple[str, Feed, Array]] = []
        for sample in self._samples():
            if waiting and (len(waiting) == self.batch or not self._alike(waiting[0], sample)):
                yield self._together(waiting)
                waiting = []
            waiting.append(sample)
        if waiting:
            yield self._together(waiting)

    def _samples(self) -> Iterator[tuple[str, Feed, Array]]:
        for place in range(len(self._source)):
            name = self._source.name(place)
            try:
                yield from self._rows(place, name)
            except SampleError as error:
                hint = getattr(
                    error, "hint", FINDING_HINTS.get(error.kind, "save the sample again")
                )
                raise UsageError(
                    f"labelled data {self.source}: {name} {error.reason}", hint=hint
                ) from error

    def _rows(self, place: int, name: str) -> Iterator[tuple[str, Feed, Array]]:
        content, label = self._source.read(place)
        rows = self._row_form.rows(content.parts)
        if self._source.is_shared:
            labels = [label[None]] * len(rows)
        else:
            labels = cut_labels(label, rows, stacked=self._has_axis(content.parts))
        for index, (row, one) in enumerate(zip(rows, labels, strict=True)):
            told = name if len(rows) == 1 else f"{name} row {index}"
            yield told, self._row_form.fit(row), one

    def _has_axis(self, parts: Feed) -> bool:
        """Whether the arrays came with a batch axis."""
        specs = self._form.signature.inputs
        first = next((spec for spec in specs if spec.name in self._form.batched), None)
        counts = first is not None and bool(self._form.per_feed)
        return counts and first is not None and parts[first.name].ndim == len(first.dims)

    def _alike(self, one: tuple[str, Feed, Array], other: tuple[str, Feed, Array]) -> bool:
        """Whether two samples can be fed at once: of one shape, and equal where no axis counts."""
        import numpy as np

        if not self._form.per_feed or one[2].shape != other[2].shape:
            return False
        return all(
            array.shape == other[1][name].shape
            and (name in self._form.batched or np.array_equal(array, other[1][name]))
            for name, array in one[1].items()
        )

    def _together(self, samples: list[tuple[str, Feed, Array]]) -> LabelledBatch:
        import numpy as np

        feeds = [feed for _, feed, _ in samples]
        missing = self._form.per_feed - len(feeds)
        if self._form.per_feed:
            feeds = feeds + [feeds[-1]] * max(missing, 0)
        labels = np.concatenate([label for _, _, label in samples])
        feed = self._form.stack(feeds)
        digest = hashlib.sha256(feed_digest(feed) + feed_digest({"label": labels})).digest()
        return LabelledBatch(
            names=tuple(name for name, _, _ in samples),
            feed=feed,
            labels=labels,
            digest=digest,
            axis=bool(self._form.per_feed),
        )

    def close(self) -> None:
        """Remove what was written aside."""
        if isinstance(self._source, LabelledLoader):
            self._source.close()

    def __enter__(self) -> LabelledSet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_labelled_set(
    options: LabelledOptions, signature: Signature, load: Callable[[str], object]
) -> LabelledSet:
    """Open a folder, a file or a loader; nothing but names is read, unless it is a loader.

    Args:
        options: which samples.
        signature: what goes into the model.
        load: gives the object that `package.module:loader` names.

    Raises:
        UsageError: there are no labelled samples.
    """
    path = Path(options.source)
    images, form = ImageReaders(options.preprocess, signature), FeedForm.of(signature)
    source: LabelledSource
    if is_loader_spec(options.source):
        loader = LabelledLoader(options.source, form)
        loader.spool(load_items(options.source, load), options.label)
        source = loader
    elif not path.exists():
        raise UsageError(
            f"no such labelled data: {path}", hint="name a folder, a file or PKG.MOD:LOADER"
        )
    else:
        source = open_labelled_path(path, form.names, images, options.label)
    if not len(source):
        raise UsageError(
            f"there are no samples in {options.source}", hint="give inputs with their labels"
        )
    return LabelledSet(source, images, form, options)


# Labelled samples from the user's own code, written aside once: loaders shuffle, or end.


class LabelledLoader:
    """What a loader yields, an item a place. The folder goes with the source, or at `close()`.

    It is iterated once: eager and every artifact must be fed the same samples in the same order.
    """

    is_shared = False
    classes: tuple[str, ...] = ()
    skipped: Mapping[str, int] = {}

    def __init__(self, spec: str, form: FeedForm) -> None:
        self._spec = spec
        self._names = form.names
        self._folder = Path(tempfile.mkdtemp(prefix="modelc-labelled-"))
        self.close = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._count = 0

    def spool(self, items: Iterable[object], label: str | None) -> None:
        """Write every item aside.

        Raises:
            UsageError: the loader raised, or an item is no pair of inputs and label.
        """
        import numpy as np

        for item in wrap_loader_errors(items, self._spec):
            try:
                content, found = split_label(item, self._names, label)
            except SampleError as error:
                hint = getattr(error, "hint", "yield pairs of inputs and label, or dicts with both")
                raise UsageError(f"{self.name(self._count)} {error.reason}", hint=hint) from error
            arrays = [content.parts[name] for name in self._names]
            np.savez(self._path(self._count), *arrays, found)  # by position: names may be any
            self._count += 1

    def _path(self, place: int) -> Path:
        return self._folder / f"{place}.npz"

    def __len__(self) -> int:
        return self._count

    def name(self, place: int) -> str:
        """The item's number."""
        return f"{self._spec} item {place}"

    def read(self, place: int) -> tuple[SampleContent, Array]:
        """The item as the loader gave it."""
        import numpy as np

        with np.load(self._path(place), allow_pickle=False) as archive:
            *parts, label = (archive[f"arr_{index}"] for index in range(len(self._names) + 1))
        return SampleContent(parts=dict(zip(self._names, parts, strict=True))), label
