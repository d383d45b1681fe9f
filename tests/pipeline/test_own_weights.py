"""Artifacts of integer weights beside their rounding: faults of the graph that rounding hides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from modelc.core.kinds import Precision, ReasonCode
from modelc.core.verdict import Excuse, Verdict
from modelc.pipeline.debug.localise_file import localise_file
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.own_weights import excuse_routed
from modelc.pipeline.reply_evidence import JudgedEvidence
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_file import validate_file
from modelc.validators.feeds import NamedFeed
from modelc.validators.output_pairs import ArtifactOutputs, ReferenceOutputs

from ..conftest import saved
from ..open_models import evidence_of, signature_of
from ..reasons import reason_codes

IDS, WIDTH, WINDOW = 64, 64, 5
SAME = "eager that has the same rounded weights"
NOTE = f"not compared with {SAME}"


class WindowedDecoder(nn.Module):
    """Attention over the last five tokens, whose table is the matrix of the logits too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(IDS, WIDTH)
        self.heads, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        q, k, v = self.heads(x).chunk(3, dim=-1)
        place = torch.arange(ids.shape[1])
        ago = place[:, None] - place[None, :]
        seen = (ago >= 0) & (ago < WINDOW)
        scores = (q @ k.transpose(1, 2) / 8).masked_fill(~seen, -1e9)
        x = x + 0.2 * self.out(torch.softmax(scores, dim=-1) @ v)
        return nn.functional.linear(nn.functional.layer_norm(x, (WIDTH,)), self.embed.weight)


def build() -> nn.Module:
    torch.manual_seed(0)
    return WindowedDecoder().eval()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """The decoder's checkpoint."""
    return Source(
        checkpoint=saved("decoder", build(), tmp_path_factory.mktemp("decoder")),
        model=f"{__name__}:build",
        inputs=(f"ids:int64[batch=1..4,seq=2..24]{{0..{IDS - 1}}}",),
    )


@pytest.fixture(scope="module")
def exported(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its artifacts with integer weights, all of which passed."""
    out = tmp_path_factory.mktemp("window") / "out"
    wanted = tuple(
        Wanted(target=target, precision=precision)
        for target in ("onnx", "openvino")
        for precision in (Precision.INT4, Precision.INT8_WEIGHTS)
    )
    result = run(Order(source=source, wanted=wanted, out=out, judging=Judging(sensitivity=0)))
    assert result.passed, [one.reason for one in result.verdicts]
    assert not [note for one in result.verdicts for note in one.notes if NOTE in note]
    return out


def judge_faulty(
    path: Path, plant: Callable[[onnx.ModelProto], None], copy: Path, source: Source
) -> Verdict:
    model = onnx.load(path)
    plant(model)
    onnx.save(model, copy)
    precision = Precision.INT4 if "int4" in path.name else Precision.INT8_WEIGHTS
    return validate_file(copy, source, precision=precision)


def ignore_window(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if not tensor.dims and numpy_helper.to_array(tensor) == WINDOW:
            tensor.CopyFrom(numpy_helper.from_array(np.array(1000), tensor.name))


def enlarge_residual(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if not tensor.dims and abs(float(numpy_helper.to_array(tensor)) - 0.2) < 1e-6:
            array = np.array(0.21, np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


@pytest.mark.parametrize("plant", [ignore_window, enlarge_residual])
@pytest.mark.parametrize("name", ["model.int4.onnx", "model.int8-weights.onnx"])
def test_a_fault_that_rounding_hides_is_found(
    plant: Callable[[onnx.ModelProto], None],
    name: str,
    exported: Path,
    source: Source,
    tmp_path: Path,
) -> None:
    verdict = judge_faulty(exported / name, plant, tmp_path / name, source)
    assert all(output.passed for output in verdict.outputs)
    assert reason_codes(verdict) == [ReasonCode.GRAPH_DIFFERS]


def test_scales_that_are_all_off_are_named(exported: Path, source: Source, tmp_path: Path) -> None:
    def scale_all(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            if tensor.name in scales_of(model):
                array = numpy_helper.to_array(tensor) * np.float32(1.02)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    verdict = judge_faulty(
        exported / "model.int4.onnx", scale_all, tmp_path / "model.int4.onnx", source
    )
    assert all(output.passed for output in verdict.outputs)
    assert reason_codes(verdict) == [ReasonCode.WEIGHT_ALTERED]


def scales_of(model: onnx.ModelProto) -> set[str]:
    return {node.input[2] for node in model.graph.node if node.op_type == "MatMulNBits"}


def join_products(model: onnx.ModelProto) -> None:
    """Put one product's columns twice, as tools do that join query, key and value."""
    node = next(one for one in model.graph.node if one.op_type == "MatMulNBits")
    for tensor in model.graph.initializer:
        if tensor.name in node.input[1:]:
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(np.concatenate([array, array]), tensor.name))
    columns = next(one for one in node.attribute if one.name == "N")
    made, count = node.output[0], columns.i
    columns.i, node.output[0] = 2 * count, f"{made}_joined"
    for name, value in (("start", 0), ("stop", count), ("axis", -1)):
        array = np.array([value], np.int64)
        model.graph.initializer.append(numpy_helper.from_array(array, f"joined_{name}"))
    names = [node.output[0], "joined_start", "joined_stop", "joined_axis"]
    place = list(model.graph.node).index(node)
    model.graph.node.insert(place + 1, onnx.helper.make_node("Slice", names, [made]))


def test_a_matrix_that_is_no_weight_is_noted(
    exported: Path, source: Source, tmp_path: Path
) -> None:
    path = tmp_path / "model.int4.onnx"
    verdict = judge_faulty(exported / "model.int4.onnx", join_products, path, source)
    assert verdict.passed, verdict.reason
    assert [note for note in verdict.notes if NOTE in note]


def test_the_layer_of_a_fault_that_rounding_hides_is_named(
    exported: Path, source: Source, tmp_path: Path
) -> None:
    model = onnx.load(exported / "model.int4.onnx")
    ignore_window(model)
    onnx.save(model, tmp_path / "model.int4.onnx")
    found = localise_file(tmp_path / "model.int4.onnx", source, precision=Precision.INT4)
    assert found.guilty == "(model)"
    assert found.layers[0].file.endswith(Path(__file__).name)
    assert [note for note in found.notes if SAME in note]


def test_sizes_of_errors_by_experts_are_excused_and_stated() -> None:
    signature = signature_of("x:float32[4,8]", outputs=("y",))
    draw = np.random.default_rng(0)
    references, replies = [], []
    for number in range(3):
        x, y = (draw.standard_normal((4, 8)).astype(np.float32) for _ in range(2))
        feed = NamedFeed(name=f"seed-{number}", arrays={"x": x}, sizes={})
        references.append(ReferenceOutputs(feed=feed, outputs={"y": y}))
        replies.append(ArtifactOutputs(outputs={"y": y + (0.5 * y[::-1] if number else 0)}))
    evidence = evidence_of(references, replies, signature, precision=Precision.INT8_WEIGHTS)
    judged = JudgedEvidence.of(evidence)
    assert not judged.passed
    settled = excuse_routed(judged).verdict
    settled.check_explained()
    assert settled.passed
    assert {one.feed for one in settled.outputs if one.excuse is Excuse.EXPERTS} == {
        "seed-1",
        "seed-2",
    }
    assert len(settled.notes) == len(judged.verdict.notes) + 1
