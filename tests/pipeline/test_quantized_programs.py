"""Programs that pt2e quantized: scales and integers in the artifact, and faults in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from modelc.core.kinds import ReasonCode
from modelc.core.weights import QuantizationStep
from modelc.pipeline.order import Source, Wanted
from modelc.pipeline.program_quantization import find_other_steps
from modelc.pipeline.validate_file import validate_file

from ..conftest import exported

pytest.importorskip("torch.ao.quantization.fx._decomposed")
OPS = torch.ops.quantized_decomposed
BYTE = (-128, 127, torch.int8)


class Quantized(nn.Module):
    """A product as pt2e writes it; the input's integers have a narrower range than their dtype."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.register_buffer(
            "weight", torch.randint(-127, 128, (24, 16), dtype=torch.int8, generator=random)
        )
        self.register_buffer("scale", torch.rand(24, generator=random, dtype=torch.float64) / 100)
        self.register_buffer("zero", torch.zeros(24, dtype=torch.int64))
        self.bias = nn.Parameter(torch.randn(24, generator=random))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrow = (0, 127, torch.uint8)
        x = OPS.quantize_per_tensor(x, 0.05, 60, *narrow)
        x = OPS.dequantize_per_tensor(x, 0.05, 60, *narrow)
        w = OPS.dequantize_per_channel(self.weight, self.scale, self.zero, 0, -127, 127, torch.int8)
        y = nn.functional.linear(x, w, self.bias).relu()
        y = OPS.quantize_per_tensor(y, 0.03, -128, *BYTE)
        found: torch.Tensor = OPS.dequantize_per_tensor(y, 0.03, -128, *BYTE)
        return found


