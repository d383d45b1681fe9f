from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from modelc.checkpoints.eager_model import Eager, open_eager
from modelc.checkpoints.loaded_module import LoadedModule
from modelc.core.call import parameters_of
from modelc.core.contract import Feed, Runner
from modelc.core.errors import CheckpointError, ErrorCode, UsageError
from modelc.core.grammar import parse_input
from modelc.core.signature import merge_inputs

X: Feed = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}


class Does(nn.Module):
    """A module whose forward is the function given."""

    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x)


class Meta(nn.Module):
    def forward(
        self, meta: dict[str, Tensor], pair: tuple[Tensor, Tensor], scale: Tensor | None = None
    ) -> Tensor:
        total = meta["a"] + pair[0] - pair[1]
        return total if scale is None else total * scale


class Waking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        self.inner.train()
        y: Tensor = self.inner(x)
        return y


class Record(NamedTuple):
    first: Tensor
    second: list[Tensor]


@dataclass
class Result:
    scores: Tensor
    label: str
    hidden: tuple[Tensor, ...] | None = None


def opened(module: nn.Module, *inputs: str) -> Eager:
    takes = parameters_of(module.forward)
    signature = merge_inputs([parse_input(text) for text in inputs or ("x:float32[2,3]",)], {})
    return open_eager(LoadedModule(kind="state_dict", module=module.eval(), takes=takes), signature)


def does(function: Callable[[Tensor], object]) -> Eager:
    return opened(Does(function))


def test_eager_is_a_runner() -> None:
    runner: Runner = does(lambda x: x * 2)
    with runner:
        assert runner.inputs == ("x",)
        assert np.array_equal(runner.run(X)["output"], X["x"] * 2)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x: x + 1, ("output",)),
        (lambda x: (x + 1, [x, None]), ("output.0", "output.1.0")),
        (lambda x: {"logits": x, "hidden_states": (x, x)},
         ("logits", "hidden_states.0", "hidden_states.1")),
        (lambda x: Record(x, [x]), ("first", "second.0")),
        (lambda x: Result(x, "cat"), ("scores",)),
    ],
)  # fmt: skip
def test_outputs_of_any_shape_have_stable_names(
    function: Callable[[Tensor], object], names: tuple[str, ...]
) -> None:
    assert does(function).names(X) == names


def test_an_output_that_is_no_tensor_is_left_out_and_noted() -> None:
    eager = does(lambda x: Result(x, "cat"))
    eager.run(X)
    assert len(eager.notes) == 1
    assert "label" in eager.notes[0]


def test_a_model_that_returns_no_tensor_is_rejected() -> None:
    with pytest.raises(CheckpointError, match="int") as caught:
        does(lambda x: x.shape[0]).run(X)
    assert caught.value.code is ErrorCode.NO_TENSOR


def test_bfloat16_outputs_become_float32_and_float16_stays() -> None:
    outputs = does(lambda x: (x.bfloat16(), x.half())).run(X)
    assert [str(array.dtype) for array in outputs.values()] == ["float32", "float16"]


def test_a_feed_is_never_written_to() -> None:
    feed = {"x": X["x"].copy()}
    eager = does(lambda x: x.add_(1))
    assert np.array_equal(eager.run(feed)["output"], X["x"] + 1)
    assert np.array_equal(feed["x"], X["x"])


def test_outputs_do_not_share_memory_with_the_model() -> None:
    linear = nn.Linear(3, 2)
    outputs = does(lambda x: (x, linear.bias)).run(X)
    outputs["output.1"][:] = 9
    assert not (linear.bias == 9).any()


@pytest.mark.parametrize("shape", [(), (0, 3)])
def test_feeds_may_be_scalar_or_empty(shape: tuple[int, ...]) -> None:
    outputs = opened(Does(lambda x: x + 1), "x:float32[]").run({"x": np.ones(shape, np.float32)})
    assert outputs["output"].shape == shape


def test_read_only_and_reversed_feeds_are_taken() -> None:
    array = X["x"][::-1]
    array.flags.writeable = False
    assert np.array_equal(does(lambda x: x * 1).run({"x": array})["output"], array)


def test_a_rejected_feed_is_reported_with_its_form() -> None:
    with pytest.raises(CheckpointError, match=r"x:float32\[2,3\]") as caught:
        opened(nn.Linear(4, 2), "x:float32[2,3]").run(X)
    assert caught.value.code is ErrorCode.FEED_REJECTED
    assert "--input" in caught.value.hint


def test_a_rejected_feed_is_reported_with_the_line_of_the_users_code() -> None:
    weights = torch.ones(4, 2)
    line = "x @ weights"
    with pytest.raises(CheckpointError, match="eager rejects") as caught:
        opened(Does(lambda x: x @ weights), "x:float32[2,3]").run(X)
    place = re.search(r"\(at (\S+):(\d+)\)$", caught.value.message)
    assert place is not None
    assert place[1].endswith("test_eager_model.py")
    assert line in Path(__file__).read_text().splitlines()[int(place[2]) - 1]


