"""Calibration samples of parts: what each receives while the whole runs on the user's samples."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...calibration.calibration_options import RANDOM, CalibrationOptions
from ...calibration.sample_reader import feed_digest
from ...core.contract import Feed, Outputs
from ...core.errors import ErrorCode, UsageError
from ...core.part_records import WHOLE
from ...core.records import sha256_of
from ...core.untrusted_files import read_npz
from ...validators.feed_values import check_samples
from ...validators.feeds import NamedFeed
from ..quantization import prepare_calibration
from ..run_progress import Progress
from .eager_parts import EagerWhole
from .judge_whole import WholeReference
from .part_inputs import CallRecorder
from .parts_file import CALIBRATION_FOLDER

_STEP = "run the pipeline on the calibration samples"


@dataclass(kw_only=True)
class CallSaver:
    """Saves the arguments of a part's calls: at most `most` of them, drawn from all calls alike.

    Calls with the same arguments count once.
    """

    folder: Path
    most: int
    draw: random.Random
    seen: int = 0
    known: set[bytes] = field(default_factory=set)

    def save(self, feed: Feed) -> None:
        """Save the arguments of one call, perhaps in place of another; none of them twice."""
        import numpy as np

        digest = feed_digest(feed)
        if digest in self.known:
            return
        self.known.add(digest)
        place, self.seen = self.seen, self.seen + 1
        if place >= self.most:
            place = self.draw.randrange(self.seen)
        if place < self.most:
            arrays: dict[str, Any] = dict(feed)
            np.savez(self.folder / f"{place:06}.npz", **arrays)


@dataclass(frozen=True, kw_only=True)
class PartCalibration:
    """The folders of the calibration samples of parts, and a note for the result."""

    folders: Mapping[str, Path] = field(default_factory=dict)
    note: str = ""


def calibrate_parts(
    options: CalibrationOptions,
    whole: EagerWhole,
    recorder: CallRecorder,
    out: Path,
    progress: Progress,
) -> PartCalibration:
    """Run the pipeline on calibration samples, and save the arguments of each part's calls.

    The calls are recorded too, so that what a part receives is within its inputs.

    Raises:
        UsageError: the samples cannot be used.
        CheckpointError: the pipeline rejects one.
    """
    import numpy as np

    savers = {name: _open_saver(out, name, options) for name in whole.parts.modules}

    def run(name: str, feed: Feed) -> Outputs:
        savers[name].save(feed)
        return recorder.record_call(name, feed)

    place = _make_folder(out, WHOLE)
    prepared = prepare_calibration(options, whole.signature, whole.feeds, progress)
    with prepared as samples, progress.step(_STEP, log="compose"):
        for number, feed in enumerate(samples.held_out, start=1):
            held: dict[str, Any] = dict(feed)
            np.savez(place / f"held-out-{number}.npz", **held)
        feeds = (*samples, *samples.held_out)
        for number, feed in enumerate(feeds, start=1):
            arrays, sizes = check_samples(whole.signature, feed)
            one = NamedFeed(name=f"calibration-{number}", arrays=arrays, sizes=sizes)
            recorder.begin(one)
            whole.run_with(one, dict.fromkeys(savers, run))
            progress.advance(_STEP, number, len(feeds))
    note = ""
    if options.source == RANDOM:
        note = f"calibrated with {len(feeds)} random samples: real data may be much less accurate"
    return PartCalibration(folders={name: one.folder for name, one in savers.items()}, note=note)


@dataclass(frozen=True, kw_only=True)
class HeldOutWhole:
    """Eager on the samples that nothing was calibrated with, their digests, and notes.

    Without samples, it is eager on the feeds of the whole.
    """

    reference: WholeReference
    digests: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def hold_out(
    reference: WholeReference,
    out: Path,
    recorded: Mapping[str, str] | None,
    advance: Callable[[], None],
) -> HeldOutWhole:
    """Run eager on the samples of the whole that nothing was calibrated with.

    Args:
        reference: eager on the feeds of the whole.
        out: the folder of the parts.
        recorded: the digests of those that the whole was judged on; None takes all that are there.
        advance: called after each run.

    Raises:
        UsageError: a sample does not fit the inputs.
        CheckpointError: eager rejects one.
    """
    place = out / CALIBRATION_FOLDER / WHOLE
    names = [one.name for one in place.glob("*.npz")] if recorded is None else [*recorded]
    if not names:
        return HeldOutWhole(reference=reference)
    digests = digest_held_out(out, names)
    if recorded is not None and digests != dict(recorded):
        lost = (
            f"samples in {place} are missing or changed: INT8 is judged on drawn feeds end to end"
        )
        return HeldOutWhole(reference=reference, notes=(lost,))
    feeds = []
    for name in digests:
        arrays, sizes = check_samples(reference.whole.signature, read_npz(place / name))
        feeds.append(NamedFeed(name=Path(name).stem, arrays=arrays, sizes=sizes))
    whole = replace(reference.whole, feeds=tuple(feeds))
    text = f"INT8 is judged end to end on {len(feeds)} samples that nothing was calibrated with"
    return HeldOutWhole(reference=WholeReference.of(whole, advance), digests=digests, notes=(text,))


def digest_held_out(out: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the digests of the samples of the whole that are in the folder of the parts."""
    place = out / CALIBRATION_FOLDER / WHOLE
    files = {name: place / name for name in sorted(names) if Path(name).name == name}
    return {
        name: sha256_of(file)
        for name, file in files.items()
        if file.is_file() and not file.is_symlink()
    }


def _open_saver(out: Path, part: str, options: CalibrationOptions) -> CallSaver:
    """Return what saves the calls of a part in an empty folder."""
    most = options.samples + options.hold_out
    return CallSaver(folder=_make_folder(out, part), most=most, draw=random.Random(options.seed))


def _make_folder(out: Path, part: str) -> Path:
    """Make an empty folder for the samples of a part, or of the whole.

    Raises:
        UsageError: it is a link.
    """
    root = out / CALIBRATION_FOLDER
    folder = root / part
    if root.is_symlink() or folder.is_symlink():
        raise UsageError(
            f"{folder} is a link, and the calibration samples of a part must be in {out}",
            hint="remove the link",
            code=ErrorCode.UNSAFE_PATH,
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
