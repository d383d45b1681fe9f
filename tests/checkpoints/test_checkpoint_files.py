"""Which kind of checkpoint a path is, what it consists of, and whether it changes."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from modelc.checkpoints.checkpoint_files import (
    ChangeGuard,
    identify,
    make_change_guard,
    weight_files,
)
from modelc.checkpoints.checkpoint_loader import load_checkpoint
from modelc.core.errors import CheckpointError, ConsentError, ErrorCode, UsageError
from modelc.core.records import Checkpoint

from ..reasons import has_code

FACTORY = "torch.nn:Linear"


def seen(path: Path, *, factory: str | None = FACTORY) -> Checkpoint:
    return identify(path, factory=factory, factory_args={})


def weights(path: Path) -> Path:
    torch.save(nn.Linear(3, 2).state_dict(), path)
    return path


def sharded(folder: Path) -> Path:
    save_file({"weight": torch.ones(2, 3)}, folder / "m-1-of-2.safetensors")
    save_file({"bias": torch.ones(2)}, folder / "m-2-of-2.safetensors")
    index = folder / "model.safetensors.index.json"
    table = {"weight": "m-1-of-2.safetensors", "bias": "m-2-of-2.safetensors"}
    index.write_text(json.dumps({"weight_map": table}))
    return index


@pytest.mark.parametrize("name", ["a.pt", "a.pth", "a.bin", "a.ckpt", "weights"])
def test_a_state_dict_is_known_under_any_name(tmp_path: Path, name: str) -> None:
    assert seen(weights(tmp_path / name)).kind == "state_dict"


def test_a_legacy_state_dict_is_known(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"weight": torch.ones(1)}, path, _use_new_zipfile_serialization=False)
    assert seen(path).kind == "state_dict"


def test_safetensors_are_known_under_any_name(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    save_file({"weight": torch.ones(2)}, path)
    assert seen(path).kind == "safetensors"


def test_one_file_has_its_own_digest_and_record(tmp_path: Path) -> None:
    path = weights(tmp_path / "a.pt")
    checkpoint = seen(path)
    assert checkpoint.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (checkpoint.path, checkpoint.files[0].name) == (str(path), "a.pt")
    assert checkpoint.files[0].size == path.stat().st_size


def test_several_files_have_the_digest_of_their_listing(tmp_path: Path) -> None:
    checkpoint = seen(sharded(tmp_path))
    lines = sorted(f"{file.name} {file.sha256}\n" for file in checkpoint.files)
    assert checkpoint.digest == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_an_index_and_its_folder_are_the_same_checkpoint(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    by_file, by_folder = seen(index), seen(tmp_path)
    assert (by_file.kind, by_file.files) == (by_folder.kind, by_folder.files)
    assert [path.name for path in weight_files(by_folder)] == [
        "m-1-of-2.safetensors",
        "m-2-of-2.safetensors",
    ]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    (tmp_path / "m-2-of-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match="m-2-of-2"):
        seen(index)


def test_a_shard_outside_the_folder_is_rejected(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    save_file({"a": torch.ones(1)}, tmp_path / "a.safetensors")
    index.write_text(json.dumps({"weight_map": {"a": f"../{tmp_path.name}/a.safetensors"}}))
    with pytest.raises(CheckpointError) as caught:
        seen(index)
    assert caught.value.code is ErrorCode.NOT_FOUND


def test_a_folder_with_config_and_weights_is_hugging_face(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    assert seen(tmp_path, factory=None).kind == "huggingface"


def test_a_factory_goes_before_a_folders_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    assert seen(tmp_path).kind == "safetensors"


def test_a_folder_with_neither_is_rejected_with_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(CheckpointError, match=r"notes\.txt") as caught:
        seen(tmp_path)
    assert caught.value.code is ErrorCode.NOT_A_CHECKPOINT


def test_a_missing_file_is_reported_with_close_names(tmp_path: Path) -> None:
    weights(tmp_path / "resnet.pt")
    with pytest.raises(UsageError) as caught:
        seen(tmp_path / "resnt.pt")
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert "resnet.pt" in caught.value.hint


def test_weights_without_a_factory_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        seen(weights(tmp_path / "a.pt"), factory=None)
    assert caught.value.code is ErrorCode.FACTORY_REQUIRED


def test_a_pickled_module_without_a_factory_is_reported_as_such(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(nn.Linear(3, 2), path)
    with pytest.raises(ConsentError, match=r"pickled torch\.nn\.modules\.linear\.Linear") as caught:
        seen(path, factory=None)
    assert "--allow-pickle" in caught.value.hint


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"


@pytest.mark.parametrize(
    ("name", "content", "code", "shown"),
    [
        ("a.pt", b"", ErrorCode.CORRUPT_FILE, "a.pt"),
        ("a.safetensors", b"", ErrorCode.CORRUPT_FILE, "a.safetensors"),
        ("m.safetensors.index.json", b"{}", ErrorCode.CORRUPT_FILE, "weight_map"),
        ("a.pt", b"Not Found\n", ErrorCode.NOT_A_CHECKPOINT, "Not Found"),
        ("a.pt", LFS, ErrorCode.NOT_A_CHECKPOINT, "Git LFS"),
        ("a.safetensors", LFS, ErrorCode.NOT_A_CHECKPOINT, "Git LFS"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_rejected(
    tmp_path: Path, name: str, content: bytes, code: ErrorCode, shown: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, check=has_code(code, naming=shown)):
        seen(tmp_path / name)


def test_a_zip_of_something_else_is_rejected(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("x.npy", b"1")
    code = has_code(ErrorCode.NOT_A_CHECKPOINT, naming="x.npy")
    with pytest.raises(CheckpointError, check=code):
        seen(tmp_path / "a.pt")


@pytest.mark.parametrize(
    ("name", "size"), [("a.pt", -100), *(("a.safetensors", size) for size in (4, 20, -4))]
)
def test_a_truncated_file_is_rejected(tmp_path: Path, name: str, size: int) -> None:
    path = tmp_path / name
    if path.suffix == ".pt":
        weights(path)
    else:
        save_file({"weight": torch.ones(8)}, path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.CORRUPT_FILE)):
        seen(path)


def bin_shards(folder: Path, bias: object = None) -> Path:
    torch.save({"weight": torch.ones(2, 3)}, folder / "m-1.bin")
    torch.save({"bias": torch.ones(2) if bias is None else bias}, folder / "m-2.bin")
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"weight": "m-1.bin", "bias": "m-2.bin"}}))
    return index


def test_shards_that_torch_saved_are_known_by_index_and_by_folder(tmp_path: Path) -> None:
    by_file, by_folder = seen(bin_shards(tmp_path)), seen(tmp_path)
    assert (by_file.kind, by_file.files) == (by_folder.kind, by_folder.files)
    assert by_file.kind == "state_dict"
    assert [path.name for path in weight_files(by_folder)] == ["m-1.bin", "m-2.bin"]


def test_shards_that_torch_saved_with_a_config_are_hugging_face(tmp_path: Path) -> None:
    bin_shards(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert seen(tmp_path, factory=None).kind == "huggingface"


def test_shards_of_another_kind_than_their_index_says_are_rejected(tmp_path: Path) -> None:
    index = bin_shards(tmp_path)
    save_file({"bias": torch.ones(2)}, tmp_path / "m-2.bin")
    with pytest.raises(CheckpointError) as caught:
        seen(index)
    assert caught.value.code is ErrorCode.CORRUPT_FILE


def test_shards_that_torch_saved_fill_the_factorys_module(tmp_path: Path) -> None:
    args = {"in_features": "3", "out_features": "2"}
    module = load_checkpoint(
        identify(bin_shards(tmp_path), factory=FACTORY, factory_args=args)
    ).module
    assert all(bool((tensor == 1).all()) for tensor in module.state_dict().values())


def test_a_shard_with_more_than_weights_is_rejected(tmp_path: Path) -> None:
    index = bin_shards(tmp_path, bias=nn.Linear(1, 1))
    with pytest.raises(CheckpointError, match=r"m-2\.bin"):
        load_checkpoint(identify(index, factory=FACTORY, factory_args={}))


def stamped(path: Path) -> ChangeGuard:
    return make_change_guard(seen(path))


def test_a_file_that_is_written_to_is_reported(tmp_path: Path) -> None:
    path = weights(tmp_path / "a.pt")
    stamp = stamped(path)
    stamp.check()
    with path.open("r+b") as stream:
        stream.write(b"PK")
    with pytest.raises(CheckpointError, match=r"a\.pt"):
        stamp.check()


def test_a_file_that_another_replaced_does_no_harm(tmp_path: Path) -> None:
    path = weights(tmp_path / "a.pt")
    stamp = stamped(path)
    weights(tmp_path / "b.pt").replace(path)
    stamp.check()
