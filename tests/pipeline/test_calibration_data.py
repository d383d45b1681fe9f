"""Calibration samples for a run: judged beside its own feeds, recorded beside its manifest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from modelc.calibration.calibration_options import CalibrationOptions
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.events import Event, Finished, Noted, ignore_events
from modelc.core.signature import Signature
from modelc.pipeline.eager_reference import EagerReference, open_reference, read_checkpoint
from modelc.pipeline.order import Judging, Source
from modelc.pipeline.quantization import prepare_calibration, preview_calibration
from modelc.pipeline.run_progress import Progress
from modelc.validators.feeds import NamedFeed

from ..reasons import has_code

HELD_OUT = Path(__file__).parents[2] / "sample_models" / "digits_heldout.npz"
BERT = ("ids:int64[batch=1..4,seq=2..16]{0..99}", "mask:int64[batch=1..4,seq=2..16]{0..1}")


def judged(eager: EagerReference) -> tuple[Signature, list[NamedFeed]]:
    """The inputs, and the feeds that artifacts are judged on."""
    return eager.signature, [one.feed for one in eager.references]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Source], EagerReference]:
    """`opened(source)`: its subject."""

    def open_it(source: Source) -> EagerReference:
        stage = Progress(tell=ignore_events, logs=tmp_path_factory.mktemp("logs"))
        return open_reference(source, read_checkpoint(source, stage), Judging(), stage)

    return open_it


@pytest.fixture(scope="module")
def digits(opened: Callable[[Source], EagerReference], digits_source: Source) -> EagerReference:
    """Digits with their sample."""
    return opened(digits_source)


def test_labelled_samples_are_used_and_the_labels_are_reported(
    digits: EagerReference, tmp_path: Path
) -> None:
    told: list[Event] = []
    stage = Progress(tell=told.append, logs=tmp_path / "logs")
    options = CalibrationOptions(source=str(HELD_OUT), samples=100)
    with prepare_calibration(options, *judged(digits), stage, root=tmp_path) as found:
        assert {feed["x"].shape for feed in found} == {(1, 1, 8, 8)}
        assert (len(found), len(found.held_out)) == (100, 16)
        assert (tmp_path / found.record.source).resolve() == HELD_OUT.resolve()
    (end,) = (event for event in told if isinstance(event, Finished))
    assert (end.passed, end.detail) == (True, "100 of 450")
    assert any("position" in n.text or "y (1)" in n.text for n in told if isinstance(n, Noted))


def test_unscaled_samples_are_an_error_beside_a_sample(
    digits: EagerReference, tmp_path: Path
) -> None:
    raw = np.load(HELD_OUT)["x"] * 255
    np.save(tmp_path / "raw.npy", raw)
    options = CalibrationOptions(source=str(tmp_path / "raw.npy"))
    with pytest.raises(UsageError, check=has_code(ErrorCode.SAMPLES_UNFIT, naming="0..255")):
        prepare_calibration(
            options,
            *judged(digits),
            Progress(tell=ignore_events, logs=tmp_path / "logs"),
        )


def test_unscaled_samples_are_a_warning_without_a_sample(
    opened: Callable[[Source], EagerReference], digits_source: Source, tmp_path: Path
) -> None:
    bare = replace(digits_source, samples=None, inputs=("x:float32[batch=1..8,1,8,8]",))
    raw = np.load(HELD_OUT)["x"] * 255
    np.save(tmp_path / "raw.npy", raw)
    told: list[Event] = []
    stage = Progress(tell=told.append, logs=tmp_path / "logs")
    with prepare_calibration(
        CalibrationOptions(source=str(tmp_path / "raw.npy")), *judged(opened(bare)), stage
    ):
        warned = [n.text for n in told if isinstance(n, Noted) and n.warning]
    assert len(warned) == 1
    assert "scale" in warned[0]


def test_a_loader_in_the_working_folder_is_imported(
    digits: EagerReference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "calib_digits_loader.py").write_text(
        "import numpy as np\n"
        f"X = np.load({str(HELD_OUT)!r})['x']\n"
        "def loader():\n    print('chatter')\n    yield from ((x, 'label') for x in X)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    stage = Progress(tell=ignore_events, logs=tmp_path / "logs")
    options = CalibrationOptions(source="calib_digits_loader:loader", samples=32)
    with prepare_calibration(options, *judged(digits), stage) as found:
        assert (len(found), found.record.kind) == (32, "loader")
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_FOUND, naming="'missing'")):
        prepare_calibration(
            CalibrationOptions(source="calib_digits_loader:missing"),
            *judged(digits),
            stage,
        )


def test_random_samples_are_like_the_sample_and_repeat(
    digits: EagerReference, tmp_path: Path
) -> None:
    stage = Progress(tell=ignore_events, logs=tmp_path / "logs")
    records = []
    for seed in (0, 0, 1):
        options = CalibrationOptions(source="random", samples=40, seed=seed)
        with prepare_calibration(options, *judged(digits), stage) as found:
            records.append(found.record)
            assert found.report.inputs[0].total.low >= 0
            assert found.report.inputs[0].total.high <= 1
    assert records[0] == records[1]
    assert records[0].digest != records[2].digest
    assert any("synthetic" in text for text in records[0].findings)


def test_random_ids_and_masks_have_their_ranges_at_the_opt_size() -> None:
    report = preview_calibration(
        CalibrationOptions(source="random", samples=64), BERT, None, ignore_events
    )
    ids, mask = report.inputs
    assert (ids.shapes, mask.shapes) == (("1x9",), ("1x9",))
    assert 0 <= ids.total.low < ids.total.high <= 99
    assert (mask.total.low, mask.total.high) == (0, 1)


def test_a_preview_without_inputs_is_an_error() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INPUTS_UNKNOWN)) as refusal:
        preview_calibration(CalibrationOptions(source=str(HELD_OUT)), (), None, ignore_events)
    assert "--input" in refusal.value.hint


def test_a_thorough_preview_reads_all_samples() -> None:
    samples = HELD_OUT.with_name("digits_samples.npz")
    inputs = ("x[batch=1..8,_,_,_]",)
    options = CalibrationOptions(source=str(HELD_OUT), samples=64)
    report = preview_calibration(options, inputs, samples, ignore_events, thorough=True)
    assert (report.found, report.read, report.used, report.held_out) == (450, 450, 64, 16)
    assert preview_calibration(options, inputs, samples, ignore_events).read == 80
