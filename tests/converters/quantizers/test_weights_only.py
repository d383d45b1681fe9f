"""INT8 and INT4 weights of ONNX and OpenVINO, against weights that are unpacked here."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import openvino
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from modelc.calibration.calibration_options import CalibrationOptions
from modelc.converters import onnx_model, openvino_ir, openvino_weights
from modelc.converters.quantizers import nncf_weights
from modelc.converters.quantizers.quantization_checks import NothingQuantizedError
from modelc.converters.quantizers.quantizer_registry import quantizers_for
from modelc.core import large_arrays
from modelc.core.contract import Job, Quantized, QuantizeJob
from modelc.core.errors import ConversionError, ErrorCode, RunnerError, UsageError
from modelc.core.grammar import parse_input
from modelc.core.kinds import WEIGHTS_ONLY, Precision
from modelc.core.signature import merge_inputs
from modelc.pipeline.order import Lowering, Order, Source, Wanted
from modelc.pipeline.plan import make_plan
from modelc.validators.rounded_weights import find_misrounded_weights
from modelc.validators.scaled_blocks import find_scaled_blocks

from ...reasons import has_code
from .conftest import Feeds, FloatModel, float_model_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[np.float32]"
ROWS, WIDE, OUT = 64, 96, 40
X = np.random.default_rng(1).standard_normal((2, ROWS)).astype(np.float32)
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
both = pytest.mark.parametrize("consumer", ["onnx", "openvino"])
precisions = pytest.mark.parametrize("precision", sorted(WEIGHTS_ONLY))
DYNAMIC = Precision.INT8_DYNAMIC


def make_net() -> nn.Module:
    torch.manual_seed(3)
    layers = nn.Linear(ROWS, WIDE), nn.GELU(), nn.Linear(WIDE, WIDE, bias=False), nn.ReLU()
    return nn.Sequential(*layers, nn.Linear(WIDE, OUT)).eval()


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> FloatModel:
    folder = tmp_path_factory.mktemp("weights")
    return float_model_of(
        folder, "net", make_net(), (f"x:float32[batch=1..8,{ROWS}]",), lambda _: {"x": X}
    )


def quantize(
    net: FloatModel, folder: Path, consumer: str, precision: Precision, **options: Any
) -> Quantized:
    (quantizer,) = quantizers_for(consumer, precision)
    job = QuantizeJob(
        parent=net.parent, consumer=consumer, signature=net.signature,
        folder=folder, precision=precision, **{"calibration": None, **options},
    )  # fmt: skip
    return quantizer.quantize(job)


def run(path: Path, given: Array = X) -> Array:
    """Run the file as its users do, without modelc."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return np.asarray(session.run(None, {"x": given})[0])
    return np.asarray(openvino.Core().compile_model(str(path), "CPU", EXACT)({"x": given})[0])


