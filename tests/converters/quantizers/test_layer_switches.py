"""The float model with a switch for each quantized layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from modelc.converters.quantizers import onnxruntime_static
from modelc.converters.quantizers.layer_switches import Switchboard, can_switch, open_switchboard
from modelc.converters.quantizers.quantized_layers import find_sites
from modelc.converters.quantizers.quantizer_registry import find_quantizer
from modelc.core.contract import Feed, Outputs
from modelc.core.kinds import Precision

from .conftest import FloatModel, float_model_of

Made: TypeAlias = tuple[FloatModel, Path, Switchboard]
Switched: TypeAlias = Callable[[str, str, str], Made]
NOISE = 1e-10  # noise over signal of two float32 ways to compute the same


def noise(exact: Outputs, rounded: Outputs) -> float:
    """Noise over signal of the worst output."""
    return max(
        float(np.square(exact[name] - rounded[name]).sum() / np.square(exact[name]).sum())
        for name in exact
    )


def plainly(path: Path, floats: FloatModel) -> list[Outputs]:
    """A Q/DQ model as its nodes say: fused kernels round ties of their own."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = floats.signature.outputs
    taken = {value.name for value in session.get_inputs()}
    feeds = [{n: a for n, a in feed.items() if n in taken} for feed in floats.held_out]
    return [dict(zip(names, session.run(list(names), feed), strict=True)) for feed in feeds]


class Fork(nn.Module):
    """Two products that read one tensor, each with an output of its own; the left has outliers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(32, 32)
        self.left = nn.Linear(32, 32)
        self.right = nn.Linear(32, 32)
        self.last = nn.Linear(32, 32)
        with torch.no_grad():
            self.left.weight[0] *= 30
            self.last.weight[:, 0] /= 30

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.trunk(x).tanh()
        return {"one": self.last(self.left(x)), "two": self.right(x)}


def row(index: int) -> Feed:
    draw = np.random.default_rng(index)
    return {"x": draw.standard_normal((1, 32)).astype(np.float32)}


@pytest.fixture(scope="module")
def fork(tmp_path_factory: pytest.TempPathFactory) -> FloatModel:
    folder = tmp_path_factory.mktemp("fork")
    return float_model_of(folder, "fork", Fork(), ("x:float32[batch=1..4,32]",), row)


@pytest.fixture(scope="module")
def switched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Switched:
    """`switched("digits", "onnx", "onnxruntime")`: float model, Q/DQ model and switchboard."""
    from dataclasses import replace

    made: dict[tuple[str, ...], Made] = {}

    def make(name: str, consumer: str, quantizer: str) -> Made:
        key = (name, consumer, quantizer)
        if key not in made:
            floats = request.getfixturevalue(name)
            job = floats.job(tmp_path_factory.mktemp("quantized"), consumer)
            path = find_quantizer(quantizer).quantize(job).path
            place = replace(job, folder=tmp_path_factory.mktemp("switched"))
            made[key] = (floats, path, open_switchboard(place, path))
        return made[key]

    return make


WAYS = [
    ("digits", "onnx", "onnxruntime"),
    ("digits", "tensorrt-onnx", "onnxruntime"),
    ("digits", "openvino", "onnxruntime"),
    ("bert", "onnx", "onnxruntime"),
    ("fork", "onnx", "onnxruntime"),
    pytest.param(("digits", "tensorrt-onnx", "modelopt"), marks=pytest.mark.slow),
    pytest.param(("bert", "tensorrt-onnx", "modelopt"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_all_off_is_the_float_model_and_all_on_the_quantized_one(
    switched: Switched, way: tuple[str, str, str]
) -> None:
    floats, path, board = switched(*way)
    real = plainly(path, floats)
    for feed, exact, rounded in zip(floats.held_out, floats.expected, real, strict=True):
        assert noise(exact, board.run(feed, ())) < NOISE
        assert noise(rounded, board.run(feed, range(len(board.layers)))) < NOISE
        assert noise(exact, rounded) > 1e-6
    assert board.unknown == ()


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_every_layer_has_a_cost_and_together_they_cost_at_most_thrice_the_sum(
    switched: Switched, way: tuple[str, str, str]
) -> None:
    floats, _, board = switched(*way)
    exact = board.run(floats.held_out[0], ())
    alone = [noise(exact, board.run(floats.held_out[0], (i,))) for i in range(len(board.layers))]
    assert all(cost > 0 for cost in alone)
    together = noise(exact, board.run(floats.held_out[0], range(len(board.layers))))
    assert together < 3 * sum(alone)


def test_a_planted_layer_costs_the_most(switched: Switched) -> None:
    floats, _, board = switched("fork", "onnx", "onnxruntime")
    exact = board.run(floats.held_out[0], ())
    costs = {
        layer.title.partition(" ")[0]: noise(exact, board.run(floats.held_out[0], (index,)))
        for index, layer in enumerate(board.layers)
    }
    assert max(costs, key=costs.__getitem__) == "last"
    assert costs["last"] > 10 * costs["trunk"]


def test_a_tensor_that_two_layers_read_is_switched_for_one_alone(
    switched: Switched,
) -> None:
    floats, _, board = switched("fork", "onnx", "onnxruntime")
    titles = [layer.title.partition(" ")[0] for layer in board.layers]
    feed = floats.held_out[0]
    exact, left = board.run(feed, ()), board.run(feed, (titles.index("left"),))
    right = board.run(feed, (titles.index("right"),))
    first, second = floats.signature.outputs
    assert not np.array_equal(left[first], exact[first])
    assert np.array_equal(left[second], exact[second])
    assert np.array_equal(right[first], exact[first])
    assert not np.array_equal(right[second], exact[second])


def test_layers_are_named_by_the_module_that_owns_their_weights(
    switched: Switched,
) -> None:
    _, _, board = switched("digits", "onnx", "onnxruntime")
    named = [layer.title.partition(" ")[0] for layer in board.layers]
    assert named == ["stem_conv", "body_conv", "head_conv", "hidden", "classify"]


def test_the_operators_after_a_convolution_belong_to_its_layer(switched: Switched) -> None:
    _, _, board = switched("digits", "onnx", "onnxruntime")
    body = board.layers[1]
    assert body.nodes[0].startswith("node_Conv")
    assert any("max_pool" in name for name in body.nodes[1:])


def test_a_tensor_between_two_convolutions_belongs_to_both(switched: Switched) -> None:
    floats, path, _ = switched("digits", "onnx", "onnxruntime")
    sites = find_sites(onnx.load(str(floats.parent)).graph, onnx.load(str(path)).graph, {})
    assert set(sites.of_layer[0]) & set(sites.of_layer[1])


def test_a_node_without_a_counterpart_is_unknown(switched: Switched) -> None:
    floats, path, _ = switched("digits", "onnx", "onnxruntime")
    model = onnx.load(str(path))
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    before = conv.name
    conv.name = "renamed"
    sites = find_sites(onnx.load(str(floats.parent)).graph, model.graph, {})
    assert sites.unknown == ("renamed",)
    assert before not in {site.node for site in sites.sites}


def test_only_onnx_has_switches(tmp_path: Path) -> None:
    assert not can_switch(tmp_path / "model.xml")
    assert can_switch(tmp_path / "model.onnx")
    assert ("onnx", Precision.INT8) in onnxruntime_static.METHODS
