"""What a first-time user mistypes: each error names the value, and its hint works when typed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from modelc.core.call import Parameter, bind_inputs

Refuse = Callable[..., str]
Ran = Callable[..., "subprocess.CompletedProcess[str]"]
REST = ("--to", "torchscript", "-o", "out")
LINEAR = ("--model", "torch.nn:Linear", "--model-arg", "in_features=3", "--model-arg",
          "out_features=2")  # fmt: skip
INPUT = ("--input", "input:float32[b=1..4,3]")
NETS = """
    from torch import nn

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(3, 2)

        def forward(self, tokens):
            return self.l(tokens)
"""


@pytest.fixture
def linear(tmp_path: Path) -> str:
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "net.pt")
    return "net.pt"


@pytest.fixture
def nets(tmp_path: Path) -> str:
    """The unique name of a module with a UNet, beside `unet.pt`."""
    name = f"nets_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text("\n".join(one[4:] for one in NETS.splitlines()))
    torch.save({"l.weight": torch.ones(2, 3), "l.bias": torch.ones(2)}, tmp_path / "unet.pt")
    return name


def test_a_folder_as_samples_is_not_offered_as_its_own_correction(
    refuse: Refuse, tmp_path: Path, linear: str
) -> None:
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "a.txt").touch()
    told = refuse("export", linear, *LINEAR, *REST, "--samples", "samples", code=2)
    assert "--samples" in told
    assert "--samples samples" not in told.partition("hint:")[2]
    torch.save(torch.ones(1, 3), tmp_path / "samples" / "one.pt")
    told = refuse("export", linear, *LINEAR, *REST, "--samples", "samples", code=2)
    assert "hint:  --samples samples/one.pt" in told


@pytest.mark.parametrize(
    ("said", "meant"),
    [("float", "float32"), ("double", "float64"), ("int", "int64"), ("long", "int64"),
     ("half", "float32"), ("Float32", "float32"), ("torch.float32", "float32"),
     ("boolean", "bool")],
)  # fmt: skip
def test_a_dtype_by_another_name_gets_the_one_that_is_meant(
    refuse: Refuse, linear: str, said: str, meant: str
) -> None:
    told = refuse("export", linear, *LINEAR, *REST, "--input", f"input:{said}[b=1..4,3]", code=2)
    assert f"'{meant}'" in told


@pytest.mark.parametrize("name", ["Unet", "unet", "UNET", "UNett"])
def test_a_factory_in_other_letters_gets_a_suggestion(refuse: Refuse, nets: str, name: str) -> None:
    told = refuse("export", "unet.pt", "--model", f"{nets}:{name}", *REST, code=2)
    assert " UNet?" in told


def test_the_only_input_by_a_misspelt_name_is_refused(refuse: Refuse, nets: str) -> None:
    told = refuse(
        "export", "unet.pt", "--model", f"{nets}:UNet", *REST,
        "--input", "tokns:float32[b=1..4,3]", code=2,
    )  # fmt: skip
    assert "'tokns'" in told
    assert "'tokens'" in told


@pytest.mark.parametrize("name", ["x", "image", "tokens_0", "input_1"])
def test_an_input_of_another_name_still_goes_by_order(name: str) -> None:
    (place,) = bind_inputs([name], [Parameter(name="tokens")]).places
    assert place == ("tokens",)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("bert-base-uncased", "hf://ORG/bert-base-uncased"),
        ("google/vit-base", "hf://google/vit-base"),
        ("hf:google/vit-base", "write hf://google/vit-base"),
    ],
)
def test_the_name_of_a_model_on_a_hub_is_told_as_such(refuse: Refuse, name: str, hint: str) -> None:
    told = refuse("export", name, *REST, code=2)
    assert name in told
    assert hint in told


def test_the_address_of_a_page_of_the_hub_is_told_as_such(refuse: Refuse) -> None:
    told = refuse("export", "https://huggingface.co/google/vit-base/tree/main", *REST, code=2)
    assert "write hf://google/vit-base\n" in f"{told.rstrip()}\n"


def test_a_folder_that_is_not_there_is_told(refuse: Refuse) -> None:
    told = refuse("export", "weights/net.pt", *LINEAR, *REST, code=2)
    assert " weights " in told


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("foreign.onnx", "an ONNX model"),
        ("foreign.xml", "an OpenVINO model"),
        ("foreign.engine", "a TensorRT engine"),
    ],
)
def test_a_converted_model_is_sent_to_the_commands_that_take_it(
    refuse: Refuse, tmp_path: Path, name: str, what: str
) -> None:
    (tmp_path / name).write_bytes(b"\x08\x07\x12\x04test")
    told = refuse("export", name, *REST, code=3)
    assert f"{name} is {what}, not a PyTorch checkpoint" in told
    assert f"modelc validate {name} --against CHECKPOINT" in told
    assert (f"modelc build-ov {name} --against CHECKPOINT" in told) is name.endswith(".onnx")


MAIN = """
import torch
from torch import nn
class Net(nn.Linear):
    pass
