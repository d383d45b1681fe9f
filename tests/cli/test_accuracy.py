"""`--data`, `--metric` and `--max-drop` on the command line, on real digits."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

SAMPLE_MODELS = Path(__file__).parents[2] / "sample_models"
HELD_OUT = SAMPLE_MODELS / "digits_heldout.npz"
Ran: TypeAlias = "subprocess.CompletedProcess[str]"
Door = Callable[..., Ran]
METRIC = """
import numpy as np

def recall_of_eights(predictions, labels):
    found = [p.argmax() == 8 for p, y in zip(predictions, labels) if y == 8]
    return float(np.mean(found))

recall_of_eights.higher_is_better = True

def broken(predictions, labels):
    return 1 / 0

broken.higher_is_better = True

def batches():
    held = np.load(HELD_OUT)
    for start in range(0, 64, 16):
        yield held["x"][start:start + 16], held["y"][start:start + 16]
"""


def lines(ran: Ran) -> list[str]:
    return [" ".join(line.split()) for line in ran.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.needs("openvino")
def test_eager_and_artifacts_stand_side_by_side(
    door: Door, digits: tuple[str, ...], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ran = door(
        "export", *digits, "--to", "onnx", "--to", "openvino:fp16", "--data", HELD_OUT,
        "--max-drop", "1%", "-o", out,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    told = lines(ran)
    assert any(line.startswith("top1 of 450 samples ") for line in told)
    row = "99.33% 99.33% 0.00 points -0.94 to 0.94 points 0 1.00 points"
    assert f"onnx {row}" in told
    assert f"openvino-fp16 {row}" in told
    again = door("validate", out, "--data", SAMPLE_MODELS / "digits_calib", "--json", "-q")
    found = [a["accuracy"] for a in json.loads(again.stdout)["artifacts"]]
    assert [(one["samples"], one["eager"], one["max_drop"]) for one in found] == [
        (128, 1, 0.01)
    ] * 2
    kept = json.loads(door("validate", out, "--json", "-q").stdout)
    assert [a["accuracy"] for a in kept["artifacts"]] == found


@pytest.mark.slow
@pytest.mark.needs("onnx")
def test_a_metric_and_a_loader_of_ones_own(
    door: Door, digits: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_metric_here.py").write_text(f"HELD_OUT = {str(HELD_OUT)!r}\n{METRIC}")
    ran = door(
        "export", *digits, "--to", "onnx", "--data", "own_metric_here:batches",
        "--metric", "own_metric_here:recall_of_eights", "-o", "out", "--json", "-q",
    )  # fmt: skip
    accuracy = json.loads(ran.stdout)["artifacts"][0]["accuracy"]
    assert ran.returncode == 0
    assert (accuracy["samples"], accuracy["drop"]) == (64, 0)
    assert accuracy["metric"] == "own_metric_here:recall_of_eights"
    assert accuracy["method"].startswith("paired bootstrap")
    broken = door(
        "export", *digits, "--to", "onnx", "--data", "own_metric_here:batches",
        "--metric", "own_metric_here:broken", "-o", "out2", "-q",
    )  # fmt: skip
    assert broken.returncode == 2
    assert "own_metric_here:broken" in broken.stderr
    assert "ZeroDivisionError" in broken.stderr
    assert "Traceback" not in broken.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--metric", "top1"), "--metric has no effect without --data"),
        (("--max-drop", "1%"), "--max-drop has no effect without --data"),
        (("--label", "y"), "--label has no effect without --data"),
        (("--data", "none"), "no such labelled data: none"),
        (("--data", HELD_OUT, "--max-drop", "0.5"), "50 %"),
        (("--data", HELD_OUT, "--max-drop", "much"), "'much'"),
        (("--data", HELD_OUT, "--metric", "top3"), "unknown metric 'top3'"),
        (("--data", HELD_OUT, "--label", "z"), "has no label 'z'"),
        (("--data", HELD_OUT, "--metric-output", "z"), "unknown --metric-output 'z'"),
    ],
)
def test_bad_options_are_refused_in_one_line(
    refuse: Callable[..., str], digits: tuple[str, ...], options: tuple[object, ...], words: str
) -> None:
    assert words in refuse("export", *digits, "--to", "onnx", *options, code=2)


@pytest.mark.parametrize("command", ["validate", "build-trt"])
def test_preprocessing_of_nothing_is_refused(
    refuse: Callable[..., str], exported_digits: Path, command: str
) -> None:
    told = refuse(command, exported_digits, "--preprocess", "resize=8x8", code=2)
    assert "--preprocess" in told
    assert "--data" in told


@pytest.mark.needs("onnx")
def test_a_single_file_is_measured_on_labelled_data(door: Door, exported_digits: Path) -> None:
    file = exported_digits / "model.onnx"
    ran = door("validate", file, "--data", HELD_OUT, "--max-drop", "0", "--json", "-q")
    assert ran.returncode == 0, ran.stderr
    notes = json.loads(ran.stdout)["notes"]
    assert any("top1 on 450 labelled samples: eager 99.33%, artifact 99.33%" in n for n in notes)


def test_images_may_be_preprocessed_without_calibration(
    refuse: Callable[..., str], digits: tuple[str, ...]
) -> None:
    told = refuse(
        "export", *digits, "--to", "onnx", "--data", SAMPLE_MODELS / "digits_calib",
        "--preprocess", "resize=9x9", code=2,
    )  # fmt: skip
    assert "labelled data" in told
    assert "size 9 where" in told


def test_labels_that_fit_no_output_are_refused(
    refuse: Callable[..., str], digits: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("data") / "a.npz"
    np.savez(path, x=np.zeros((2, 1, 8, 8), np.float32), y=np.array([0, 12]))
    told = refuse("export", *digits, "--to", "onnx", "--data", path, code=2)
    assert "a.npz row 1 " in told
