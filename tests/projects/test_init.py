"""What `modelc init` writes, by the kind of the checkpoint."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from modelc.converters import onnx_model
from modelc.core.errors import CheckpointError, ErrorCode, UsageError
from modelc.projects import project_template
from modelc.projects.model_orders import plan_project
from modelc.projects.project_template import NewProject, create_project

from ..reasons import has_code

SAMPLE_MODELS = Path(__file__).parents[2] / "sample_models"
DIGITS = SAMPLE_MODELS / "digits.safetensors"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 8, 3)
        self.classifier = nn.Linear(8, 5)


def begun(folder: Path, *paths: Path, **options: Any) -> tuple[NewProject, dict[str, Any]]:
    file = folder / "modelc.toml"
    found = create_project(paths, file, **options)
    return found, tomllib.loads(file.read_text(encoding="utf-8"))


def edits(folder: Path) -> list[str]:
    lines = (folder / "modelc.toml").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if "EDIT:" in line]


def test_weights_alone_leave_two_lines_to_edit(tmp_path: Path) -> None:
    found, table = begun(tmp_path, DIGITS)
    assert len(edits(tmp_path)) == 2
    lines = (tmp_path / "modelc.toml").read_text(encoding="utf-8").splitlines()
    assert [lines[edit.line - 1] for edit in found.edits] == edits(tmp_path)
    assert [edit.key for edit in found.edits] == ["model", "input"]
    assert [edit.sizes for edit in found.edits] == [(), ("EDIT_HEIGHT", "EDIT_WIDTH")]
    assert found.left == ()
    model = table["models"]["digits"]
    assert (tmp_path / model["checkpoint"]).resolve() == DIGITS
    assert model["input"] == ["x:float32[batch=1..8,1,EDIT_HEIGHT,EDIT_WIDTH]"]


class Words(nn.Module):
    """Begins with an embedding that no name tells."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.table(ids))
        return found


