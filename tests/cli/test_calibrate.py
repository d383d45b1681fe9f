"""`modelc calibrate`: what it shows, and how it ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Door = Callable[..., "subprocess.CompletedProcess[str]"]
DIGITS = Path(__file__).parents[2] / "sample_models" / "digits_heldout.npz"
INPUT = ("--input", "x:float32[batch=1..8,1,8,8]")
PEAK = """
import resource, sys
from modelc.cli.app import run_cli
code = run_cli(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty-four of the held-out digits as PNG files, ink from 0 to 255."""
    folder = tmp_path_factory.mktemp("images")
    for index, digit in enumerate(np.load(DIGITS)["x"][:64]):
        pixels = (digit[0] * 255).round().astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:02}.png")
    return folder


def test_clean_images_are_shown_and_end_with_0(door: Door, images: Path) -> None:
    ran = door("calibrate", images, *INPUT, "--preprocess", "unit")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert re.findall(r"\d+", lines[0].rpartition("): ")[2]) == ["64", "64", "52", "12", "0"]
    assert lines[1] == "preprocess: layout=NCHW,channels=gray,scale=1/255"
    (row,) = (line.split() for line in lines if line.strip().startswith("x "))
    assert row[:5] == ["x", "float32", "1x1x8x8", "0", "1"]
    assert "█" in row[-1]
    assert lines[-1] == "usable"
    assert ran.stderr.startswith("✓ calibration samples")


def test_a_planted_nan_is_shown_by_name_and_ends_with_1(door: Door, tmp_path: Path) -> None:
    for index, digit in enumerate(np.load(DIGITS)["x"][:40]):
        np.save(tmp_path / f"{index:02}.npy", digit)
    assert door("calibrate", tmp_path, *INPUT).returncode == 0
    bad = np.load(DIGITS)["x"][7]
    bad[0, 3, 3] = np.nan
    np.save(tmp_path / "23.npy", bad)
    ran = door("calibrate", tmp_path, *INPUT)
    assert ran.returncode == 1
    (error,) = (line for line in ran.stdout.splitlines() if line.startswith("error: "))
    assert error.startswith("error: 23.npy: ")
    assert "1 NaN" in error
    assert ran.stdout.splitlines()[-1] == "not usable: 1 error"
    assert ran.stderr.startswith("✗ calibration samples")


def test_all_findings_are_shown_not_the_first_alone(door: Door, tmp_path: Path) -> None:
    for index, digit in enumerate(np.load(DIGITS)["x"][:40]):
        np.save(tmp_path / f"{index:02}.npy", digit)
    np.save(tmp_path / "03.npy", np.full((1, 8, 8), np.inf, np.float32))
    np.save(tmp_path / "04.npy", np.zeros((2, 2), np.float32))
    (tmp_path / "05.npy").write_bytes(b"garbage")
    np.save(tmp_path / "06.npy", np.load(tmp_path / "07.npy"))
    ran = door("calibrate", tmp_path, *INPUT)
    told = [line.split(":")[:2] for line in ran.stdout.splitlines() if ".npy" in line]
    assert told == [
        ["error", " 03.npy"], ["error", " 04.npy"], ["error", " 05.npy"], ["warning", " 07.npy"]
    ]  # fmt: skip


def test_images_that_are_not_scaled_are_refused_beside_the_models_own_sample(
    door: Door, images: Path
) -> None:
    own = ("--samples", DIGITS.with_name("digits_samples.npz"), "--input", "x[batch=1..8,_,_,_]")
    assert door("calibrate", images, *own, "--preprocess", "unit").returncode == 0
    ran = door("calibrate", images, *own, "--preprocess", "raw")
    assert ran.returncode == 1
    assert "0..255" in ran.stdout
    assert "0..1" in ran.stdout


def test_the_document_holds_all_of_it(door: Door, images: Path) -> None:
    ran = door("calibrate", images, *INPUT, "--json", "-q")
    document = json.loads(ran.stdout)
    assert (document["read"], document["kind"]) == (64, "folder")
    assert sum(document["inputs"][0]["histogram"]) == 64 * 64
    assert [one["kind"] for one in document["findings"]] == ["assumed"]
    assert ran.stderr == ""


def test_fewer_samples_and_a_selection_may_be_asked_for(door: Door, images: Path) -> None:
    more = ("--calib-samples", 20, "--calib-select", "random", "--calib-seed", 3)
    ran = door("calibrate", images, *INPUT, *more)
    counts = re.findall(r"\d+", ran.stdout.splitlines()[0].rpartition("): ")[2])
    assert counts == ["64", "36", "20", "7", "3"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nowhere", *INPUT), "no such calibration data: nowhere"),
        (("random",), "inputs"),
        (("random", *INPUT, "--preprocess", "imagenot"), "unknown preprocessing preset 'imagenot'"),
        (("random", *INPUT, "--calib-select", "coreset"), "unknown calibration selection"),
        (("random", *INPUT, "--calib-samples", "0"), "calib-samples"),
        (("no_such_module:loader", *INPUT), "no module 'no_such_module'"),
    ],
)
def test_wrong_orders_are_refused(
    refuse: Callable[..., str], arguments: tuple[str, ...], told: str
) -> None:
    assert told in refuse("calibrate", *arguments, code=2)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_images(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    for index in range(2000):
        coarse = chance.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((160, 120)).save(tmp_path / f"{index:04}.png")

    def peak(samples: int) -> int:
        asked = ["--preprocess", "imagenet,resize=224", "--calib-samples", str(samples)]
        order = ["calibrate", str(tmp_path), "--input", "x:float32[batch,3,224,224]", *asked]
        ran = subprocess.run(
            [sys.executable, "-c", PEAK, *order], capture_output=True, text=True, check=True
        )
        assert f"{samples:,} for calibration" in ran.stdout
        return int(ran.stderr.splitlines()[-1]) // 1024

    assert peak(1984) - peak(64) < 50, "MB"