def unpack_onnx(path: Path) -> list[Array]:
    """Return the weights as ONNX Runtime's documentation of MatMulNBits describes them."""
    graph = onnx.load(str(path)).graph
    known = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    found = []
    for node in graph.node:
        if node.op_type != "MatMulNBits":
            continue
        n = {one.name: one.i for one in node.attribute}
        blocks = -(-n["K"] // n["block_size"])
        packed, scales, zeros = (known[name].reshape(n["N"], -1) for name in node.input[1:4])
        weight = np.zeros((n["N"], n["K"]), np.float32)
        for row in range(n["K"]):
            block = row // n["block_size"]
            if n["bits"] == 4:
                value = packed[:, row // 2] >> 4 * (row % 2) & 15
                zero = zeros[:, block // 2] >> 4 * (block % 2) & 15
            else:
                value, zero = packed[:, row], zeros[:, block]
            step = scales.reshape(n["N"], blocks)[:, block]
            weight[:, row] = (value.astype(int) - zero.astype(int)) * step
        found.append(weight)
    return found


def unpack_openvino(path: Path) -> list[Array]:
    """Return what OpenVINO itself computes of the integers of each product."""
    core = openvino.Core()
    found = []
    for node in core.read_model(str(path)).get_ordered_ops():
        if node.get_type_name() == "MatMul":
            model = openvino.Model([node.input_value(1)], [], "weight")
            found.append(np.asarray(core.compile_model(model, "CPU", EXACT)([])[0]))
    return found


def sqnr(reference: Array, other: Array) -> float:
    return float(10 * np.log10((reference**2).sum() / ((reference - other) ** 2).sum()))


@both
@precisions
def test_outputs_are_those_of_the_unpacked_weights_in_torch(
    net: FloatModel, tmp_path: Path, consumer: str, precision: Precision
) -> None:
    path = quantize(net, tmp_path, consumer, precision).path
    weights = unpack_onnx(path) if consumer == "onnx" else unpack_openvino(path)
    module = deepcopy(make_net())
    layers = [one for one in module if isinstance(one, nn.Linear)]  # type: ignore[attr-defined]
    assert len(weights) == len(layers)
    least = 15 if precision is Precision.INT4 else 40
    for layer, weight in zip(layers, weights, strict=True):
        turned = weight if weight.shape == tuple(layer.weight.shape) else weight.T
        assert sqnr(layer.weight.detach().numpy(), turned) > least
        layer.weight = nn.Parameter(torch.tensor(np.ascontiguousarray(turned)))
    with torch.no_grad():
        assert sqnr(module(torch.tensor(X)).numpy(), run(path)) > 100


@both
@precisions
def test_the_file_says_what_it_stores(
    net: FloatModel, tmp_path: Path, consumer: str, precision: Precision
) -> None:
    target = onnx_model if consumer == "onnx" else openvino_ir
    path = quantize(net, tmp_path, consumer, precision).path
    found = target.inspect(path)
    four = found.weights.get("uint4", 0) + found.weights.get("u4", 0)
    assert found.quantized is precision
    assert (four >= ROWS * WIDE) is (precision is Precision.INT4)
    layers = target.coverage(path, {"x": X}, "cpu").layers
    assert layers[str(precision)] >= 2
    assert set(layers) <= set(WEIGHTS_ONLY)


def test_dynamic_int8_is_the_file_of_int8_weights_that_rounds_activations(
    net: FloatModel, tmp_path: Path
) -> None:
    """The integers are the same; each product reads rows that are rounded in blocks of 128."""
    paths = []
    for precision in (Precision.INT8_WEIGHTS, DYNAMIC):
        folder = tmp_path / precision
        folder.mkdir()
        paths.append(quantize(net, folder, "onnx", precision, group_size=32).path)
    plain, dynamic = (onnx.load(str(one)).graph for one in paths)
    assert plain.initializer == dynamic.initializer
    module = make_net()
    layers = [one for one in module if isinstance(one, nn.Linear)]  # type: ignore[attr-defined]
    given = torch.tensor(X)
    with torch.no_grad():
        for layer, weight in zip(layers, unpack_onnx(paths[1]), strict=True):
            layer.weight = nn.Parameter(torch.tensor(weight))
            layer.register_forward_pre_hook(lambda _, args: (round_blocks(args[0]),))
        meant = module(given).numpy()
    assert sqnr(meant, run(paths[1])) > sqnr(meant, run(paths[0])) + 6
    rows = [run(paths[1], X[:1]), run(paths[1], X[1:])]
    np.testing.assert_allclose(np.concatenate(rows), run(paths[1]), rtol=1e-5, atol=1e-5)


def round_blocks(given: torch.Tensor, size: int = 32) -> torch.Tensor:
    """Round each 32 values of a row to 8 bits, symmetrically, by a scale of their own."""
    blocks = given.reshape(len(given), -1, size)
    steps = blocks.abs().amax(-1, keepdim=True) / 127
    return (torch.round(blocks / steps.clamp(min=1e-30)) * steps).reshape(given.shape)


def test_dynamic_int8_is_known_by_its_file(net: FloatModel, tmp_path: Path) -> None:
    path = quantize(net, tmp_path, "onnx", DYNAMIC).path
    assert onnx_model.inspect(path).quantized is DYNAMIC
    assert onnx_model.coverage(path, {"x": X}, "cpu").layers == {"int8-dynamic": 3}
    known = {name: one.numpy() for name, one in make_net().state_dict().items()}
    assert find_misrounded_weights(known, onnx_model.integer_weights(path)) == ()


def test_openvino_has_no_file_of_dynamic_int8() -> None:
    """The hint names what does the same there."""
    with pytest.raises(UsageError) as caught:
        make_plan(order_of("openvino", DYNAMIC))
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert "openvino:int8-weights" in str(caught.value.hint)
    assert "DYNAMIC_QUANTIZATION_GROUP_SIZE" in str(caught.value.hint)


def order_of(target: str, precision: Precision, **lowering: Any) -> Order:
    wanted = Wanted(target=target, precision=precision)
    return Order(
        source=Source(checkpoint=Path("net.pt")), wanted=(wanted,), out=Path("out"),
        lowering=Lowering(**lowering),
    )  # fmt: skip


def correlated(index: int) -> dict[str, Array]:
    """A sample whose values are mixtures of a few, as activations are."""
    random = np.random.default_rng(index)
    mixture = np.random.default_rng(0).standard_normal((6, ROWS))
    found = random.standard_normal((4, 6)) @ mixture + 0.1 * random.standard_normal((4, ROWS))
    return {"x": found.astype(np.float32)}


@pytest.fixture(scope="module")
def calibrated(net: FloatModel, tmp_path_factory: pytest.TempPathFactory) -> Quantized:
    """INT4 of the net for OpenVINO, with samples."""
    folder = tmp_path_factory.mktemp("gptq")
    return quantize(
        net, folder, "openvino", Precision.INT4, calibration=Feeds(correlated, 32), group_size=32
    )


def test_samples_make_int4_better_on_others(
    net: FloatModel, calibrated: Quantized, tmp_path: Path
) -> None:
    """GPTQ is the default with samples, and the record says so."""
    plain = quantize(net, tmp_path, "openvino", Precision.INT4, group_size=32)
    given = [correlated(index)["x"] for index in range(100, 108)]
    with torch.no_grad():
        meant = make_net()(torch.tensor(np.concatenate(given))).numpy()
    figures = [
        sqnr(meant, np.concatenate([run(one.path, rows) for rows in given]))
        for one in (plain, calibrated)
    ]
    assert figures[1] > figures[0] + 2
    assert (plain.options["method"], calibrated.options["method"]) == ("rtn", "gptq")
    assert calibrated.options["samples"] == "32"


def test_a_doubled_scale_is_found_among_weights_that_gptq_moved(
    calibrated: Quantized, tmp_path: Path
) -> None:
    known = {name: one.numpy() for name, one in make_net().state_dict().items()}
    read = openvino_ir.integer_weights
    assert find_scaled_blocks(known, read(calibrated.path)) == ()
    model = openvino.Core().read_model(str(calibrated.path))
    scales = next(
        one for one in model.get_ordered_ops()
        if one.get_type_name() == "Constant" and len(one.get_output_shape(0)) == 3
        and one.get_output_shape(0)[-1] == 1 and one.get_element_type().is_real()
    )  # fmt: skip
    doubled = np.array(scales.data)
    doubled[7, 1] *= 2
    constant = openvino.opset13.constant(doubled)
    for port in scales.output(0).get_target_inputs():
        port.replace_source_output(constant.output(0))
    path = tmp_path / "faulty.xml"
    openvino.save_model(model, str(path), compress_to_fp16=False)
    (text,) = find_scaled_blocks(known, read(path))
    assert "2 times" in text


def test_samples_are_used_for_what_they_change() -> None:
    """OpenVINO's INT4 takes samples or none; other integer weights say that they take none."""
    calibration = CalibrationOptions(source="random")
    (*_, step) = make_plan(order_of("openvino", Precision.INT4, calibration=calibration))
    assert step.uses_samples
    (*_, step) = make_plan(order_of("openvino", Precision.INT4))
    assert not step.uses_samples
    for target, precision in (("onnx", Precision.INT4), ("openvino", Precision.INT8_WEIGHTS)):
        with pytest.raises(UsageError, check=has_code(ErrorCode.NO_EFFECT, naming="--calib")):
            make_plan(order_of(target, precision, calibration=calibration))
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_SAMPLES)):
        make_plan(order_of("openvino", Precision.INT4, method="gptq"))


@both
@precisions
def test_weights_are_the_checkpoints(
    net: FloatModel, tmp_path: Path, consumer: str, precision: Precision
) -> None:
    target = onnx_model if consumer == "onnx" else openvino_ir
    known = {name: one.numpy() for name, one in make_net().state_dict().items()}
    found = list(target.integer_weights(quantize(net, tmp_path, consumer, precision).path))
    assert len(found) == 3
    assert find_misrounded_weights(known, found) == ()
    for one in found:
        rows, whole = one.shape[0], one.read_all()
        parts = [one.read_rows(row, min(row + 7, rows)) for row in range(0, rows, 7)]
        assert np.array_equal(np.concatenate([part.values for part in parts]), whole.values)
        assert np.array_equal(np.concatenate([part.radius for part in parts]), whole.radius)
        assert [len(np.unique(part.blocks)) for part in parts[:1]] == [
            len(np.unique(whole.blocks[:7]))
        ]
    known["0.weight"][5, :] *= 1.5
    (text,) = find_misrounded_weights(known, found)
    assert "0.weight" in text


@pytest.mark.parametrize("fault", ["scale", "zero", "nibbles", "blocks"])
def test_one_altered_block_is_found(net: FloatModel, tmp_path: Path, fault: str) -> None:
    path = quantize(net, tmp_path, "onnx", Precision.INT4).path
    model = onnx.load(str(path))
    (node, *_) = (one for one in model.graph.node if one.op_type == "MatMulNBits")
    part = {"scale": 2, "zero": 3}.get(fault, 1)
    tensor = next(one for one in model.graph.initializer if one.name == node.input[part])
    array = numpy_helper.to_array(tensor).copy()
    if fault == "scale":
        array[7, 1] *= 2
    elif fault == "zero":
        array[7, 0] ^= 1
    elif fault == "nibbles":
        array[7, 0] = array[7, 0] >> 4 | (array[7, 0] & 15) << 4
    else:
        array[7, [0, 1]] = array[7, [1, 0]]
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, str(path))
    known = {name: one.numpy() for name, one in make_net().state_dict().items()}
    (text,) = find_misrounded_weights(known, onnx_model.integer_weights(path))
    assert "0.weight" in text
    assert "of 192" in text


