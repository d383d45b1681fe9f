"""Samples of the user: files, and loaders in their own code."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from modelc.checkpoints.sample_inputs import LoaderSamples, infer_specs, read_loader, read_samples
from modelc.core.call import Parameter, ParameterKind
from modelc.core.contract import Array
from modelc.core.errors import CheckpointError, ErrorCode, UsageError

from ..reasons import has_code


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


def test_more_positional_inputs_than_parameters_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="image"):
        saved(tmp_path, [torch.ones(1)] * 2, "image")


def test_a_leaf_that_is_no_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"meta\.flag"):
        saved(tmp_path, {"meta": {"flag": True}})


def test_a_pickle_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="weights: "):
        saved(tmp_path, {"x": Path("x")})


def npz(**arrays: np.ndarray) -> bytes:
    blob = io.BytesIO()
    np.savez(blob, **arrays)  # type: ignore[arg-type]  # arrays by name
    return blob.getvalue()


def safetensors_of(dtype: str) -> bytes:
    header = json.dumps({"x": {"dtype": dtype, "shape": [4], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("a.npz", npz(x=np.array([object()])), ErrorCode.CORRUPT_FILE),
        ("a.npz", b"PK\x03\x04 and then nothing", ErrorCode.CORRUPT_FILE),
        ("a.npz", npz(), ErrorCode.NO_SAMPLES),
        ("a.safetensors", b"PK\x03\x04 and then nothing", ErrorCode.CORRUPT_FILE),
        *(
            ("a.safetensors", safetensors_of(dtype), ErrorCode.CORRUPT_FILE)
            for dtype in ("F8_E4M3", "F8_E8M0", "NONE", "BF8")
        ),
        ("a.npy", b"1", ErrorCode.UNSUPPORTED),
        ("a", b"1", ErrorCode.UNSUPPORTED),
    ],
)
def test_a_file_that_holds_no_samples_is_rejected(
    tmp_path: Path, name: str, content: bytes, code: ErrorCode
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, check=has_code(code)) as caught:
        read_samples(tmp_path / name)
    assert "\n" not in caught.value.message


def test_a_missing_file_is_reported_with_the_closest(tmp_path: Path) -> None:
    (tmp_path / "samples.npz").touch()
    with pytest.raises(UsageError) as caught:
        read_samples(tmp_path / "sample.npz")
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert "samples.npz" in caught.value.hint


def test_a_dtype_that_models_are_not_fed_is_rejected() -> None:
    with pytest.raises(UsageError, match="complex64"):
        infer_specs({"x": np.ones(1, np.complex64)})


Write = Callable[[str], str]

LOADERS = """
    import random
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    def shuffled():
        data = TensorDataset(torch.arange(12.0).view(6, 2), torch.arange(6))
        return DataLoader(data, batch_size=2, shuffle=True)
    def drawn():
        for _ in range(3):
            yield np.random.rand(2), random.random() * torch.rand(2)
    named = [
        {"x": torch.ones(n, 2), "labels": torch.zeros(n), "meta": {"a": np.ones(n)}, "id": ["a"]}
        for n in (3, 2, 1)
    ]
    pairs = [({"x": torch.ones(2, dtype=torch.bfloat16)}, torch.zeros(2))]
    halves = [torch.ones(2, dtype=torch.float16)]
    empty = []
    number = 7
    texts = ["a"]
    def broken():
        yield torch.ones(1)
        raise ValueError("disk gone")
"""
X = Parameter(name="x")
LABELS = Parameter(name="labels", required=False)
MASK = Parameter(name="mask", required=False)
META = Parameter(name="meta", required=False)


@pytest.fixture
def nets(write_module: Write) -> str:
    return write_module(LOADERS)


def forms(found: LoaderSamples) -> list[dict[str, tuple[int, ...]]]:
    return [{name: array.shape for name, array in item.items()} for item in found.items]


def test_a_tuple_goes_to_what_is_required_and_labels_are_left(nets: str) -> None:
    found = read_loader(f"{nets}:shuffled", [X, LABELS], most=2)
    assert forms(found) == [{"x": (2, 2)}, {"x": (2, 2)}]
    (note,) = found.notes
    assert note.startswith("position 1")


def test_a_tuple_goes_on_to_what_input_names(nets: str) -> None:
    assert list(read_loader(f"{nets}:drawn", [X, MASK], inputs=["mask"]).items[0]) == ["x", "mask"]
    assert list(read_loader(f"{nets}:drawn", [X], inputs=["image"]).items[0]) == ["image"]


def test_a_shuffled_loader_gives_the_same_each_time(nets: str) -> None:
    before = np.random.get_state(legacy=False)["state"]["key"].tolist()
    for name in ("shuffled", "drawn"):
        first, second = (read_loader(f"{nets}:{name}", [X, MASK], most=3) for _ in range(2))
        assert first.digest == second.digest
        assert [a["x"].tolist() for a in first.items] == [a["x"].tolist() for a in second.items]
    assert np.random.get_state(legacy=False)["state"]["key"].tolist() == before


def test_a_dict_goes_by_parameters_names_without_its_labels(nets: str) -> None:
    found = read_loader(f"{nets}:named", [X, LABELS, META], most=5)
    assert forms(found) == [{"x": (n, 2), "meta.a": (n,)} for n in (3, 2, 1)]
    assert found.notes[0].startswith("labels, id")


def test_labels_are_inputs_where_they_are_asked_for_or_required(nets: str) -> None:
    asked = read_loader(f"{nets}:named", [X, LABELS], inputs=["labels"])
    required = read_loader(f"{nets}:named", [X, Parameter(name="labels")])
    assert list(asked.items[0]) == list(required.items[0]) == ["x", "labels"]


def test_keyword_arguments_take_all_of_a_dict(nets: str) -> None:
    rest = Parameter(name="kwargs", kind=ParameterKind.REST_BY_NAME, required=False)
    assert list(read_loader(f"{nets}:named", [rest]).items[0]) == ["x", "labels", "meta.a"]


def test_a_dict_beside_a_label_is_the_inputs(nets: str) -> None:
    found = read_loader(f"{nets}:pairs", [X])
    assert found.items[0]["x"].dtype == np.float32
    assert found.notes[0].startswith("position 1")


def test_a_lone_tensor_is_the_only_input(nets: str) -> None:
    found = read_loader(f"{nets}:halves", [X, MASK])
    assert {name: str(array.dtype) for name, array in found.items[0].items()} == {"x": "float32"}


def test_settled_names_are_all_there_are(nets: str) -> None:
    found = read_loader(f"{nets}:named", [X, META], inputs=["meta.a"], settled=True)
    assert list(found.items[0]) == ["meta.a"]


@pytest.mark.parametrize(
    ("name", "takes", "message"),
    [
        ("empty", [X], "empty"),
        ("number", [X], " int"),
        ("texts", [X], "item 0.* str"),
        ("broken", [X], "ValueError"),
        ("named", [Parameter(name="image")], "x, labels, meta.a.*image"),
        ("halves", [X, Parameter(name="y")], "x, y.*Tensor"),
        ("shuffled", [X, MASK, Parameter(name="z"), Parameter(name="w")], " w.* x, z"),
        ("nothing", [X], "'nothing'"),
    ],
)
def test_what_cannot_be_fed_is_reported(
    nets: str, name: str, takes: list[Parameter], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read_loader(f"{nets}:{name}", takes, most=3)


def test_a_module_that_raises_is_the_checkpoints_fault(write_module: Write) -> None:
    with pytest.raises(CheckpointError, match="raised ZeroDivisionError"):
        read_loader(f"{write_module('1 / 0')}:x", [X])
