from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from modelc.checkpoints.checkpoint_files import identify
from modelc.checkpoints.checkpoint_loader import load_checkpoint
from modelc.checkpoints.eager_model import open_eager
from modelc.checkpoints.huggingface_inputs import infer_inputs
from modelc.checkpoints.loaded_module import LoadedModule
from modelc.core.errors import CheckpointError, ErrorCode
from modelc.core.signature import Signature

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertConfig, BertForSequenceClassification
    from transformers.utils import logging

    folder = tmp_path_factory.mktemp("bert")
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    logging.disable_progress_bar()  # type: ignore[no-untyped-call] # transformers leaves it so
    model = BertForSequenceClassification(config)
    torch.nn.Module.half(model)
    model.save_pretrained(folder)
    logging.enable_progress_bar()  # type: ignore[no-untyped-call] # as above
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    for file in original.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def opened(folder: Path, *, strict: bool = True) -> LoadedModule:
    return load_checkpoint(identify(folder, factory=None, factory_args={}, strict=strict))


def reconfigure(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_folder_brings_module_and_inputs(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    loaded = opened(folder)
    assert type(loaded.module).__name__ == "BertForSequenceClassification"
    assert [str(spec) for spec in loaded.known.values()] == [
        "input_ids:int64[batch,sequence]{0..49}",
        "attention_mask:int64[batch,sequence]{0..1}",
        "token_type_ids:int64[batch,sequence]{0..1}",
    ]
    assert loaded.parameters[:2] == ("input_ids", "attention_mask")
    assert capfd.readouterr() == ("", "")


def test_half_weights_are_brought_to_float32_and_noted(folder: Path) -> None:
    loaded = opened(folder)
    assert {p.dtype for p in loaded.module.parameters()} == {torch.float32}
    assert {"float16;", "float32"} <= set(loaded.notes[0].split())


def test_what_a_folder_knows_runs_eager(folder: Path) -> None:
    loaded = opened(folder)
    eager = open_eager(loaded, Signature(inputs=tuple(loaded.known.values())))
    ids = torch.randint(0, 50, (2, 5)).numpy()
    feed = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
    outputs = eager.run(feed)
    assert {name: array.shape for name, array in outputs.items()} == {"logits": (2, 2)}


def test_missing_weights_are_rejected_rather_than_random(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["classifier.weight"]
    tensors["classifier.bias"] = torch.ones(7)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"classifier\.weight") as caught:
        opened(folder)
    assert caught.value.code is ErrorCode.MISFIT_WEIGHTS
    assert "1 missing: classifier.weight" in opened(folder, strict=False).notes


def test_unused_weights_are_noted(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"head": torch.ones(1)}, path, metadata={"format": "pt"})
    assert "1 unused: head" in opened(folder).notes


def test_a_class_that_transformers_lacks_is_rejected(folder: Path) -> None:
    reconfigure(folder, architectures=["HomeMade"])
    with pytest.raises(CheckpointError, match="is a HomeMade, which transformers"):
        opened(folder)


def test_a_config_of_something_else_is_rejected(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no model_type"):
        opened(folder)


def test_an_unknown_model_type_is_an_error_of_the_checkpoint(folder: Path) -> None:
    reconfigure(folder, model_type="home_made", architectures=["AutoModel"])
    with pytest.raises(CheckpointError) as caught:
        opened(folder)
    assert caught.value.code is ErrorCode.CORRUPT_FILE


def test_images_are_known_by_size_and_channels() -> None:
    config = SimpleNamespace(image_size=[32, 48], num_channels=1)
    (spec,) = infer_inputs(config, ("pixel_values", "labels")).values()
    assert str(spec) == "pixel_values:float32[batch,1,32,48]"


def test_text_and_vision_parts_are_looked_into_in_forwards_order() -> None:
    config = SimpleNamespace(
        text_config=SimpleNamespace(vocab_size=9, max_position_embeddings=500),
        vision_config=SimpleNamespace(image_size=8, num_channels=3),
    )
    known = infer_inputs(config, ("input_ids", "pixel_values", "attention_mask"))
    assert list(known) == ["input_ids", "pixel_values", "attention_mask"]
    assert str(known["input_ids"]) == "input_ids:int64[batch,sequence]{0..8}"


@pytest.mark.parametrize(("both", "count"), [(True, 2), (False, 1)])
def test_only_an_encoder_decoder_takes_decoder_tokens(both: bool, count: int) -> None:
    config = SimpleNamespace(vocab_size=9, is_encoder_decoder=both)
    assert len(infer_inputs(config, ("input_ids", "decoder_input_ids"))) == count


def test_other_inputs_are_left_to_the_user() -> None:
    assert infer_inputs(SimpleNamespace(), ("inputs_embeds", "points")) == {}


def test_shards_that_torch_saved_are_opened_as_weights_alone(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"m-1.bin": names[::2], "m-2.bin": names[1::2]}
    for shard, keys in shards.items():
        torch.save({key: tensors[key] for key in keys}, folder / shard)
    table = {key: shard for shard, keys in shards.items() for key in keys}
    index = {"metadata": {"total_size": 1}, "weight_map": table}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    state = opened(folder).module.state_dict()
    assert all(torch.equal(state[key], tensor.float()) for key, tensor in tensors.items())


def test_weights_that_are_missing_are_drawn_the_same_each_time(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["classifier.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    first, second = (opened(folder, strict=False) for _ in range(2))
    drawn = [one.module.state_dict()["classifier.weight"] for one in (first, second)]
    assert torch.equal(*drawn)
    assert any(note.startswith("1 tensors") for note in first.notes)


def test_an_adapter_beside_the_weights_is_not_left_out(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="adapter_config") as caught:
        opened(folder)
    assert "merge_and_unload" in caught.value.hint


def test_code_of_the_folder_is_noted_and_not_run(folder: Path) -> None:
    reconfigure(folder, auto_map={"AutoModel": "own.Model"})
    (folder / "own.py").write_text("raise SystemExit\n")
    assert any("auto_map" in note for note in opened(folder).notes)
