"""Recorded arguments of the factory, and inputs that the checkpoint states."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from modelc.checkpoints.checkpoint_files import identify
from modelc.checkpoints.checkpoint_loader import load_checkpoint
from modelc.checkpoints.factory import call_factory
from modelc.checkpoints.loaded_module import LoadedModule, merge_known_inputs
from modelc.core.errors import CheckpointError, UsageError
from modelc.core.grammar import parse_input
from modelc.core.signature import merge_inputs

Write = Callable[[str], str]

# A LightningModule in all that matters here: hyper-parameters as arguments, a network inside.
LIT = """
    from torch import nn
    class Lit(nn.Module):
        def __init__(self, width: int = 3, act: str = "relu", sizes=()):
            super().__init__()
            kind = nn.Tanh if act == "tanh" else nn.ReLU
            self.model = nn.Sequential(nn.Linear(4, width), kind())
            self.sizes = sizes
        def forward(self, x):
            return self.model(x)
    class Old(nn.Module):
        def __init__(self, hparams):
            super().__init__()
            self.net = nn.Linear(4, hparams["width"])
        def forward(self, x):
            return self.net(x)
    def inner(width: int = 3):
        return Lit(width).model
    def bare(width: int = 3):
        return Old({"width": width}).net
"""


@pytest.fixture
def nets(write_module: Write) -> str:
    return write_module(LIT)


def saved(tmp_path: Path, module: torch.nn.Module, hyper: object, **more: object) -> Path:
    path = tmp_path / "lit.ckpt"
    weights = {"state_dict": module.state_dict(), "pytorch-lightning_version": "2.4.0", "epoch": 3}
    torch.save({**weights, "hyper_parameters": hyper, **more}, path)
    return path


def opened(path: Path, spec: str, *, allow_pickle: bool = False, **arguments: str) -> LoadedModule:
    return load_checkpoint(
        identify(path, factory=spec, factory_args=arguments, allow_pickle=allow_pickle)
    )


def test_the_checkpoints_hyper_parameters_are_the_arguments(tmp_path: Path, nets: str) -> None:
    module = call_factory(f"{nets}:Lit", {"width": "6", "act": "tanh"}).module
    hyper = {"width": 6, "act": "tanh", "sizes": [1, {"a": None}], "lr": 0.1}
    loaded = opened(saved(tmp_path, module, hyper), f"{nets}:Lit")
    x = torch.ones(1, 4)
    assert torch.equal(loaded.module(x), module(x))
    assert loaded.module.sizes == [1, {"a": None}]
    assert "'state_dict'" in loaded.notes[0]
    assert any("width=6, act='tanh', sizes=[1, " in note for note in loaded.notes)


def test_an_argument_of_the_users_goes_before_the_checkpoints(tmp_path: Path, nets: str) -> None:
    path = saved(
        tmp_path, call_factory(f"{nets}:Lit", {"width": "6"}).module, {"width": 5, "act": "tanh"}
    )
    loaded = opened(path, f"{nets}:Lit", width="6")
    assert isinstance(loaded.module.get_submodule("model.1"), torch.nn.Tanh)
    assert loaded.notes[-1].endswith(": act='tanh'")


def test_all_of_them_as_one_argument_go_by_its_name(tmp_path: Path, nets: str) -> None:
    module = call_factory(f"{nets}:Old", {"hparams": "{'width': 5}"}).module
    path = saved(tmp_path, module, {"width": 5}, hparams_name="hparams")
    assert opened(path, f"{nets}:Old").module.get_submodule("net").out_features == 5


@pytest.mark.parametrize(("outer", "inner"), [("Lit", "inner"), ("Old", "bare")])
def test_the_network_inside_takes_the_weights_without_the_prefix(
    tmp_path: Path, nets: str, outer: str, inner: str
) -> None:
    arguments = {"hparams": "{'width': 5}"} if outer == "Old" else {"width": "5"}
    module = call_factory(f"{nets}:{outer}", arguments).module
    loaded = opened(saved(tmp_path, module, {"width": 5}), f"{nets}:{inner}")
    own = list(loaded.module.state_dict().values())
    assert all(torch.equal(a, b) for a, b in zip(own, module.state_dict().values(), strict=True))
    assert any("'model.'" in note or "'net.'" in note for note in loaded.notes)


def test_objects_among_them_are_rejected_with_a_way_out(tmp_path: Path, nets: str) -> None:
    path = saved(tmp_path, call_factory(f"{nets}:Lit", {}).module, Namespace(width=3))
    with pytest.raises(CheckpointError, match="hyper_parameters") as caught:
        opened(path, f"{nets}:Lit")
    assert "'state_dict'" in caught.value.hint
    assert opened(path, f"{nets}:Lit", allow_pickle=True).kind == "pickle"


def test_an_argument_that_is_no_plain_data_is_rejected(tmp_path: Path, nets: str) -> None:
    hyper = {"width": 3, "sizes": [torch.nn.ReLU()]}
    path = saved(tmp_path, call_factory(f"{nets}:Lit", {}).module, hyper)
    with pytest.raises(UsageError, match=r"sizes.*ReLU") as caught:
        opened(path, f"{nets}:Lit", allow_pickle=True)
    assert "--model-arg sizes=VALUE" in caught.value.hint
    assert opened(path, f"{nets}:Lit", allow_pickle=True, sizes="()").module.sizes == ()


def test_what_no_parameter_takes_is_left(tmp_path: Path, nets: str) -> None:
    path = saved(tmp_path, call_factory(f"{nets}:Lit", {}).module, {"optimizer": "adam"})
    assert not any("hyper_parameters" in note for note in opened(path, f"{nets}:Lit").notes)


IDS, MASK = "ids:int64[batch=1..4,seq=2..64]", "mask:int64[batch=1..4,seq=2..64]"


def settled(*inputs: str, assumed: bool = True) -> list[str]:
    known = {
        spec.name: spec for spec in merge_inputs([parse_input(IDS), parse_input(MASK)], {}).inputs
    }
    module = torch.nn.Identity()
    loaded = LoadedModule(kind="test", module=module, takes=(), known=known, assumed=assumed)
    patterns = [parse_input(text) for text in inputs]
    return [
        str(spec) for spec in merge_inputs(patterns, merge_known_inputs(loaded, patterns)).inputs
    ]


@pytest.mark.parametrize("given", ["ids:int64[batch=1..4,seq=1..100]", "ids[_,seq=1..100]"])
def test_a_range_that_is_given_once_holds_in_the_other_inputs(given: str) -> None:
    assert settled(given) == [
        "ids:int64[batch=1..4,seq=1..100]", "mask:int64[batch=1..4,seq=1..100]",
    ]  # fmt: skip


def test_a_relation_that_is_given_once_holds_in_the_other_inputs() -> None:
    assert settled("ids:int64[batch=1..4,seq=8*(k=1..4)]")[1] == (
        "mask:int64[batch=1..4,seq=8*(k=1..4)]"
    )


def test_without_a_range_the_other_inputs_say_it() -> None:
    assert settled("ids:int64[batch,seq]") == [IDS, MASK]


def test_what_a_program_says_of_itself_does_not_give_way() -> None:
    assert settled(IDS, assumed=False) == [IDS, MASK]