@both
def test_the_group_size_is_that_of_the_user(net: FloatModel, tmp_path: Path, consumer: str) -> None:
    sizes = {}
    for size in (16, 32):
        folder = tmp_path / str(size)
        folder.mkdir()
        made = quantize(net, folder, consumer, Precision.INT4, group_size=size)
        assert f"of {size}" in made.options["weights"]
        sizes[size] = sqnr(net.expected[0]["output"], run(made.path))
    assert sizes[16] > sizes[32] > 15


def test_kept_layers_stay_in_floating_point(net: FloatModel, tmp_path: Path) -> None:
    names = [one.name for one in onnx.load(str(net.parent)).graph.node if one.op_type == "Gemm"]
    made = quantize(net, tmp_path, "onnx", Precision.INT4, keep=(names[0],))
    kinds = {one.name: one.op_type for one in onnx.load(str(made.path)).graph.node}
    assert kinds[names[0]] == "Gemm"
    assert "MatMulNBits" in kinds.values()


@both
def test_a_model_without_products_is_an_error(tmp_path: Path, consumer: str) -> None:
    (tmp_path / "made").mkdir()
    plain = float_model_of(
        tmp_path, "relu", nn.ReLU(), ("x:float32[batch=1..8,4]",), lambda _: {"x": X[:, :4]}
    )
    with pytest.raises((NothingQuantizedError, ConversionError)):
        quantize(plain, tmp_path / "made", consumer, Precision.INT4)