torch.save(Net(3, 2), "main.pt")
"""


def test_a_pickle_of_a_class_of_a_script_is_told_as_such(refuse: Refuse, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", MAIN], cwd=tmp_path, check=True)
    told = refuse("export", "main.pt", "--allow-pickle", *INPUT, *REST, code=3)
    assert "main.pt" in told
    assert " Net " in told
    assert "torch.save(model.state_dict(), ...)" in told
    assert "download" not in told


def test_a_pickle_of_a_module_that_is_not_here_names_it(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "nets_of_mine.py").write_text("from torch import nn\nclass N(nn.Linear): pass\n")
    code = "import sys; sys.path.insert(0, '.'); import torch, nets_of_mine as n; "
    code += "torch.save(n.N(3, 2), 'other.pt')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    (tmp_path / "nets_of_mine.py").rename(tmp_path / "elsewhere.txt")
    told = refuse("export", "other.pt", "--allow-pickle", *INPUT, *REST, code=3)
    assert "other.pt" in told
    assert "nets_of_mine.py" in told


@pytest.mark.parametrize("said", ["'no licence here'", "3", ""])
def test_a_module_that_ends_the_program_is_named(
    refuse: Refuse, tmp_path: Path, linear: str, said: str
) -> None:
    name = f"ends_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(f"import sys\nsys.exit({said})\n")
    told = refuse("export", linear, "--model", f"{name}:Net", *INPUT, *REST, code=3)
    assert name in told
    assert said.strip("'") in told
    assert f"{name}.py:2" in told


def test_a_factory_that_ends_the_program_is_named(
    refuse: Refuse, tmp_path: Path, linear: str
) -> None:
    name = f"ends_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text("def net():\n    raise SystemExit('no')\n")
    told = refuse("export", linear, "--model", f"{name}:net", *INPUT, *REST, code=3)
    assert f"{name}:net" in told


@pytest.mark.parametrize(
    ("order", "code"),
    [
        (("export", "nofile.pt", *REST), 2),
        (("export", "empty.pt", *LINEAR, *REST), 3),
        (("export", "empty.pt", "--no-such-option"), 2),
        (("inspect", "nofile.onnx"), 2),
        (("run",), 2),
        (("validate", "nofolder"), 2),
        (("verify", "nofolder"), 2),
        (("report", "nofolder"), 2),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_with_json_an_error_is_a_document_on_stdout(
    door: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.pt").touch()
    ran = door(*order, "--json")
    assert ran.returncode == code, ran.stderr
    found = json.loads(ran.stdout)
    assert found["exit_code"] == code
    assert f"error: {found['error']['message']}" in ran.stderr
    assert f"hint:  {found['error']['hint']}" in ran.stderr
    assert set(found["error"]) == {"kind", "message", "hint", "code", "option", "place"}
    assert door(*order).stdout == ""


def test_with_json_all_faults_of_a_project_are_listed(
    door: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "modelc.toml").write_text("[models.a]\ncheckpiont = 1\nto = 'onxn'\n")
    ran = door("run", "--json")
    found = json.loads(ran.stdout)
    assert len(found["errors"]) == ran.stderr.count("error:") > 1
    assert found["errors"][0] == found["error"]


def test_safetensors_samples_do_not_count_as_folders(
    refuse: Refuse, tmp_path: Path, linear: str
) -> None:
    save_file({"input": torch.ones(1, 3)}, tmp_path / "one.safetensors")
    told = refuse("export", linear, *LINEAR, *REST, "--samples", "one.safetensor", code=2)
    assert "one.safetensors" in told