def test_nested_inputs_are_put_together() -> None:
    eager = opened(Meta(), "pair.1:float32[1]", "meta.a:float32[1]", "pair.0:float32[1]")
    feed = {"pair.0": 1, "pair.1": 10, "meta.a": 100}
    arrays = {name: np.array([value], np.float32) for name, value in feed.items()}
    assert eager.run(arrays)["output"].tolist() == [91.0]


def test_a_missing_input_is_reported_when_opening() -> None:
    with pytest.raises(UsageError, match="pair"):
        opened(Meta(), "meta.a:float32[1]")


def test_a_stable_model_is_stable_even_with_nan() -> None:
    eager = does(lambda x: x / 0 * 0)
    assert np.isnan(eager.check_stable(X)["output"]).all()
    assert eager.notes == ()


def test_functional_dropout_is_unstable() -> None:
    eager = does(lambda x: {"a": x, "b": nn.functional.dropout(x, 0.5)})
    with pytest.raises(CheckpointError, match=" b ") as caught:
        eager.check_stable({"x": np.ones((64, 3), np.float32)})
    assert caught.value.code is ErrorCode.UNSTABLE_OUTPUTS


def test_an_unstable_module_in_training_mode_is_named() -> None:
    module = Waking()
    module.inner.p = 0.5
    with pytest.raises(CheckpointError, match="inner") as caught:
        opened(module).check_stable({"x": np.ones((64, 3), np.float32)})
    assert caught.value.code is ErrorCode.UNSTABLE_OUTPUTS


def test_a_module_that_turns_training_on_is_noted() -> None:
    eager = opened(Waking())
    eager.check_stable(X)
    assert len(eager.notes) == 1
    assert "inner" in eager.notes[0]


def test_outputs_that_come_and_go_are_unstable() -> None:
    calls: list[int] = []

    def forward(x: Tensor) -> object:
        calls.append(1)
        return (x,) * len(calls)

    with pytest.raises(CheckpointError, match=r"output\.1"):
        does(forward).check_stable(X)


@pytest.fixture(params=["trace", "export", "onnx"])
def captured(request: pytest.FixtureRequest) -> Callable[[Eager, Tensor], Callable[..., object]]:
    def capture(eager: Eager, x: Tensor) -> Callable[..., object]:
        shapes = {"tensors": ({0: torch.export.Dim("batch", min=1, max=8)},)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own deprecations; not what is tested
            if request.param == "trace":
                traced: nn.Module = torch.jit.trace(eager.flat, (x,))  # type: ignore[no-untyped-call] # torch leaves it so
                return traced
            if request.param == "onnx":
                torch.onnx.export(eager.flat, (x,), dynamo=True, dynamic_shapes=shapes)
                return eager.flat
            return torch.export.export(eager.flat, (x,), dynamic_shapes=shapes).module()

    return capture


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2,
        lambda x: {"same": x, "twice": (y := x * 2), "again": y},
        lambda x: (x.add_(1), 5, None),
    ],
    ids=["tensor", "shared", "in place"],
)
def test_flat_can_be_captured(
    captured: Callable[[Eager, Tensor], Callable[..., object]],
    function: Callable[[Tensor], object],
) -> None:
    eager = does(function)
    expected = eager.run(X)
    found = captured(eager, torch.ones(4, 3))(torch.from_numpy(X["x"].copy()))
    assert isinstance(found, tuple)
    for array, tensor in zip(expected.values(), found, strict=True):
        assert np.array_equal(array, tensor.numpy())


class Sized(nn.Module):
    def forward(self, x: Tensor) -> dict[str, object]:
        return {"x": x * 2, "rows": x.shape[0], "last": x + 1, "task": "none"}


class Layer:
    """As a layer of a cache: to a tracer its length, a number, is a tensor."""

    def __init__(self, x: Tensor) -> None:
        self.states, self.last, self.length = x * 2, x + 1, x.shape[0]


@pytest.mark.parametrize("net", [Sized(), Does(Layer)])
def test_flat_gives_a_tracer_no_size_that_eager_gives_as_a_number(net: nn.Module) -> None:
    found = opened(net)
    assert len(found.run({"x": np.ones((2, 3), np.float32)})) == 2
    traced = torch.jit.trace(  # type: ignore[no-untyped-call]
        found.flat, (torch.ones(2, 3),), strict=False
    )
    assert [part.shape for part in traced(torch.ones(4, 3))] == [(4, 3), (4, 3)]


def test_flat_is_in_eval_mode_and_holds_the_module_under_its_scope() -> None:
    eager = opened(nn.Linear(3, 2))
    assert not eager.flat.training
    assert getattr(eager.flat, eager.scope) is eager.module


def test_flat_gives_shared_outputs_and_inputs_as_copies() -> None:
    x = torch.ones(2, 3)
    first, second, third = does(lambda x: (x, y := x * 2, y)).flat(x)
    assert len({tensor.data_ptr() for tensor in (x, first, second, third)}) == 4


