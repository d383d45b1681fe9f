"""Half-precision weights of large models are cast to files, and are what torch's cast gives."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modelc.checkpoints import float32_copy
from modelc.checkpoints.float32_copy import widen_folder
from modelc.checkpoints.huggingface_folder import load_huggingface
from modelc.checkpoints.mapped_weights import FileMappings
from modelc.core import large_arrays
from modelc.core.records import Checkpoint

TENSORS = {
    "bfloat16": torch.randn(300, 7, generator=torch.Generator().manual_seed(0)).bfloat16(),
    "float16": torch.tensor([6e-8, 65504.0, -0.0, 1 / 3]).half(),
    "special": torch.tensor([float("nan"), float("-inf"), 3e38, 1e-40]).bfloat16(),
    "empty": torch.empty(0, 3).bfloat16(),
    "float32": torch.tensor([0.1, -2.0]),
    "whole": torch.arange(5),
    "flags": torch.tensor([True, False, True]),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat all models as large, and cast a few elements at a time."""
    monkeypatch.setattr(float32_copy, "LEAST_BYTES", 0)
    monkeypatch.setattr(float32_copy, "_CHUNK", 100)


def save_llama(folder: Path, dtype: str = "bfloat16") -> Path:
    """Save a tiny Llama in shards of 4 kB."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size=4000)
    return folder


def load(folder: Path) -> tuple[Any, str]:
    """Load a folder; return its model, and the note on its cast."""
    from modelc.checkpoints.checkpoint_files import identify

    checkpoint: Checkpoint = identify(folder, factory=None, factory_args={})
    loaded = load_huggingface(checkpoint)
    return loaded.module, next((one for one in loaded.notes if "cast to float32" in one), "")


def test_each_value_is_that_of_torchs_cast(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(TENSORS, file, {"format": "pt"})
    with widen_folder(tmp_path, [file]) as (copy, _):
        found = load_file(copy / file.name)
    assert {*found} == {*TENSORS}
    for name, given in TENSORS.items():
        wanted = given.float() if given.dtype in (torch.bfloat16, torch.float16) else given
        assert found[name].dtype is wanted.dtype
        assert found[name].view(torch.uint8).equal(wanted.contiguous().view(torch.uint8))
    assert not copy.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's /proc")
def test_the_model_reads_its_weights_from_files(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "llama")
    module, note = load(folder)
    places = FileMappings()
    assert all(places.hold(one) for one in module.parameters())
    assert note.endswith(tempfile.gettempdir())
    wanted = type(module).from_pretrained(folder, dtype=torch.float32)
    for name, value in wanted.state_dict().items():
        assert value.equal(module.state_dict()[name])


def test_without_room_they_are_in_memory_and_a_note_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_arrays, "_MARGIN", 2**60)
    module, note = load(save_llama(tmp_path / "llama"))
    assert next(module.parameters()).dtype is torch.float32
    assert tempfile.gettempdir() not in note


def test_float32_weights_are_mapped_from_the_folder_itself(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "llama", "float32")
    with widen_folder(folder, sorted(folder.glob("*.safetensors"))) as (copy, where):
        assert (copy, where) == (folder, "")


def test_a_damaged_file_is_named_as_the_user_gave_it(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "llama")
    shard = min(folder.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-50])
    with pytest.raises(Exception, match="llama") as caught:
        load(folder)
    assert "modelc-float32" not in str(caught.value)
