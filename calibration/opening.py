"""Finds out what a calibration source is and opens it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.contract import Feed
from ..core.errors import UsageError
from ..core.loading import is_loader, items_of
from ..core.names import refuse_pipe
from .assume import ImageReaders
from .drawn import SyntheticSource
from .findings import FindingCollector, FindingKind
from .folder import FolderSource, list_sample_files
from .form import FeedForm
from .formats import SAMPLE_SUFFIXES, SHARD_SUFFIX, SampleSource
from .loader import LoaderSource
from .options import RANDOM, CalibrationOptions
from .preprocess import Preprocess
from .shards import ShardSource

_SYNTHETIC_COUNT = (
    4096  # drawn samples there are at most, where as many as there are were asked for
)


@dataclass(frozen=True, kw_only=True)
class LoaderHooks:
    """What the pipeline lends to a look at samples.

    `load` gives the object that `package.module:loader` names, `draw` the drawn sample i.
    `validation` are the feeds that the model is judged on; `own` says whether their values are
    the user's, or drawn like the user's: others say little of real data.
    """

    load: Callable[[str], object]
    draw: Callable[[int], Feed]
    validation: Sequence[Feed] = ()
    own: bool = False


@dataclass(frozen=True, kw_only=True)
class OpenedSource:
    """A source, who reads its images, and whether samples are still to be chosen from it."""

    source: SampleSource
    images: ImageReaders
    choose: bool = False


def open_source(
    options: CalibrationOptions,
    form: FeedForm,
    wanted: int,
    lent: LoaderHooks,
    findings: FindingCollector,
) -> OpenedSource:
    """Open a folder, a file, a loader, or the drawn samples; `wanted` are read at most.

    Raises:
        UsageError: there is no such source, or no sample in it.
    """
    path = Path(options.source)
    images = ImageReaders(options.preprocess, form.signature)
    chooses = options.selection == RANDOM
    if options.source == RANDOM:
        findings.add(
            FindingKind.DRAWN, "the samples are drawn, not real: true ranges may be far off"
        )
        return OpenedSource(
            source=SyntheticSource(lent.draw, min(wanted, _SYNTHETIC_COUNT)), images=images
        )
    if is_loader(options.source):
        loader = LoaderSource(options.source, items_of(options.source, lent.load), form)
        loader.spool(wanted, options.seed if chooses else None)
        source: SampleSource = loader
    else:
        source = _open_path(path, form, images, findings)
    if not len(source):
        told = ", ".join(f"{count:,} {what}" for what, count in source.skipped.items())
        raise UsageError(
            f"there are no samples in {options.source}" + (f", but {told}" if told else ""),
            hint=f"samples are {' '.join(SAMPLE_SUFFIXES)}",
        )
    return OpenedSource(source=source, images=images, choose=chooses and source.kind != "loader")


def _open_path(
    path: Path, form: FeedForm, images: ImageReaders, findings: FindingCollector
) -> SampleSource:
    if not path.exists():
        raise _no_source_error(path)
    refuse_pipe(path)
    listing = list_sample_files(path)
    for kind, count in listing.others.items():
        findings.add(
            FindingKind.MIXED,
            f"{count:,} {kind} beside {len(listing.groups[listing.main]):,} {listing.main} "
            "are not used",
            topic=kind,
        )
    if listing.main == SHARD_SUFFIX:
        return ShardSource(listing.groups[SHARD_SUFFIX], form.names, images)
    return FolderSource(listing, form.names, images)


def _no_source_error(path: Path) -> UsageError:
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    hint = "name a folder of samples, a shard, PKG.MOD:LOADER, or random"
    return UsageError(
        f"no such calibration data: {path}",
        hint=f"did you mean {path.parent / near[0]}?" if near else hint,
    )


def report_opened(
    opened: OpenedSource, given: Preprocess | None, findings: FindingCollector
) -> None:
    """What was assumed of images and what was passed over; told after the pass."""
    for assumed in opened.images.assumed:
        findings.add(FindingKind.ASSUMED, assumed)
    if given is not None and not opened.images.settled:
        findings.add(FindingKind.ASSUMED, "--preprocess has no effect: the samples hold no images")
    if opened.source.skipped:
        told = ", ".join(f"{count:,} {what}" for what, count in opened.source.skipped.items())
        findings.add(FindingKind.SKIPPED, f"passed over: {told}")
