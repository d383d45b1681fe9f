from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from modelc.checkpoints.checkpoint_files import identify
from modelc.checkpoints.checkpoint_loader import load_checkpoint
from modelc.checkpoints.factory import call_factory
from modelc.checkpoints.loaded_module import LoadedModule, merge_known_inputs
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.grammar import parse_input

Write = Callable[[str], str]

# timm in all that matters here: a registry, **kwargs, a config on the module, weights to fetch.
ZOO = """
    from torch import nn
    class Tiny(nn.Module):
        def __init__(self, in_chans=3, num_classes=5, size=(3, 16, 24)):
            super().__init__()
            self.conv1 = nn.Conv2d(in_chans, 4, 3)
            self.head = nn.Linear(4, num_classes)
            self.pretrained_cfg = {"input_size": size, "first_conv": "conv1"}
            self.default_cfg = self.pretrained_cfg
        def forward(self, x):
            return self.head(self.conv1(x).relu().mean((2, 3)))
    REGISTRY = {"tiny": Tiny}
    def create_model(model_name: str, pretrained: bool = False, checkpoint_path=None, **kwargs):
        assert not pretrained, "downloading"
        return REGISTRY[model_name](**kwargs)
    def fetching(pretrained: bool = True, in_chans: int = 3):
        assert not pretrained, "downloading"
        return Tiny(in_chans)
    def plain(in_chans: int = 3):
        model = Tiny(in_chans)
        del model.pretrained_cfg
        model.default_cfg = {"input_size": (3, -1, 8)}
        return model
    def required(in_chans, /, num_classes=5):
        return Tiny(in_chans, num_classes)
    class Kept(Tiny):
        @classmethod
        def from_pretrained(cls, name: str, **kwargs):
            return cls(**kwargs) if name == "tiny" else None
"""


@pytest.fixture
def zoo(write_module: Write, tmp_path: Path) -> str:
    name = write_module(ZOO)
    torch.save(
        call_factory(f"{name}:Tiny", {"in_chans": "1"}).module.state_dict(), tmp_path / "tiny.pt"
    )
    return name


def opened(tmp_path: Path, spec: str, **arguments: str) -> LoadedModule:
    found = identify(tmp_path / "tiny.pt", factory=spec, factory_args=arguments)
    return load_checkpoint(found)


def known(loaded: LoadedModule, *inputs: str) -> list[str]:
    return [str(s) for s in merge_known_inputs(loaded, [parse_input(i) for i in inputs]).values()]


def test_a_registry_is_asked_by_name_with_keywords(tmp_path: Path, zoo: str) -> None:
    loaded = opened(tmp_path, f"{zoo}:create_model", model_name="tiny", in_chans="1")
    assert type(loaded.module).__name__ == "Tiny"


def test_the_input_is_as_the_modules_config_says(tmp_path: Path, zoo: str) -> None:
    loaded = opened(tmp_path, f"{zoo}:create_model", model_name="tiny", in_chans="1")
    assert known(loaded) == ["x:float32[batch,1,16,24]"]  # as many channels as it has


def test_what_the_user_says_of_the_input_goes_before(tmp_path: Path, zoo: str) -> None:
    loaded = opened(tmp_path, f"{zoo}:create_model", model_name="tiny", in_chans="1")
    assert known(loaded, "x:float32[2,1,h=8..32,8]") == ["x:float32[2,1,h=8..32,8]"]


def test_a_config_without_a_whole_size_says_nothing(tmp_path: Path, zoo: str) -> None:
    assert known(opened(tmp_path, f"{zoo}:plain", in_chans="1")) == []


def test_weights_are_never_fetched(tmp_path: Path, zoo: str) -> None:
    loaded = opened(tmp_path, f"{zoo}:fetching", in_chans="1")
    assert any("pretrained=False" in note for note in loaded.notes)
    with pytest.raises(UsageError, match="pretrained=true"):
        opened(tmp_path, f"{zoo}:create_model", model_name="tiny", pretrained="true")


def test_a_class_method_is_a_factory(tmp_path: Path, zoo: str) -> None:
    loaded = opened(tmp_path, f"{zoo}:Kept.from_pretrained", name="tiny", in_chans="1")
    assert type(loaded.module).__name__ == "Kept"


def test_a_parameter_by_position_only_is_given(tmp_path: Path, zoo: str) -> None:
    assert type(opened(tmp_path, f"{zoo}:required", in_chans="1").module).__name__ == "Tiny"


def test_an_argument_that_nothing_takes_is_rejected(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), tmp_path / "net.ts")
    with pytest.raises(UsageError, match="depth") as caught:
        load_checkpoint(identify(tmp_path / "net.ts", factory=None, factory_args={"depth": "3"}))
    assert caught.value.code is ErrorCode.NO_EFFECT
