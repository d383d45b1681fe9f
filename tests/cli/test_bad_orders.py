"""Orders that make no sense: refused before anything is made."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Door = Callable[..., "subprocess.CompletedProcess[str]"]
Refuse = Callable[..., str]
REST = ("--to", "onnx", "-o", "out")


def wrong_input(refuse: Refuse, weights: Path, text: str, *, code: int = 2) -> str:
    model = ("--model", "modelc.sample_models.digits:build", "--input", text)
    return refuse("export", weights, *model, *REST, code=code)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x:float32[1,8", "expected ',' or ']' at character 14, found the end"),
        ("x:float32[1;8]", "expected ',' or ']' at character 12, found ';'"),
        ("x:float32[batch=8..1]", "batch=8..1 is not a range: 8 is larger than 1"),
        ("1x:float32[8]", "expected an input name at character 1"),
        ("x:float32[8]{3..1}", "3 is larger than 1"),
    ],
)
def test_wrong_input_syntax_is_told_with_its_place(
    refuse: Refuse, weights: Path, text: str, said: str
) -> None:
    assert f"--input {text!r}: {said}" in wrong_input(refuse, weights, text)


def test_a_misspelt_dtype_gets_a_suggestion(refuse: Refuse, weights: Path) -> None:
    told = wrong_input(refuse, weights, "x:flaot32[1,1,8,8]")
    assert "'float32'" in told


@pytest.mark.parametrize("text", ["x", "x:float32", "x:float32[_,1,8,8]"])
def test_what_only_a_sample_says_needs_a_sample(refuse: Refuse, weights: Path, text: str) -> None:
    assert "--samples SAMPLE" in wrong_input(refuse, weights, text)


def test_a_shape_that_eager_rejects_is_told(refuse: Refuse, weights: Path) -> None:
    told = wrong_input(refuse, weights, "x:float32[1,1,7,9]", code=3)
    assert "x:float32[1,1,7,9]" in told


def test_inputs_that_forward_does_not_take_are_told(
    refuse: Refuse, digits: tuple[str, ...]
) -> None:
    told = refuse("export", *digits, "--input", "mask:bool[4]", *REST, code=2)
    assert "'mask'" in told


def test_no_input_at_all_is_told(refuse: Refuse, digits: tuple[str, ...]) -> None:
    assert "--input" in refuse("export", *digits[:3], *REST, code=2)


def test_a_sample_file_that_is_not_there_is_told(refuse: Refuse, digits: tuple[str, ...]) -> None:
    told = refuse("export", *digits, "--samples", "no.npz", *REST, code=2)
    assert "no.npz" in told


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--to", "onxx"), "hint:  did you mean 'onnx'?"),
        (("--to", "onnx:fp61"), "hint:  did you mean 'fp16'?"),
        (("--to", "torchscript:fp16"), "error: torchscript cannot be made in fp16"),
        (("--to", "pt2", "--capture", "trace"), "error: pt2 cannot be captured by trace"),
        (("--to", "openvino", "--device", "cuda"), "error: openvino does not run on cuda"),
        (("--to", "onnx", "--feeds", "2"), "error: --feeds "),
        (
            ("--to", "onnx", "--feeds", "9" * 400),
            "error: --feeds must be from 5 to 100000, not 999",
        ),
        (("--to", "onnx", "--seed", "9" * 20), "error: --seed must be from 0 to"),
        (("--to", "onnx", "--opset", "99"), "hint:  choose 18 to 23"),
        (
            ("--to", "onnx", "--atol", "-1"),
            "error: --atol must be at least 0, not -1",
        ),
        (("--to", "onnx", "--model-arg", "depth"), "error: --model-arg 'depth' is not KEY=VALUE"),
        (("--to", "onnx", "--feeds", "two"), "error: --feeds cannot be 'two'"),
        (("--to", "onnx", "--atol", "x"), "error: --atol cannot be 'x'"),
        (("--to", "onnx:fp16", "--int8", "--calib", "random"), "error: --int8 has no effect"),
        (("--to", "onnx", "--int8", "--fp16"), "error: --fp16 and --int8 exclude each other"),
        (
            ("--to", "tensorrt-onnx", "--fp16", "--calib", "random"),
            "give --int8 in place of --fp16",
        ),
        (
            ("--to", "tensorrt-onnx", "--fp8", "--calib", "random", "--quantizer", "nncf"),
            "error: nncf does not quantize tensorrt-onnx-fp8",
        ),
        (
            ("--to", "tensorrt-onnx:int4", "--calib", "random", "--calib-method", "entropy"),
            "hint:  give awq or rtn",
        ),
        (("--to", "onnx:int4", "--calib", "random"), "error: --calib has no effect"),
        (
            ("--to", "openvino", "--int8-weights", "--group-size", "48"),
            "error: --group-size must be a power of 2 from 16 to 256, not 48",
        ),
        (
            ("--to", "onnx", "--int8", "--calib", "random", "--group-size", "64"),
            "error: --group-size has no effect",
        ),
        (("--to", "torchscript", "--int4"), "error: torchscript cannot be made in int4"),
    ],
)
def test_an_option_that_makes_no_sense_is_told(
    refuse: Refuse, digits: tuple[str, ...], options: tuple[str, ...], said: str
) -> None:
    assert said in refuse("export", *digits, "-o", "out", *options, code=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("export",), "Missing argument 'checkpoint'"),
        (("export", "a.pt"), "Missing option '--to'"),
        (("export", "a.pt", "--to", "onnx", "--xyzzy", "9"), "No such option: --xyzzy"),
        (("export", "a.pt", "--to", "onnx", "--capture", "foto"), "'foto' is not one of 'auto'"),
        (("inspect",), "Missing argument 'path': a converted model or a checkpoint"),
        (
            ("pack", "--to", "triton"),
            "'PATH': output folders of modelc export, or a modelc.toml",
        ),
    ],
)
def test_typers_own_errors_are_one_line_with_the_commands_help(
    refuse: Refuse, arguments: tuple[str, ...], said: str
) -> None:
    told = refuse(*arguments, code=2)
    assert said in told
    assert f"hint:  modelc {arguments[0]} --help" in told


def test_a_misspelt_command_gets_a_suggestion(refuse: Refuse) -> None:
    told = refuse("exprot", code=2)
    assert "'export'" in told


@pytest.mark.parametrize("target", ["torchscript", "onnx"])
def test_cuda_where_there_is_none_is_told(
    refuse: Refuse, digits: tuple[str, ...], target: str
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    wanted = ("--to", target, "--device", "cuda", "-o", "out")
    assert "hint:  use --device cpu" in refuse("export", *digits, *wanted, code=4)


@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_a_text_file_is_no_artifact(refuse: Refuse, tmp_path: Path, command: str) -> None:
    (tmp_path / "a.onnx").write_text("only words\n")
    assert "a.onnx" in refuse(command, "a.onnx", code=2)


def test_a_folder_without_a_manifest_cannot_be_validated(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    assert "manifest.json" in refuse("validate", "bare", code=2)


def test_a_folder_that_is_not_there_cannot_be_validated(refuse: Refuse) -> None:
    assert "nowhere" in refuse("validate", "nowhere", code=2)


def test_a_model_without_a_manifest_needs_a_reference_or_is_one(
    refuse: Refuse, door: Door, tmp_path: Path, exported_digits: Path
) -> None:
    shutil.copy(exported_digits / "model.onnx", tmp_path / "stray.onnx")
    assert "--against CHECKPOINT" in refuse("validate", "stray.onnx", code=2)
    built = door("build-ov", "stray.onnx")
    assert built.returncode == 0
    assert "not eager" in built.stderr


def test_a_damaged_model_would_not_open(
    refuse: Refuse, tmp_path: Path, exported_digits: Path
) -> None:
    whole = (exported_digits / "model.onnx").read_bytes()
    (tmp_path / "a.onnx").write_bytes(whole[:5000])
    assert "corrupt" in refuse("inspect", "a.onnx", code=6)


def test_with_debug_the_traceback_comes_before_the_error(door: Door) -> None:
    ran = door("inspect", "nofile.onnx", "--debug")
    lines = ran.stderr.splitlines()
    assert ran.returncode == 2
    assert lines[0].startswith("Traceback ")
    assert lines[-2].endswith("nofile.onnx")


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--quite", "did you mean --quiet"),
        ("--inptu", "did you mean --input"),
        ("--mn-sqnr", "did you mean --min-sqnr"),
        (
            "--prepare-only",
            "--prepare-only is an option of modelc run, modelc finish and modelc build-trt",
        ),
        ("--xyzzy", "modelc export --help"),
    ],
)
def test_a_misspelt_option_gets_the_closest_first(refuse: Refuse, option: str, hint: str) -> None:
    told = refuse("export", "a.pt", "--to", "onnx", option, code=2)
    assert f": {option}\n" in told
    assert f"hint:  {hint}" in told


def test_a_variable_that_is_not_text_is_named(
    refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELC_METHOD", "m\udce9")
    assert "error: MODELC_METHOD=" in refuse("run", code=2)
