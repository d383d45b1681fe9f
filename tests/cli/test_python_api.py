"""The Python API: what `import modelc` offers, and that it says what the commands say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import modelc
from modelc.core.errors import RunnerError, UsageError
from modelc.core.events import Event, Finished


def test_everything_that_is_offered_is_there() -> None:
    assert {name: hasattr(modelc, name) for name in modelc.__all__} == dict.fromkeys(
        modelc.__all__, True
    )


def test_what_is_not_offered_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'convert'"):
        _ = modelc.convert


def test_an_export_gives_the_manifest_that_is_in_the_folder(
    digits: tuple[str, ...], tmp_path: Path
) -> None:
    told: list[Event] = []
    manifest = modelc.export(
        digits[0],
        to=["torchscript"],
        out=tmp_path / "out",
        model=digits[2],
        inputs=[digits[4]],
        tell=told.append,
    )
    assert manifest.passed
    assert modelc.validate(tmp_path / "out").exit_code == 0
    assert [e.step for e in told if isinstance(e, Finished)][-1] == "validate torchscript"


def test_a_build_starts_from_a_converted_model(exported_digits: Path, tmp_path: Path) -> None:
    manifest = modelc.build(
        exported_digits / "model.onnx", to="openvino:fp16", out=tmp_path / "out"
    )
    assert manifest.passed
    assert (tmp_path / "out" / "model.fp16.xml").is_file()


def test_a_model_file_gives_a_verdict_on_it(exported_digits: Path) -> None:
    assert modelc.validate(exported_digits / "model.onnx").passed


def test_inspect_gives_what_the_artifact_says(exported_digits: Path) -> None:
    looked = modelc.inspect(exported_digits / "model.onnx")
    assert [info.name for info in looked.inspection.inputs] == ["x"]


def test_every_target_is_listed_with_its_readiness() -> None:
    assert all(readiness.ready or readiness.mend for _, readiness in modelc.targets())


def test_errors_are_modelc_errors_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(modelc.ModelcError, match="no such checkpoint") as caught:
        modelc.export("nofile.pt", to=["onnx"], out=tmp_path / "out")
    assert caught.value.hint


def test_judging_says_how_to_judge(digits: tuple[str, ...], tmp_path: Path) -> None:
    judging = modelc.Judging(feeds=7, seed=3, atol=0.5)
    manifest = modelc.export(
        digits[0],
        to=["torchscript"],
        out=tmp_path / "out",
        model=digits[2],
        inputs=[digits[4]],
        judging=judging,
    )
    assert (manifest.feeds.count, manifest.feeds.seed) == (7, 3)
    assert manifest.verdicts[0].tolerance.atol == 0.5


def test_dims_methods_and_runtimes_are_asked_for_as_on_the_command_line(
    digits: tuple[str, ...], tmp_path: Path
) -> None:
    manifest = modelc.export(
        digits[0],
        to=["onnx"],
        out=tmp_path / "out",
        model=digits[2],
        method="hidden",
        inputs=["input:float32[batch=1..3..8,128]"],
        static=["batch"],
        runtimes=["onnxruntime==1.17"],
    )
    assert manifest.passed
    assert manifest.checkpoint.method == "hidden"
    assert not manifest.signature.dynamic_dims
    assert manifest.artifacts[0].options["opset"] == "20"
    assert "1.17" in manifest.artifacts[0].options["loads in"]


def test_the_example_of_an_order_on_the_page_runs_as_it_stands(
    tmp_path: Path, modelc_python: Callable[[str, Path], subprocess.CompletedProcess[str]]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    (code,) = (part for part in re.findall(r"```python\n(.*?)```", page, re.S) if "Order(" in part)
    ran = modelc_python(code, tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "0 ['passed']\n"), ran.stderr
    assert (tmp_path / "out" / "manifest.json").is_file()


@pytest.fixture
def modelc_python(
    surroundings: dict[str, str],
) -> Callable[[str, Path], subprocess.CompletedProcess[str]]:
    """Python code in a folder where the sample models are."""

    def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
        (folder / "sample_models").symlink_to(Path(__file__).parents[2] / "sample_models")
        return subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, '.')\n{code}"],
            cwd=folder, env=surroundings, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def test_the_folder_of_a_project_names_its_models(exported_digits: Path, tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    shutil.copy(exported_digits / "manifest.json", tmp_path / "digits")
    with pytest.raises(UsageError) as caught:
        modelc.rejudge(tmp_path, judging=modelc.Judging(atol=1.0))
    assert caught.value.hint == f"it holds those of several models: give {tmp_path / 'digits'}"


def test_an_order_of_names_alone_is_refused_when_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'onnx', which is no Wanted"):
        modelc.Order(
            source=modelc.Source(checkpoint=tmp_path / "w.pt"),
            wanted=("onnx",),  # type: ignore[arg-type]  # what it is about
            out=tmp_path / "out",
        )


def test_a_damaged_model_names_no_log_that_nobody_wrote(
    exported_digits: Path, tmp_path: Path
) -> None:
    text = (exported_digits / "model.xml").read_text()
    (tmp_path / "model.xml").write_text(re.sub(r' size="\d+"', ' size="9999999999"', text))
    shutil.copy(exported_digits / "model.bin", tmp_path)
    with pytest.raises(RunnerError) as caught:
        modelc.inspect(tmp_path / "model.xml")
    assert "in the log" not in caught.value.hint
