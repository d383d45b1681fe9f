"""`modelc debug`: what it takes, what it shows, how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest


def test_a_good_conversion_ends_with_0_and_a_curve(
    door: Callable[..., CompletedProcess[str]], digits_copy: Path
) -> None:
    ran = door("debug", digits_copy / "model.onnx", "--quiet")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("onnx passed")
    assert "SQNR from" in ran.stdout


def test_of_an_artifact_that_passed_it_says_why_nothing_goes_to_out(
    door: Callable[..., CompletedProcess[str]], digits_copy: Path, tmp_path: Path
) -> None:
    out = tmp_path / "there"
    ran = door("debug", digits_copy / "model.onnx", "--quiet", "-o", out)
    assert (ran.returncode, out.exists()) == (0, False)
    assert str(out) in ran.stdout
    ran = door("debug", digits_copy / "model.onnx", "--quiet", "-o", out, "--json")
    assert str(out) in ran.stderr
    assert json.loads(ran.stdout)["reproducer"] == ""


def test_json_is_the_record_alone(
    door: Callable[..., CompletedProcess[str]], digits_copy: Path
) -> None:
    ran = door("debug", digits_copy / "model.onnx", "--json", "--quiet")
    found = json.loads(ran.stdout)
    assert found["guilty"] == ""
    assert found["runs"] > 0


def test_a_format_that_cannot_be_looked_into_is_usage(
    door: Callable[..., CompletedProcess[str]], digits_copy: Path
) -> None:
    ran = door("debug", digits_copy / "model.pt2")
    assert ran.returncode == 2
    assert "model.pt2" in ran.stderr


def test_options_of_the_eager_side_need_it(
    door: Callable[..., CompletedProcess[str]], digits_copy: Path
) -> None:
    ran = door("debug", digits_copy / "model.onnx", "--model", "a:b")
    assert ran.returncode == 2
    assert "--model" in ran.stderr
    assert "--against" in ran.stderr


@pytest.mark.parametrize("text", ["", "G", "-1G", "0", "2GG", "much"])
def test_a_size_that_cannot_be_read_is_usage(
    door: Callable[..., CompletedProcess[str]], digits_copy: Path, text: str
) -> None:
    ran = door("debug", digits_copy / "model.onnx", "--activations", text)
    assert ran.returncode == 2
    assert f"{text!r}" in ran.stderr


def test_of_an_engine_the_onnx_that_it_was_made_from_is_named(
    door: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "pending").mkdir()
    engine = tmp_path / "pending" / "model.fp16.rtx.engine"
    engine.write_bytes(b"vtrt" + bytes(64))
    assert "model.fp16.trt.onnx" in door("debug", engine).stderr.splitlines()[-1]
    onnx = tmp_path / "model.fp16.trt.onnx"
    onnx.write_bytes(b"\x08")
    ran = door("debug", engine)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1] == f"hint:  modelc debug {onnx}"