def test_flat_leaves_inputs_alone_once_a_write_was_seen() -> None:
    eager = does(lambda x: x.mul_(2))
    eager.check_stable(X)
    assert len(eager.notes) == 1
    assert "(x)" in eager.notes[0]
    x = torch.ones(2, 3)
    eager.flat(x)
    assert torch.equal(x, torch.ones(2, 3))


def test_an_output_with_the_name_of_an_input_gets_out_at_its_end() -> None:
    assert does(lambda x: {"y": x + 1, "x": x + 2}).names(X) == ("y", "x_out")


def test_what_eager_computes_on_its_way_is_shown() -> None:
    module = nn.Linear(3, 20)
    prune.l1_unstructured(module, "weight", amount=0.1)  # type: ignore[no-untyped-call]
    pruned = module.weight.detach().numpy().copy()
    eager = opened(module)
    assert eager.computes(X, lambda array: np.array_equal(array, pruned))
    assert not eager.computes(X, lambda array: np.array_equal(array, pruned * 2))
    assert not np.array_equal(eager.weights()["weight_orig"], pruned)


class Scaled(nn.Module):
    def forward(
        self, x: Tensor, scale: Tensor | None = None, *, shift: Tensor | None = None
    ) -> Tensor:
        y = x if scale is None else x * scale
        return y if shift is None else y + shift


@pytest.mark.parametrize(
    ("inputs", "args", "kwargs"),
    [
        (("x",), 1, []),
        (("x", "scale"), 2, []),
        (("scale", "x"), 2, []),
        (("x", "scale", "shift"), 2, ["shift"]),
        (("x", "shift"), 1, ["shift"]),
    ],
)
def test_inputs_go_in_by_position_where_the_signature_has_no_gap(
    inputs: tuple[str, ...], args: int, kwargs: list[str]
) -> None:
    seen: list[tuple[int, list[str]]] = []
    module = Scaled()
    module.register_forward_pre_hook(
        lambda _, given, named: seen.append((len(given), list(named))), with_kwargs=True
    )
    opened(module, *(f"{name}:float32[2,3]" for name in inputs)).run(dict.fromkeys(inputs, X["x"]))
    # a hook that takes keywords itself reads them by name
    assert seen[0] == (0, [name for name in ("x", "scale", "shift") if name in inputs])
    module._forward_pre_hooks_with_kwargs.clear()
    module._forward_pre_hooks.clear()
    positions: list[int] = []
    module.register_forward_pre_hook(lambda _, given: positions.append(len(given)))
    opened(module, *(f"{name}:float32[2,3]" for name in inputs)).run(dict.fromkeys(inputs, X["x"]))
    assert positions[0] == args
    assert kwargs == [name for name in inputs if name == "shift"]


def test_what_stands_behind_a_gap_goes_in_by_name() -> None:
    class Gap(nn.Module):
        def forward(self, x: Tensor, a: Tensor | None = None, b: Tensor | None = None) -> Tensor:
            assert a is None
            return x if b is None else x - b

    outputs = opened(Gap(), "x:float32[2,3]", "b:float32[2,3]").run({"x": X["x"], "b": X["x"]})
    assert not outputs["output"].any()


def test_a_hook_that_changes_its_arguments_counts() -> None:
    module = Scaled()
    module.register_forward_pre_hook(lambda _, given: (given[0] * 2, *given[1:]))
    module.register_forward_hook(lambda _, given, output: output + given[0])
    eager = opened(module)
    assert np.array_equal(eager.run(X)["output"], X["x"] * 4)
    flat = eager.flat(torch.from_numpy(X["x"]))
    assert np.array_equal(flat[0].numpy(), X["x"] * 4)


def test_models_of_transformers_are_called_by_name() -> None:
    class Like(nn.Module):
        main_input_name = "x"

        def __call__(self, *args: object, **kwargs: object) -> object:
            assert not args
            return super().__call__(*args, **kwargs)

        def forward(self, x: Tensor) -> Tensor:
            return x

    opened(Like()).run(X)


def test_kept_answers_are_computed_once_for_each_feed_and_variant() -> None:
    runs: list[Tensor] = []

    def doubled(x: Tensor) -> Tensor:
        runs.append(x)
        return x * 2

    eager = does(doubled)
    eager.names(X)
    with eager.cache_variants():
        runs.clear()
        first = list(eager.draw_perturbed(X, 2**-24, pairs=2))
        again = list(eager.draw_perturbed(X, 2**-24, pairs=2))
        other = {"x": X["x"] + 1}
        assert (len(first), len(runs)) == (4, 4)
        assert all(one is two for one, two in zip(first, again, strict=True))
        assert not np.array_equal(
            eager.run_plain_attention(X)["output"], eager.run_plain_attention(other)["output"]
        )
        assert len(runs) == 6
    eager.run_plain_attention(X)
    assert len(runs) == 7  # nothing is kept afterwards
