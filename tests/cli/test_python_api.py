"""The Python API: what `import modelc` offers, and that it says what the commands say."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import modelc
from modelc.core.errors import CheckpointError, RunnerError, UsageError
from modelc.core.events import Event, Finished
from modelc.pipeline.manifest_file import read_manifest


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
    result = modelc.export(
        digits[0],
        to=["torchscript"],
        out=tmp_path / "out",
        model=digits[2],
        inputs=[digits[4]],
        tell=told.append,
    )
    assert result.passed
    assert result.manifest == read_manifest(tmp_path / "out")
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
    with pytest.raises(modelc.ModelcError, match=r"\.(pt|safetensors)") as caught:
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
    ).manifest
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
    ).manifest
    assert manifest.passed
    assert manifest.checkpoint.method == "hidden"
    assert not manifest.signature.dynamic_dims
    assert manifest.artifacts[0].options["opset"] == "20"
    assert "1.17" in manifest.artifacts[0].options["loads in"]


PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


def test_the_page_uses_the_public_api_alone() -> None:
    tree = ast.parse("\n".join(examples()))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "modelc"
    }
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert used <= set(modelc.__all__)
    assert {"export", "run", "build", "validate", "inspect"} <= used
    assert not [one for one in imports if "modelc." in ast.unparse(one)]
    assert "..." not in "\n".join(examples())


@pytest.mark.slow
def test_the_page_runs_as_it_stands(
    tmp_path: Path, modelc_python: Callable[[str, Path], subprocess.CompletedProcess[str]]
) -> None:
    ran = modelc_python("\n".join(examples()), tmp_path)
    assert ran.returncode == 0, ran.stderr


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
    assert str(tmp_path / "digits") in caught.value.hint


def test_an_order_of_names_alone_is_refused_when_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'onnx'"):
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
    assert ".log" not in caught.value.hint


def test_the_module_lists_its_api() -> None:
    assert dir(modelc) == sorted(modelc.__all__)


class Scaled(nn.Module):
    """A module of two inputs that is trained when it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear(x) * scale
        return found


ARRAYS = {"x": torch.ones(4, 3), "scale": torch.full((4, 1), 2.0)}


@pytest.mark.parametrize(
    "inputs",
    [ARRAYS, tuple(ARRAYS.values()), {name: one.numpy() for name, one in ARRAYS.items()}],
    ids=["dict", "tuple", "arrays"],
)
def test_a_module_with_example_inputs_is_exported_and_left_as_it_is(
    tmp_path: Path, inputs: object
) -> None:
    net = Scaled()
    before = {name: one.clone() for name, one in net.state_dict().items()}
    result = modelc.export(net, inputs=inputs, to="torchscript", out=tmp_path / "out")
    assert result.passed
    assert net.training
    assert all(one.requires_grad for one in net.parameters())
    assert all(torch.equal(net.state_dict()[name], one) for name, one in before.items())
    artifact = result["torchscript"]
    assert artifact.verdict.passed
    loaded = torch.jit.load(artifact.path)  # type: ignore[no-untyped-call]
    assert torch.allclose(loaded(*ARRAYS.values())[0], net.eval()(**ARRAYS), atol=1e-6)
    assert modelc.validate(
        tmp_path / "out", moved=modelc.Moved(allow_pickle=True)
    ).exit_code == 0  # fmt: skip


def test_one_tensor_and_a_spec_of_its_domain(tmp_path: Path) -> None:
    result = modelc.export(
        nn.Linear(3, 2), samples=torch.ones(2, 3), inputs="input[batch=1..5,_]", to="torchscript",
        out=tmp_path,
    )  # fmt: skip
    assert result.passed
    domain = result.manifest.artifacts[0].domain
    assert domain is not None
    assert "batch 1..5" in domain.describe()


def test_a_scripted_module_is_exported(tmp_path: Path) -> None:
    net = torch.jit.script(nn.Linear(3, 2))
    result = modelc.export(net, inputs=torch.ones(2, 3), to="torchscript", out=tmp_path / "out")
    assert result.passed


def test_a_name_of_a_format_is_text_or_a_list() -> None:
    with pytest.raises(UsageError, match="unknown target 'onxn'"):
        modelc.export(nn.Linear(3, 2), inputs=torch.ones(1, 3), to="onxn")


def test_nothing_is_left_of_an_export_that_did_not_begin(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UsageError):
        modelc.export(nn.Linear(3, 2), inputs=torch.ones(1, 3), to="onxn", out=out)
    with pytest.raises(UsageError, match=r"inputs\[0\] "):
        modelc.export(nn.Linear(3, 2), inputs=(object(),), to="torchscript", out=out)
    with pytest.raises(modelc.ModelcError, match="eager rejects"):
        modelc.export(nn.Linear(3, 2), inputs=torch.ones(1, 4), to="torchscript", out=out)
    assert not list(out.rglob("*.pt"))


@pytest.mark.parametrize("below", ["", "further"])
def test_an_output_folder_that_is_a_file_is_a_usage_error(tmp_path: Path, below: str) -> None:
    (tmp_path / "taken").write_text("mine")
    out = tmp_path / "taken" / below
    with pytest.raises(UsageError, match="taken"):
        modelc.export(nn.Linear(3, 2), inputs=torch.ones(1, 3), to="torchscript", out=out)
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_module_that_cannot_be_pickled_is_told_so(tmp_path: Path) -> None:
    class Local(nn.Linear):
        pass

    with pytest.raises(CheckpointError, match="Local") as caught:
        modelc.export(Local(3, 2), inputs=torch.ones(1, 3), to="onnx", out=tmp_path / "out")
    assert "module" in caught.value.hint


def test_isolation_is_an_argument(tmp_path: Path) -> None:
    result = modelc.export(
        nn.Linear(3, 2), inputs=torch.ones(1, 3), to="torchscript", out=tmp_path, isolate=True
    )
    assert result.passed
    with pytest.raises(modelc.ModelcError, match="--timeout"):
        modelc.export(
            nn.Linear(3, 2), inputs=torch.ones(1, 3), to="torchscript", out=tmp_path, timeout=-1
        )


def test_isolation_needs_classes_that_can_be_imported(
    tmp_path: Path, modelc_python: Callable[[str, Path], subprocess.CompletedProcess[str]]
) -> None:
    code = """
import modelc, torch
class Net(torch.nn.Linear):
    pass
given = dict(inputs=torch.ones(1, 3), to="torchscript")
assert modelc.export(Net(3, 2), **given, out="here").passed
try:
    modelc.export(Net(3, 2), **given, out="there", isolate=True)
except modelc.ModelcError as error:
    print(error.message, "|", error.hint)
"""
    ran = modelc_python(code, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert " Net " in ran.stdout


def test_what_failed_is_told_where_it_is_asked_for(tmp_path: Path) -> None:
    result = modelc.export(nn.Linear(3, 2), inputs=torch.ones(1, 3), to="pt2", out=tmp_path)
    assert [one.name for one in result] == ["pt2"]
    with pytest.raises(UsageError, match="unknown artifact 'onnx'"):
        _ = result["onnx"]