class Patches(nn.Module):
    """Begins with a matrix that is called an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 4)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.embed(patches)
        return found


@pytest.mark.parametrize(
    ("net", "spec"),
    [
        (Words, "ids:int64[batch=1..8,seq=1..64]{0..49}"),
        (Patches, "patches:float32[batch=1..8,12]"),
    ],
)
def test_the_first_layer_of_a_factorys_module_is_told_by_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, net: type[nn.Module], spec: str
) -> None:
    torch.save(net().state_dict(), tmp_path / "net.pt")
    monkeypatch.setattr(torch.nn, "Mine", net, raising=False)
    _, table = begun(tmp_path, tmp_path / "net.pt", model="torch.nn:Mine")
    assert table["models"]["net"]["input"] == [spec]


def test_an_embedding_without_a_telling_name_is_known_by_its_shape(tmp_path: Path) -> None:
    torch.save(Words().state_dict(), tmp_path / "net.pt")
    _, table = begun(tmp_path, tmp_path / "net.pt")
    assert table["models"]["net"]["input"] == ["x:int64[batch=1..8,seq=1..64]{0..49}"]


def test_two_edited_lines_make_a_project_that_is_planned(tmp_path: Path) -> None:
    begun(tmp_path, DIGITS)
    file = tmp_path / "modelc.toml"
    text = file.read_text(encoding="utf-8")
    text = text.replace("PKG.MOD:FACTORY", "modelc.sample_models.digits:build")
    text = text.replace("EDIT_HEIGHT", "8").replace("EDIT_WIDTH", "8")
    file.write_text(text, encoding="utf-8")
    (model,) = plan_project(file).models
    assert "onnx" in [step.name for step in model.plan]
    assert not [step.name for step in model.plan if step.pending]


def test_a_line_to_edit_that_could_be_planned_is_named_as_well(tmp_path: Path) -> None:
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "w.pt")
    found, _ = begun(tmp_path, tmp_path / "w.pt")
    assert [(edit.key, edit.sizes) for edit in found.edits] == [("model", ()), ("input", ())]


def test_every_size_that_is_left_open_is_named(tmp_path: Path) -> None:
    begun(tmp_path, DIGITS, model="modelc.sample_models.digits:build")
    with pytest.raises(UsageError, match="EDIT_HEIGHT, EDIT_WIDTH"):
        plan_project(tmp_path / "modelc.toml")


def test_a_factory_that_is_named_tells_the_input(tmp_path: Path) -> None:
    _, table = begun(tmp_path, DIGITS, model="modelc.sample_models.digits:build")
    model = table["models"]["digits"]
    assert model["model"] == "modelc.sample_models.digits:build"
    assert model["input"][0].endswith(":float32[batch=1..8,1,EDIT_HEIGHT,EDIT_WIDTH]")
    assert len(edits(tmp_path)) == 1


def test_arguments_of_the_factory_are_given_and_written(tmp_path: Path) -> None:
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "w.pt")
    arguments = ["in_features=3", "out_features=2"]
    _, table = begun(tmp_path, tmp_path / "w.pt", model="torch.nn:Linear", model_args=arguments)
    assert table["models"]["w"]["model-arg"] == arguments
    assert table["models"]["w"]["input"] == ["input:float32[batch=1..8,3]"]
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_EFFECT, option="model-arg")):
        begun(tmp_path, tmp_path / "w.pt", model_args=arguments, force=True)


def test_no_code_is_imported_unless_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no module 'nowhere'"):
        begun(tmp_path, DIGITS, model="nowhere:build")
    begun(tmp_path, DIGITS)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("module", "wanted"),
    [
        (nn.Sequential(nn.Linear(20, 4), nn.Linear(4, 2)), "x:float32[batch=1..8,20]"),
        (Net(), "x:float32[batch=1..8,3,EDIT_HEIGHT,EDIT_WIDTH]"),
        (nn.Conv1d(7, 2, 3), "x:float32[batch=1..8,7,EDIT_LENGTH]"),
        (nn.ModuleDict({"emb": nn.Embedding(100, 8)}), "x:int64[batch=1..8,seq=1..64]{0..99}"),
        (nn.BatchNorm1d(3), "x:float32[batch=1..8,EDIT_SIZES]"),
    ],
)
def test_the_first_layer_tells_a_likely_input(
    module: nn.Module, wanted: str, tmp_path: Path
) -> None:
    torch.save({"model_state_dict": module.state_dict()}, tmp_path / "w.pt")
    _, table = begun(tmp_path, tmp_path / "w.pt")
    assert table["models"]["w"]["input"] == [wanted]


def test_a_pickled_module_is_not_opened(tmp_path: Path) -> None:
    torch.save(Net(), tmp_path / "whole.pt")
    _, table = begun(tmp_path, tmp_path / "whole.pt")
    model = table["models"]["whole"]
    assert model["allow-pickle"] is False
    assert "model" not in model
    assert "not opened" in (tmp_path / "modelc.toml").read_text(encoding="utf-8")
    assert len(edits(tmp_path)) == 2


def test_what_brings_its_code_leaves_only_whether_to_trust_it(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    torch.jit.save(torch.jit.script(net), tmp_path / "scripted.pt")
    torch.export.save(torch.export.export(net, (torch.ones(1, 3),)), tmp_path / "program.pt2")
    found, table = begun(tmp_path, tmp_path / "scripted.pt", tmp_path / "program.pt2")
    assert [edit.key for edit in found.edits] == ["trust", "trust"]
    assert found.left == ()
    assert len(edits(tmp_path)) == 2
    assert [model["trust"] for model in table["models"].values()] == [False, False]
    assert {key for model in table["models"].values() for key in model} == {"checkpoint", "trust"}


def test_a_hugging_face_folder_needs_no_factory(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = tmp_path / "bert.base"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    save_file({"a.weight": torch.ones(2, 3)}, folder / "model.safetensors")
    found, table = begun(tmp_path, folder)
    assert table["models"]["bert-base"]["checkpoint"] == "bert.base"
    assert found.described[0].parameters == 6
    assert not edits(tmp_path)
    written = (tmp_path / "modelc.toml").read_text(encoding="utf-8")
    task = tomllib.loads(written.replace("# model-arg", "model-arg"))["models"]["bert-base"]
    assert task["model-arg"] == ["task=text-generation-merged"]


def test_several_checkpoints_have_names_of_their_own(tmp_path: Path) -> None:
    for name in ("a/net.pt", "B/NET.pt", "c/model.pt", "d/é é.pt"):
        (tmp_path / name).parent.mkdir()
        torch.save(nn.Linear(2, 2).state_dict(), tmp_path / name)
    paths = sorted(tmp_path.rglob("*.pt"), key=lambda path: path.parent.name.lower())
    found, table = begun(tmp_path, *paths)
    assert found.models == ("net", "NET-2", "c", "net-3")
    assert list(table["models"]) == list(found.models)


def test_names_from_a_file_break_out_of_no_comment(tmp_path: Path) -> None:
    torch.save({"a\n[models.evil]\nx": torch.ones(2, 2)}, tmp_path / "w.pt")
    _, table = begun(tmp_path, tmp_path / "w.pt")
    assert list(table["models"]) == ["w"]


def test_a_path_is_quoted_as_toml_wants_it(tmp_path: Path) -> None:
    path = tmp_path / 'we"ird\\na\tme.pt'
    torch.save(nn.Linear(2, 2).state_dict(), path)
    _, table = begun(tmp_path, path)
    (model,) = table["models"].values()
    assert tmp_path / model["checkpoint"] == path


def test_a_path_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"net-\xe9.pt")
    torch.save(nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, naming="net-")):
        begun(tmp_path, path)
    assert not (tmp_path / "modelc.toml").exists()


def test_an_invalid_file_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unknown:
        NAME = "made-up"

        def __getattr__(self, name: str) -> object:
            return getattr(onnx_model, name)

    monkeypatch.setattr(project_template, "TARGETS", (Unknown(),))
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_NAME, naming="'made-up'")):
        begun(tmp_path, DIGITS)
    assert not list(tmp_path.iterdir())


def test_nothing_is_replaced_without_force(tmp_path: Path) -> None:
    (tmp_path / "modelc.toml").write_text("# mine\n")
    with pytest.raises(UsageError, check=has_code(ErrorCode.FILE_EXISTS)) as caught:
        begun(tmp_path, DIGITS)
    assert "--force" in caught.value.hint
    assert (tmp_path / "modelc.toml").read_text() == "# mine\n"
    begun(tmp_path, DIGITS, force=True)
    assert "digits" in (tmp_path / "modelc.toml").read_text()


def test_what_is_no_checkpoint_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello, this is no checkpoint")
    with pytest.raises(
        CheckpointError, check=has_code(ErrorCode.NOT_A_CHECKPOINT, naming="notes.txt")
    ):
        begun(tmp_path, tmp_path / "notes.txt")
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_FOUND, naming="none.pt")):
        begun(tmp_path, tmp_path / "none.pt")
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]