def test_openvino_is_opened_so_that_it_rounds_no_activation(
    net: FloatModel, tmp_path: Path
) -> None:
    path = quantize(net, tmp_path, "openvino", Precision.INT8_WEIGHTS).path
    opened = openvino_ir.open_by_default(path, "cpu", net.signature)
    assert opened is not None
    assert '"EXECUTION_MODE_HINT": "ACCURACY"' in opened.advice
    with opened.runner as runner:
        rounded = sqnr(run(path), runner.run({"x": X})["output"])
    with openvino_ir.open_runner(path, "cpu", net.signature) as runner:
        assert np.allclose(run(path), runner.run({"x": X})["output"], atol=1e-6)
    assert rounded < 60


class Flattened(nn.Module):
    """A layer as those of GPT-2, which an ONNX has as Gemm between two Reshape."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.weight, self.bias = nn.Parameter(torch.randn(ROWS, OUT)), nn.Parameter(torch.ones(OUT))
        self.last = nn.Linear(OUT, OUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = torch.addmm(self.bias, x.view(-1, ROWS), self.weight)
        out: torch.Tensor = self.last(flat.view(*x.shape[:2], OUT))  # in INT4 it has 8 bits
        return out


@precisions
def test_a_flattened_layer_computes_with_its_integers(tmp_path: Path, precision: Precision) -> None:
    feed = {"x": X.reshape(1, 2, ROWS)}
    (tmp_path / "made").mkdir()
    inputs = (f"x:float32[batch=1..4,seq=1..8,{ROWS}]",)
    model = float_model_of(tmp_path, "flattened", Flattened(), inputs, lambda _: feed)
    made = quantize(model, tmp_path / "made", "openvino", precision)
    job = Job(
        signature=model.signature, precision=precision, folder=tmp_path / "made", stem="final",
        example=feed, parent=made.path,
    )  # fmt: skip
    openvino_ir.convert(job)
    layers = openvino_ir.coverage(tmp_path / "made" / "final.xml", feed, "cpu").layers
    assert layers[str(precision)] >= 1
    assert set(layers) <= set(WEIGHTS_ONLY)


LOOP = """
<ir_version: 8, opset_import: ["" : 18]>
net (float[batch,64] x) => (float[batch,64] y)
<float[1] w = {0}, float[1] one = {1}, bool yes = {1}, int64 turns = {3}>
{
    product = MatMul(x, w)
    last = MatMul(product, w)
    start = Add(last, one)
    y = Loop (turns, yes, start) <body = inner (int64 i, bool goes, float[batch,64] before)
        => (bool goes_on, float[batch,64] after)
        { goes_on = Identity(goes)  after = Add(before, one) }>
}
"""


@precisions
def test_a_loop_that_reads_a_constant_of_the_graph_is_compressed(
    tmp_path: Path, precision: Precision
) -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((64, 64)).astype(np.float32)
    model = onnx.parser.parse_model(LOOP)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "loop.onnx")
    signature = merge_inputs([parse_input("x:float32[batch=1..4,64]")], {}).with_outputs(("y",))
    net = FloatModel(
        name="loop", parent=tmp_path / "loop.onnx", signature=signature, make=lambda _: {"x": X},
        held_out=(), expected=(),
    )  # fmt: skip
    (tmp_path / "made").mkdir()
    path = quantize(net, tmp_path / "made", "openvino", precision).path
    first, last = unpack_openvino(path)
    np.testing.assert_allclose(run(path), X @ first @ last + 4, rtol=1e-4, atol=1e-4)


@precisions
def test_integers_in_files_give_the_same_ir(
    net: FloatModel, tmp_path: Path, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for least in (nncf_weights._LEAST_MAPPED, 1):
        monkeypatch.setattr(nncf_weights, "_LEAST_MAPPED", least)
        folder = tmp_path / str(least)
        folder.mkdir()
        path = quantize(net, folder, "openvino", precision).path
        found.append(path.with_suffix(".bin").read_bytes())
    assert found[0] == found[1]


@precisions
def test_an_ir_that_needs_more_memory_than_there_is_is_an_error(
    net: FloatModel, tmp_path: Path, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = quantize(net, tmp_path, "openvino", precision).path
    weights = ROWS * WIDE + WIDE * WIDE + WIDE * OUT
    monkeypatch.setattr(openvino_weights, "_LARGE", 0)
    assert 0.8 * weights < openvino_weights.count_copied_bytes(path) < 1.4 * weights
    monkeypatch.setattr(large_arrays, "available_memory", lambda: weights // 2)
    with pytest.raises(RunnerError, match="memory") as caught:
        openvino_ir.open_runner(path, "cpu", net.signature)
    assert path.name in caught.value.message
