"""The labelled set: samples with labels, read by the readers of calibration.

Each iteration reads from the source again and holds at most one file and one batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from ..core.contract import Array, Feed
from ..core.errors import ErrorCode, UsageError
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
from .sample_sources import ArraySpool


@dataclass(frozen=True, kw_only=True)
class LabelledBatch:
    """Samples of one feed.

    `names` and `labels` have one row per sample. The first `len(names)` rows of the feed belong to
    them; rows that pad the feed to the smallest batch size repeat the last sample. `axis` is False
    if the model has no batch axis and the feed is one sample.
    """

    names: tuple[str, ...]
    feed: Feed
    labels: Array
    digest: bytes
    axis: bool = True


class LabelledSet:
    """Labelled samples in batches of the signature's opt size.

    Close it, or use it as a context manager: a loader's samples occupy a temporary folder.
    """

    def __init__(
        self, source: LabelledSource, images: ImageReaders, form: FeedForm, options: LabelledOptions
    ) -> None:
        self._source = source
        self._images = images
        self._options = options
        self._form = form
        # one row per sample, whatever the smallest batch size
        self._row_form = replace(self._form, per_feed=min(self._form.per_feed, 1))

    @property
    def source(self) -> str:
        """The source as the user named it."""
        return self._options.source

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the outputs; empty if unknown."""
        return self._source.classes

    @property
    def preprocess(self) -> str:
        """The preprocessing of images so far; empty without images."""
        return self._images.text

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions and ignored files so far."""
        notes = [f"ignored: {count:,} {what}" for what, count in self._source.skip_counts.items()]
        if self._options.preprocess is not None and not self._images.settled:
            notes.append("--preprocess does not apply: there are no images")
        return (*self._images.assumed, *notes)

    @property
    def places(self) -> int:
        """The number of files or items; each may hold several samples."""
        return self._source.count

    @property
    def batch(self) -> int:
        """The number of samples per feed: the opt size of the batch axis."""
        batch = self._form.batch
        return max(batch.opt, 1) if batch is not None and self._form.per_feed else 1

    def __iter__(self) -> Iterator[LabelledBatch]:
        """Yield batches of consecutive samples of one shape.

        Raises:
            UsageError: a file cannot be read, does not fit the inputs, or has no usable label.
        """
        waiting: list[tuple[str, Feed, Array]] = []
        for sample in self._samples():
            if waiting and (len(waiting) == self.batch or not self._can_stack(waiting[0], sample)):
                yield self._stack_batch(waiting)
                waiting = []
            waiting.append(sample)
        if waiting:
            yield self._stack_batch(waiting)

    def _samples(self) -> Iterator[tuple[str, Feed, Array]]:
        for place in range(self._source.count):
            name = self._source.name(place)
            try:
                yield from self._rows(place, name)
            except SampleError as error:
                hint = error.hint or FINDING_HINTS.get(error.kind, "save the sample again")
                raise UsageError(
                    f"labelled data {self.source}: {name} {error.reason}",
                    hint=hint,
                    code=error.code,
                ) from error

    def _rows(self, place: int, name: str) -> Iterator[tuple[str, Feed, Array]]:
        content, label = self._source.read(place)
        rows = self._row_form.rows(content.parts)
        if self._source.is_shared:
            labels = [label[None]] * len(rows)
        else:
            specs = [one for one in self._form.signature.inputs if one.name in self._form.axes]
            has_axis = specs and content.parts[specs[0].name].ndim == len(specs[0].dims)
            labels = cut_labels(label, rows, stacked=bool(has_axis and self._form.per_feed))
        for index, (row, one) in enumerate(zip(rows, labels, strict=True)):
            shown = name if len(rows) == 1 else f"{name} row {index}"
            yield shown, self._row_form.fit(row), one

    def _can_stack(self, one: tuple[str, Feed, Array], other: tuple[str, Feed, Array]) -> bool:
        """Whether two samples fit one feed: same shapes, and equal inputs without a batch axis."""
        import numpy as np

        if not self._form.per_feed or one[2].shape != other[2].shape:
            return False
        return all(
            array.shape == other[1][name].shape
            and (name in self._form.axes or np.array_equal(array, other[1][name]))
            for name, array in one[1].items()
        )

    def _stack_batch(self, samples: list[tuple[str, Feed, Array]]) -> LabelledBatch:
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
        """Delete the temporary samples of a loader."""
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
    """Open a folder, a file or a loader; only a loader is read at once.

    Args:
        options: the samples to use.
        signature: the model's inputs.
        load: imports `package.module:loader`.

    Raises:
        UsageError: there are no labelled samples.
    """
    path = Path(options.source)
    images, form = ImageReaders(options.preprocess, signature), FeedForm.of(signature)
    if is_loader_spec(options.source):
        items = load_items(options.source, load)
        source = _open_labelled_loader(options.source, items, form.names, options.label)
    elif not path.exists():
        raise UsageError(
            f"no such labelled data: {path}",
            hint="name a folder, a file or PKG.MOD:LOADER",
            code=ErrorCode.NOT_FOUND,
        )
    else:
        source = open_labelled_path(path, form.names, images, options.label)
    if not source.count:
        raise UsageError(
            f"there are no samples in {options.source}",
            hint="provide inputs with labels",
            code=ErrorCode.NO_SAMPLES,
        )
    return LabelledSet(source, images, form, options)


# Labelled samples of a loader, written to disk once: loaders shuffle, or end.


def _open_labelled_loader(
    spec: str, items: Iterable[object], names: Sequence[str], label: str | None
) -> LabelledSource:
    """Write a loader's items to a temporary folder, one per place.

    The loader is iterated once, so eager and every artifact get the same samples in the same order.

    Raises:
        UsageError: the loader raised, or an item is not a pair of inputs and label.
    """
    spool = ArraySpool()
    count = 0
    for item in wrap_loader_errors(items, spec):
        try:
            content, found = split_label(item, names, label)
        except SampleError as error:
            hint = error.hint or "yield pairs of inputs and label, or dicts with both"
            raise UsageError(
                f"{spec} item {count} {error.reason}", hint=hint, code=error.code
            ) from error
        spool.write(count, [*(content.parts[name] for name in names), found])
        count += 1

    def read(place: int) -> tuple[SampleContent, Array]:
        *parts, found = spool.read(place)
        return SampleContent(parts=dict(zip(names, parts, strict=True))), found

    return LabelledSource(
        count=count, name=lambda place: f"{spec} item {place}", read=read, close=spool.close
    )
