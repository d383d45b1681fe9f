"""Calibration samples of parts: what each receives while the whole runs on the user's samples."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...calibration.calibration_options import RANDOM, CalibrationOptions
from ...calibration.sample_reader import feed_digest
from ...core.contract import Feed, Outputs
from ...core.errors import ErrorCode, UsageError
from ...validators.feed_values import check_samples
from ...validators.feeds import NamedFeed
from ..quantization import prepare_calibration
from ..run_progress import Progress
from .eager_parts import EagerWhole
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
    savers = {name: _open_saver(out, name, options) for name in whole.parts.modules}

    def run(name: str, feed: Feed) -> Outputs:
        savers[name].save(feed)
        return recorder.record_call(name, feed)

    prepared = prepare_calibration(options, whole.signature, whole.feeds, progress)
    with prepared as samples, progress.step(_STEP, log="compose"):
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


def _open_saver(out: Path, part: str, options: CalibrationOptions) -> CallSaver:
    """Make an empty folder for the samples of a part.

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
    most = options.samples + options.hold_out
    return CallSaver(folder=folder, most=most, draw=random.Random(options.seed))
