from __future__ import annotations

import pytest

from modelc.checkpoints.hub_files import select_files
from modelc.core.errors import CheckpointError, ConsentError, ErrorCode, ModelcError, UsageError
from modelc.core.hub_ids import HubId

TEXTS = ("config.json", "tokenizer.json", "vocab.txt")
OTHERS = (
    "README.md", ".gitattributes", "modeling_net.py", "tf_model.h5", "flax_model.msgpack",
    "flax_model.msgpack.index.json", "onnx/model.onnx", "pytorch_model.bin", "rust_model.ot",
)  # fmt: skip
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def chosen(*names: str, place: str = "", allow_pickle: bool = False) -> tuple[str, ...]:
    return select_files(names, HubId(repo="org/name", place=place), allow_pickle=allow_pickle)


def refused(*names: str, place: str = "", allow_pickle: bool = False) -> ModelcError:
    with pytest.raises(ModelcError) as caught:
        chosen(*names, place=place, allow_pickle=allow_pickle)
    return caught.value


def test_safetensors_configs_and_tokenizer_alone_are_chosen() -> None:
    found = chosen("model.safetensors", *TEXTS, *OTHERS, allow_pickle=True)
    assert found == ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt")


def test_shards_come_with_their_index() -> None:
    index = "model.safetensors.index.json"
    found = chosen(index, *SHARDS, "model.fp16-00001-of-00001.safetensors", "config.json")
    assert found == ("config.json", *SHARDS, index)


def test_a_folder_of_a_repository() -> None:
    names = ("unet/config.json", "unet/model.safetensors", "vae/model.safetensors", "x.json")
    assert chosen(*names, place="unet") == ("unet/config.json", "unet/model.safetensors")


def test_one_file_comes_alone() -> None:
    names = ("config.json", "a/ema.safetensors", "a/model.safetensors")
    assert chosen(*names, place="a/ema.safetensors") == ("a/ema.safetensors",)


@pytest.mark.parametrize("place", ["", "pytorch_model.bin"])
def test_a_pickle_needs_consent(place: str) -> None:
    error = refused("config.json", "pytorch_model.bin", place=place)
    assert isinstance(error, ConsentError)
    assert (error.code, error.option) == (ErrorCode.CONSENT_REQUIRED, "allow-pickle")
    found = chosen("config.json", "pytorch_model.bin", place=place, allow_pickle=True)
    assert "pytorch_model.bin" in found


def test_pickled_shards_come_with_their_index() -> None:
    names = ("pytorch_model.bin.index.json", "pytorch_model-00001-of-00001.bin", "config.json")
    assert chosen(*names, allow_pickle=True) == tuple(sorted(names))


def test_several_weights_need_a_choice() -> None:
    error = refused("ema.safetensors", "raw.safetensors")
    assert isinstance(error, UsageError)
    assert error.code is ErrorCode.AMBIGUOUS_WEIGHTS
    assert "hf://org/name/ema.safetensors" in error.hint


@pytest.mark.parametrize("names", [("config.json",), ("tf_model.h5", "config.json")])
def test_no_weights(names: tuple[str, ...]) -> None:
    assert refused(*names).code is ErrorCode.NOT_A_CHECKPOINT


@pytest.mark.parametrize("place", ["README.md", "config.json", "onnx/model.onnx"])
def test_a_file_of_another_kind(place: str) -> None:
    error = refused("model.safetensors", *TEXTS, *OTHERS, place=place)
    assert error.code is ErrorCode.NOT_A_CHECKPOINT


def test_a_misspelt_place_has_a_hint() -> None:
    error = refused("text/model.safetensors", place="txt")
    assert error.code is ErrorCode.NOT_FOUND
    assert "hf://org/name/text?" in error.hint


@pytest.mark.parametrize(
    "name",
    ["../x.json", "a/../../x.json", "/etc/x.json", "a//b.json", "./x.json", "a\\..\\b.json",
     "C:/x.json", "x\0.json", "x\n.json", "..", ""],
)  # fmt: skip
def test_a_name_that_leads_out_of_the_repository(name: str) -> None:
    error = refused("model.safetensors", "config.json", name)
    assert isinstance(error, CheckpointError)
    assert error.code is ErrorCode.UNSAFE_PATH
