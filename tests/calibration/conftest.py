"""Folders of samples, good and bad, and the two ways of opening them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modelc.calibration.calibration_options import FIRST, CalibrationOptions
from modelc.calibration.calibration_report import CalibrationReport, FindingKind, SampleFinding
from modelc.calibration.calibration_set import CalibrationSet, open_calibration, survey_samples
from modelc.calibration.sample_reader import LoaderHooks
from modelc.core.contract import Feed
from modelc.core.grammar import parse_input
from modelc.core.preprocess import Preprocess
from modelc.core.signature import Signature, merge_inputs


def no_load(spec: str) -> object:
    raise AssertionError(f"nothing was to be imported, but {spec}")


def no_draw(index: int) -> Feed:
    raise AssertionError(f"nothing was to be drawn, but sample {index}")


def signature_of(*texts: str) -> Signature:
    """The signature that these `--input` texts say."""
    return merge_inputs([parse_input(text) for text in texts], {})


class Asked:
    """One way to ask for samples, with everything else as it is by default."""

    def __init__(self, *inputs: str) -> None:
        self.signature = signature_of(*inputs)

    def _both(
        self,
        source: object,
        hooks: LoaderHooks | None,
        preprocess: str | None,
        options: dict[str, Any],
    ) -> tuple[CalibrationOptions, Signature, LoaderHooks]:
        steps = None if preprocess is None else Preprocess.parse(preprocess)
        options = {"selection": FIRST, **options}  # in the order of their names
        asked = CalibrationOptions(source=str(source), preprocess=steps, **options)
        return asked, self.signature, hooks or LoaderHooks(load=no_load, draw=no_draw)

    def look(
        self,
        source: object,
        *,
        hooks: LoaderHooks | None = None,
        preprocess: str | None = None,
        **options: Any,
    ) -> CalibrationReport:
        """A report, whatever is wrong."""
        return survey_samples(*self._both(source, hooks, preprocess, options))

    def open(
        self,
        source: object,
        *,
        hooks: LoaderHooks | None = None,
        preprocess: str | None = None,
        root: Path | None = None,
        **options: Any,
    ) -> CalibrationSet:
        """The set, or the refusal."""
        return open_calibration(*self._both(source, hooks, preprocess, options), root=root)


def loading(found: object) -> LoaderHooks:
    """Everything that is asked for by name is `found`."""
    return LoaderHooks(load=lambda _spec: found, draw=no_draw)


def judged_on(*feeds: Feed) -> LoaderHooks:
    """The user's own validation feeds."""
    return LoaderHooks(load=no_load, draw=no_draw, validation=feeds, own=True)


def found(report: CalibrationReport, kind: FindingKind) -> SampleFinding | None:
    """The first finding of the kind."""
    return next((one for one in report.findings if one.kind is kind), None)


def needed(report: CalibrationReport, kind: FindingKind) -> SampleFinding:
    """The finding of the kind, which has to be there."""
    finding = found(report, kind)
    assert finding is not None, [str(one) for one in report.findings]
    return finding


def photo(seed: int, height: int = 40, width: int = 48) -> Image.Image:
    """An RGB image with many distinct values."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def mask(seed: int, height: int = 40, width: int = 48) -> Image.Image:
    """A paletted label mask of four classes."""
    labels = np.random.default_rng(seed).integers(0, 4, (5, 6), dtype=np.uint8)
    image = Image.fromarray(labels).resize((width, height), Image.Resampling.NEAREST)
    image.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0, 128, 128, 0])
    return image


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Forty photos."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for index in range(40):
        photo(index).save(folder / f"{index:02}.png")
    return folder


@pytest.fixture
def save_arrays(tmp_path: Path) -> Callable[[Sequence[np.ndarray]], Path]:
    """`save_arrays(arrays)`: a folder with one .npy each, 00.npy and on."""

    def save(arrays: Sequence[np.ndarray]) -> Path:
        folder = tmp_path / "arrays"
        folder.mkdir()
        for index, array in enumerate(arrays):
            np.save(folder / f"{index:02}.npy", array)
        return folder

    return save


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Standard normal float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def normals(count: int, *shape: int) -> list[np.ndarray]:
    """Several of them, all different."""
    return [normal(*shape, seed=seed) for seed in range(count)]
