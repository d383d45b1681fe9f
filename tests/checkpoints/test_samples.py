from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from modelc.checkpoints.sample_inputs import infer_specs, read_samples
from modelc.core.contract import Array
from modelc.core.errors import CheckpointError, ErrorCode, UsageError


def saved(tmp_path: Path, value: object, *parameters: str) -> dict[str, Array]:
    torch.save(value, tmp_path / "a.pt")
    return read_samples(tmp_path / "a.pt", parameters)


def test_npz_keeps_its_names_and_order(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((2, 3), np.float32), ids=np.arange(3))
    samples = read_samples(tmp_path / "a.npz")
    assert [str(spec) for spec in infer_specs(samples).values()] == [
        "x:float32[2,3]",
        "ids:int64[3]",
    ]


def test_safetensors_keep_their_names(tmp_path: Path) -> None:
    save_file({"x": torch.arange(3)}, tmp_path / "a.safetensors")
    assert read_samples(tmp_path / "a.safetensors")["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"x": torch.ones(1, dtype=dtype)}, tmp_path / "a.safetensors")
    assert read_samples(tmp_path / "a.safetensors")["x"].dtype == np.float32
    assert saved(tmp_path, torch.ones(1, dtype=dtype))["x"].dtype == np.float32


def test_half_precision_npz_becomes_float32(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(1, np.float16))
    assert read_samples(tmp_path / "a.npz")["x"].dtype == np.float32


def test_a_tensor_is_the_first_parameter(tmp_path: Path) -> None:
    assert list(saved(tmp_path, torch.ones(1), "image", "mask")) == ["image"]
    assert list(saved(tmp_path, torch.ones(1))) == ["x"]


def test_a_tuple_goes_by_the_order_of_parameters(tmp_path: Path) -> None:
    value = (torch.ones(1), torch.zeros(2))
    assert list(saved(tmp_path, value, "image", "mask", "more")) == ["image", "mask"]
    assert list(saved(tmp_path, value)) == ["input_0", "input_1"]


def test_nested_values_get_dotted_names(tmp_path: Path) -> None:
    one = torch.ones(1)
    value = {"meta": {"a": one}, "pair": (one, one), "none": None}
    assert list(saved(tmp_path, value)) == ["meta.a", "pair.0", "pair.1"]


def test_more_positional_inputs_than_parameters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="image"):
        saved(tmp_path, [torch.ones(1)] * 2, "image")


def test_a_leaf_that_is_no_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"meta\.flag"):
        saved(tmp_path, {"meta": {"flag": True}})


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="weights: "):
        saved(tmp_path, {"x": Path("x")})


def test_objects_in_npz_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([object()]))
    with pytest.raises(UsageError) as caught:
        read_samples(tmp_path / "a.npz")
    assert caught.value.code is ErrorCode.CORRUPT_FILE


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors"])
def test_a_damaged_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(UsageError) as caught:
        read_samples(tmp_path / name)
    assert caught.value.code is ErrorCode.CORRUPT_FILE


@pytest.mark.parametrize("name", ["a.npy", "a"])
def test_another_format_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"1")
    with pytest.raises(UsageError) as caught:
        read_samples(tmp_path / name)
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert ".npz" in caught.value.hint


def test_a_missing_file_is_told_with_the_closest(tmp_path: Path) -> None:
    (tmp_path / "samples.npz").touch()
    with pytest.raises(UsageError) as caught:
        read_samples(tmp_path / "sample.npz")
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert "samples.npz" in caught.value.hint


def test_an_empty_file_of_samples_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz")
    with pytest.raises(UsageError) as caught:
        read_samples(tmp_path / "a.npz")
    assert caught.value.code is ErrorCode.NO_SAMPLES


def test_a_dtype_that_models_are_not_fed_is_refused() -> None:
    with pytest.raises(UsageError, match="complex64"):
        infer_specs({"x": np.ones(1, np.complex64)})
