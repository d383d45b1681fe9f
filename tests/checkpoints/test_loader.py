from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from modelc.checkpoints.sample_inputs import LoaderSamples, read_loader
from modelc.core.call import Parameter, ParameterKind
from modelc.core.errors import CheckpointError, UsageError

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
def test_what_cannot_be_fed_is_told(
    nets: str, name: str, takes: list[Parameter], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read_loader(f"{nets}:{name}", takes, most=3)


def test_a_module_that_raises_is_the_checkpoints_fault(write_module: Write) -> None:
    with pytest.raises(CheckpointError, match="raised ZeroDivisionError"):
        read_loader(f"{write_module('1 / 0')}:x", [X])
