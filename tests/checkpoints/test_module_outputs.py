"""Names of outputs: caches, records, objects; what cannot be flattened."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.checkpoints.eager_model import Eager, open_eager
from modelc.checkpoints.loaded_module import LoadedModule
from modelc.checkpoints.module_outputs import split_outputs
from modelc.core.call import parameters_of
from modelc.core.contract import Feed
from modelc.core.errors import CheckpointError
from modelc.core.grammar import parse_input
from modelc.core.signature import merge_inputs

X: Feed = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
T = torch.ones(2)


class Does(nn.Module):
    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x)


def does(function: Callable[[Tensor], object], *, drop: tuple[str, ...] = ()) -> Eager:
    module = Does(function).eval()
    signature = merge_inputs([parse_input("x:float32[batch=1..8,3]")], {})
    takes = parameters_of(module.forward)
    return open_eager(
        LoadedModule(kind="state_dict", module=module, takes=takes, drop=drop), signature
    )


class Layer:
    """As a layer of transformers' DynamicCache."""

    def __init__(self, keys: Tensor | None, values: Tensor | None) -> None:
        self.keys, self.values = keys, values
        self.is_initialized = keys is not None
        self.dtype = torch.float32
        self._sliding_window_tensor = torch.tensor(4)


class States:
    """As a layer of transformers' Mamba cache."""

    def __init__(self, number: int) -> None:
        self.conv_states = dict.fromkeys(range(number), T)
        self.recurrent_states = dict.fromkeys(range(number), T)
        self.has_previous_state = {0: True}


class Cache:
    def __init__(self, layers: list[Any]) -> None:
        self.layers = layers
        self.layer_class_to_replicate = Layer

    def get_seq_length(self) -> int:
        return 1


class Both:
    """As transformers' EncoderDecoderCache."""

    def __init__(self) -> None:
        self.self_attention_cache = Cache([Layer(T, T), Layer(T, T)])
        self.cross_attention_cache = Cache([Layer(T, T), Layer(T, T)])
        self.is_updated = {0: True}


@dataclass
class Boxes:
    tensor: Tensor
    scale: int = 3


@dataclass
class Found:
    boxes: Boxes
    more: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)


class Plain:
    """An object whose tensors are plain attributes."""

    def __init__(self, **parts: object) -> None:
        vars(self).update(parts)


class Hidden:
    def __init__(self) -> None:
        self.shown, self._hidden = T, T


class Kind(enum.Enum):
    ONE = 1


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ({"logits": T, "past_key_values": Cache([Layer(T, T)])},
         ["logits", "present.0.key", "present.0.value"]),
        ((T, Cache([Layer(T, T)])), ["output.0", "present.0.key", "present.0.value"]),
        (Cache([Layer(None, None), Layer(T, T)]), ["present.1.key", "present.1.value"]),
        ({"cache_params": Cache([States(1), Layer(T, T)])},
         ["present.0.conv_state", "present.0.recurrent_state", "present.1.key", "present.1.value"]),
        (Cache([States(2)]), ["present.0.conv_state.0", "present.0.conv_state.1",
                              "present.0.recurrent_state.0", "present.0.recurrent_state.1"]),
        ({"past_key_values": Both()},
         [f"present.{i}.{side}.{part}" for i in (0, 1) for side in ("decoder", "encoder")
          for part in ("key", "value")]),
        ({"a": Cache([Layer(T, T)]), "b": Cache([Layer(T, T)])},
         ["a.0.key", "a.0.value", "b.0.key", "b.0.value"]),
        (Found(Boxes(T), {"h": (T, T)}), ["boxes.tensor", "more.h.0", "more.h.1"]),
        (Plain(loc=T, scale={"a": [T]}, name="n"), ["loc", "scale.a.0"]),
    ],
)  # fmt: skip
def test_tensors_anywhere_have_names(value: object, names: list[str]) -> None:
    parts = split_outputs(value)
    assert list(parts.tensors) == names
    assert not parts.opaque


def test_what_a_cache_keeps_beside_its_layers_is_an_output() -> None:
    cache = Cache([Layer(None, None)])
    cache.linear_cache = [T]  # type: ignore[attr-defined]
    assert list(split_outputs(cache).tensors) == ["present.linear_cache.0"]


def test_quantized_keys_are_no_outputs() -> None:
    layer = Layer(T, T)
    layer._quantized_keys = T  # type: ignore[attr-defined]
    assert list(split_outputs(Cache([layer])).opaque) == ["present.0"]


@pytest.mark.parametrize("value", [Hidden(), {T}, lambda: T, nn.Linear(1, 1), np.ones(2)])
def test_what_cannot_be_flattened_is_an_error_that_names_it(value: object) -> None:
    eager = does(lambda x: {"y": x, "rest": value})
    with pytest.raises(CheckpointError) as caught:
        eager.run(X)
    assert "rest" in caught.value.message
    assert type(value).__name__ in caught.value.message
    assert "--drop-output rest" in caught.value.hint


@pytest.mark.parametrize("value", [1, 2.5, True, "cat", 1j, Kind.ONE, torch.float32, b"x"])
def test_constants_are_left_out_with_a_note(value: object) -> None:
    eager = does(lambda x: {"y": x, "kind": value})
    assert eager.names(X) == ("y",)
    assert len(eager.notes) == 1
    eager.check_outputs()


@pytest.mark.parametrize("function", [lambda x: float(x.sum()), lambda x: x.shape[0]])
def test_a_number_that_depends_on_the_feed_is_an_error(
    function: Callable[[Tensor], object],
) -> None:
    eager = does(lambda x: {"y": x, "number": function(x)})
    eager.run(X)
    eager.check_outputs()
    eager.run({"x": X["x"][:1] + 1})
    with pytest.raises(CheckpointError) as caught:
        eager.check_outputs()
    assert "number" in caught.value.message
    assert "--drop-output number" in caught.value.hint


@pytest.mark.parametrize(
    ("drop", "names"),
    [
        (("present",), ("y",)),
        (("past",), ("y",)),
        (("present.0.key",), ("y", "present.0.value")),
        (("y",), ("present.0.key", "present.0.value")),
    ],
)
def test_dropped_outputs_are_neither_in_eager_nor_in_the_flat_module(
    drop: tuple[str, ...], names: tuple[str, ...]
) -> None:
    eager = does(lambda x: {"y": x * 2, "past": Cache([Layer(x + 1, x + 2)])}, drop=drop)
    assert eager.names(X) == names
    assert len(eager.flat(torch.ones(2, 3))) == len(names)
    exact = eager.run_exact(X)
    assert exact is not None
    assert tuple(exact) == names
    eager.check_outputs()


def test_what_cannot_be_flattened_can_be_dropped() -> None:
    eager = does(lambda x: {"y": x, "rest": Hidden(), "n": float(x.sum())}, drop=("rest", "n"))
    assert eager.names(X) == ("y",)
    eager.run({"x": X["x"] + 1})
    eager.check_outputs()


def test_all_outputs_dropped_are_an_error() -> None:
    with pytest.raises(CheckpointError):
        does(lambda x: {"y": x}, drop=("y",)).run(X)


@pytest.mark.parametrize("strict", [True, False])
def test_the_flat_module_of_caches_exports(strict: bool) -> None:
    eager = does(lambda x: {"y": Boxes(x * 2), "past": Cache([Layer(x + 1, x + 2), States(1)])})
    eager.run(X)
    program = torch.export.export(eager.flat, (torch.ones(2, 3),), strict=strict)
    assert len(program.module()(torch.ones(2, 3))) == 5