class Dynamic(nn.Module):
    """A rounding whose scale is chosen at run time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, zero = OPS.choose_qparams.tensor(x, -128, 127, 1e-6, torch.int8)
        x = OPS.quantize_per_tensor.tensor(x, scale, zero, *BYTE)
        found: torch.Tensor = OPS.dequantize_per_tensor.tensor(x, scale, zero, *BYTE)
        return found


def save_program(module: nn.Module, path: Path) -> Source:
    """Export a module with a dynamic batch; return its source."""
    batch = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(
        module.eval(), (torch.randn(2, 16),), dynamic_shapes=({0: batch},)
    )
    torch.export.save(program, str(path))
    return Source(checkpoint=path, trust=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return save_program(Quantized(), tmp_path_factory.mktemp("program") / "net.pt2")


@pytest.fixture(scope="module")
def made(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    wanted = (Wanted.parse("onnx"), Wanted.parse("openvino"))
    return exported(source, tmp_path_factory.mktemp("made"), *wanted)


@pytest.mark.needs("onnx", "openvino")
class TestConverted:
    """The artifacts of the program with static scales."""

    def test_scales_and_integers_are_the_checkpoints(self, made: Path) -> None:
        graph = onnx.load(made / "model.onnx").graph
        values = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
        found = {
            (node.op_type, *(values[name].tobytes() for name in node.input if name in values))
            for node in graph.node
            if node.op_type in ("QuantizeLinear", "DequantizeLinear")
        }
        net = Quantized()
        scales = [np.float32(0.05).tobytes(), np.float32(0.03).tobytes()]
        zeros = [np.uint8(60).tobytes(), np.int8(-128).tobytes()]
        weight = (
            net.weight.numpy().tobytes(),
            net.scale.numpy().astype(np.float32).tobytes(),
            bytes(24),
        )

        assert found == {
            ("DequantizeLinear", *weight),
            *(("QuantizeLinear", *pair) for pair in zip(scales, zeros, strict=True)),
            *(("DequantizeLinear", *pair) for pair in zip(scales, zeros, strict=True)),
        }
        assert [one.op_type for one in graph.node].count("Clip") == 1  # to 0..127

    @pytest.mark.parametrize(
        ("operator", "place", "change"),
        [
            ("QuantizeLinear", 1, lambda one: one * 2),
            ("QuantizeLinear", 2, lambda one: one + 1),
            ("DequantizeLinear", 2, lambda one: one + 1),
            ("DequantizeLinear", 1, lambda one: np.nextafter(one, np.float32(1))),
            ("DequantizeLinear", 0, lambda one: one ^ 1),
        ],
    )
    def test_a_fault_in_a_file_is_found(
        self, source: Source, made: Path, tmp_path: Path, operator: str, place: int,
        change: Callable[[Any], Any],
    ) -> None:  # fmt: skip
        """Also one that outputs hide: the limits of INT8 are wider than one step."""
        model = onnx.load(made / "model.onnx")
        values = {one.name: one for one in model.graph.initializer}
        node = next(
            one for one in model.graph.node
            if one.op_type == operator and (place or one.input[0] in values)
        )  # fmt: skip
        array = change(numpy_helper.to_array(values[node.input[place]]))
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), "fault"))
        node.input[place] = "fault"
        onnx.save(model, tmp_path / "fault.onnx")

        verdict = validate_file(tmp_path / "fault.onnx", source)

        assert not verdict.passed
        assert ReasonCode.WEIGHT_ALTERED in {one.code for one in verdict.reasons}

    @pytest.mark.parametrize("at_run_time", [False, True])
    def test_zero_points_that_an_ir_computes_are_found(
        self, source: Source, made: Path, tmp_path: Path, *, at_run_time: bool
    ) -> None:
        """The checkpoint's zero points are 0: what cannot be read must not count as that."""
        import openvino
        from openvino import opset13 as op

        model = openvino.Core().read_model(made / "model.xml")
        node = next(
            one for one in model.get_ordered_ops()
            if one.get_type_name() == "Convert" and one.get_element_type() == openvino.Type.f32
            and one.input_value(0).get_node().get_type_name() == "Constant"
        )  # fmt: skip
        readers = node.output(0).get_target_inputs()
        off = op.add(op.constant(np.float32(0.5)), op.constant(np.float32(0.5)))
        if at_run_time:
            first = op.reduce_max(model.input(0), np.array([0, 1]), keep_dims=False)
            off = op.add(off, op.multiply(first, np.float32(0)))
        moved = op.subtract(node, off)
        for port in readers:
            port.replace_source_output(moved.output(0))
        openvino.save_model(model, str(tmp_path / "fault.xml"), compress_to_fp16=False)

        verdict = validate_file(tmp_path / "fault.xml", source)

        assert ReasonCode.WEIGHT_ALTERED in {one.code for one in verdict.reasons}

    def test_the_file_passes_against_its_checkpoint(self, source: Source, made: Path) -> None:
        assert validate_file(made / "model.onnx", source).passed
        assert validate_file(made / "model.xml", source).passed


@pytest.mark.needs("onnx")
def test_scales_that_are_chosen_at_run_time(tmp_path: Path) -> None:
    folder = exported(
        save_program(Dynamic(), tmp_path / "net.pt2"), tmp_path / "made", Wanted.parse("onnx")
    )

    operators = {node.op_type for node in onnx.load(folder / "model.onnx").graph.node}

    assert {"QuantizeLinear", "DequantizeLinear", "ReduceMin"} <= operators


def step(scale: float, zero: int = 0, *, exact: bool = True) -> QuantizationStep:
    return QuantizationStep(
        place="one", scales=np.array(scale, np.float32), zeros=np.array(zero), exact=exact
    )


def test_steps_are_equal_bit_for_bit_unless_a_file_has_ranges() -> None:
    close = float(np.nextafter(np.float32(0.1), np.float32(1)))

    assert not find_other_steps([step(0.1)], [step(0.1), step(0.1)])
    assert len(find_other_steps([step(0.1)], [step(close)])) == 2
    assert not find_other_steps([step(0.1)], [step(close, exact=False)])
    assert find_other_steps([step(0.1)], [step(0.2, exact=False)])
    assert find_other_steps([step(0.1)], [step(0.1, zero=1, exact=False)])
    assert len(find_other_steps([step(0.1), step(0.2)], [step(0.1)])) == 1
