"""The compute dtype of OpenVINO layers, and compression of weights to FP16."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..capture.framework_errors import call_framework
from ..core.contract import Array, Feed, Job
from ..core.kinds import Precision
from ..core.records import Coverage
from .onnx_half_ranges import list_angle_constants, weight_overflows
from .onnx_origins import match_nodes, module_or_node, read_origins
from .onnx_topology import float_constants
from .openvino_stateful import StatefulRunner, has_states
from .openvino_weights import WEIGHT_TYPES
from .runner_base import order_inputs

if TYPE_CHECKING:
    import openvino

OPENVINO_SOURCE = "OpenVINO runtime model"
_RUNS = 10  # after one warm-up, which compiles kernels
_LAYERS = frozenset({
    "Convolution", "Deconvolution", "FullyConnected", "GRUCell", "GRUSequence", "LSTMCell",
    "LSTMSequence", "MatMul", "RNNCell", "RNNSeq", "RNNSequence", "ScaledDotProductAttention",
})  # fmt: skip
_PRODUCT = "FullyConnected"  # a product with constant weights
_NAMES = {
    "f32": "fp32", "f16": "fp16", "bf16": "bf16", "f64": "fp64", "i8": "int8", "u8": "int8",
    "i32": "int32", "i64": "int64", "boolean": "bool",
}  # fmt: skip


def measure_coverage(path: Path, example: Feed, settings: Mapping[str, str]) -> Coverage:
    """Return the compute layers by dtype, and each dtype's share of the total time.

    The share counts layers if no time is measurable in whole microseconds.

    Raises:
        ConversionError: OpenVINO cannot compile or run the model.
    """
    executed = call_framework("OpenVINO", lambda: list(_run_nodes(path, example, settings)))
    layers = Counter(dtype for dtype, is_layer, _ in executed if is_layer)
    times: dict[str, float] = defaultdict(float)
    for dtype, _, time in executed:
        times[dtype] += time
    timed = sum(times.values()) > 0
    work = times if timed else layers
    total = sum(work.values())
    return Coverage(
        layers=dict(layers),
        share={dtype: amount / total for dtype, amount in work.items() if amount},
        work="time" if timed else "layers",
        source=OPENVINO_SOURCE,
    )


def signature_name(port: Any, known: tuple[str, ...]) -> str:
    """Return the port's name in the signature: an OpenVINO tensor may have several names."""
    names: set[str] = port.get_names()
    return next((name for name in known if name in names), "") or any_name(port)


def any_name(port: Any) -> str:
    """Return a name of the port's tensor, or the node's name if it has none."""
    named = bool(port.get_names())
    return str(port.get_any_name() if named else port.get_node().get_friendly_name())


def _run_nodes(
    path: Path, example: Feed, settings: Mapping[str, str]
) -> Iterator[tuple[str, bool, float]]:
    """Yield each executed node's compute dtype, whether it is a layer, and its microseconds."""
    import openvino

    core = openvino.Core()
    model = core.read_model(str(path))
    products = {op.get_friendly_name() for op in model.get_ops() if op.get_type_name() == "MatMul"}
    quantized = any(op.get_type_name() == "FakeQuantize" for op in model.get_ops())
    compiled = core.compile_model(model, "CPU", {**settings, "PERF_COUNT": True})
    call = _prepare_call(compiled, example)
    call()
    first = _node_times(compiled)
    for _ in range(_RUNS):
        call()
    mean = _node_times(compiled)
    for op in compiled.get_runtime_model().get_ops():
        name = op.get_friendly_name()
        if name in first:
            facts = _runtime_facts(op)
            layer = facts["layerType"] in _LAYERS or (
                facts["layerType"] == "Subgraph"  # attention and other fused nodes
                and not products.isdisjoint(facts["originalLayersNames"].split(","))
            )
            # OpenVINO reports the mean over all runs, including the first
            time = max(0.0, mean.get(name, 0.0) * (_RUNS + 1) - first[name])
            dtype = _kernel_dtype(facts, quantized=quantized)
            if facts["layerType"] == _PRODUCT and dtype == "fp32":
                dtype = str(WEIGHT_TYPES.get(facts["runtimePrecision"], dtype))
            yield dtype, layer, time


def _prepare_call(compiled: openvino.CompiledModel, example: Feed) -> Callable[[], object]:
    if has_states(compiled):
        return StatefulRunner(compiled, tuple(example), ()).prepare(example)
    request = compiled.create_infer_request()
    names = [signature_name(port, tuple(example)) for port in compiled.inputs]
    given = order_inputs(example, names)
    return lambda: request.infer(given)


def _node_times(compiled: openvino.CompiledModel) -> dict[str, float]:
    """Return the mean microseconds per run by node, without nodes that only move pointers."""
    return {
        op.get_friendly_name(): float(time)
        for op in compiled.get_runtime_model().get_ops()
        if (time := _runtime_facts(op)["execTimeMcs"]) != "not_executed"
    }


def _runtime_facts(op: Any) -> dict[str, str]:
    """Return the runtime model's facts about a node."""
    info = op.get_rt_info()
    return {key: str(getattr(info[key], "value", info[key])) for key in info}


def _kernel_dtype(facts: Mapping[str, str], *, quantized: bool) -> str:
    """Return the precision in which a kernel's name ends: `brgconv_avx512_I8`.

    `runtimePrecision` misleads: it is f16 for a float32 kernel that reads FP16 weights, and u8 for
    a fused attention that reads a mask. Nothing is int8 in a model without quantizers. Of a product
    in float32 it is the type of the weights, if these are integers.
    """
    kernel = facts["primitiveType"].rsplit("_", 1)[-1].lower()
    if kernel in ("i8", "u8") and not quantized:
        return "fp32"
    return _NAMES.get(kernel, kernel)


def compress_weights(model: openvino.Model, job: Job, parent: Path) -> tuple[str, ...]:
    """Compress the model's weights to FP16, in place, if some must stay FP32.

    Else OpenVINO's own writer compresses, with one weight at a time in memory.

    Returns:
        a note for each weight that stays FP32.

    Raises:
        UsageError: a `--keep-fp` pattern matches nothing.
        ConversionError: the parent cannot be read, or OpenVINO rejected it.
    """
    from openvino._offline_transformations import compress_model_transformation

    reasons = _float32_weights(job, parent)
    values = _constant_values(model, reasons)
    if not values:
        return ()
    call_framework("OpenVINO's compression", lambda: compress_model_transformation(model))
    _restore_float32(model, values)
    return tuple(dict.fromkeys(reasons[name] for name in values))


def _float32_weights(job: Job, parent: Path) -> dict[str, str]:
    """Return the note for each weight that stays FP32, by weight."""
    import onnx

    model = call_framework("onnx", lambda: onnx.load(str(parent), load_external_data=False))
    matched = set(match_nodes(parent, job.keep))
    weights = {name for name, _ in float_constants(model.graph)}
    origins = read_origins(parent)
    reasons = {
        name: f"kept in FP32: the weights of {module_or_node(node, origins)}"
        for node in model.graph.node
        if node.name in matched
        for name in node.input
        if name in weights
    }
    for one in weight_overflows(parent, Precision.FP16):
        place = one.module or f"{one.op} {one.node}"
        reasons[one.tensor] = f"kept in FP32: {place} ({one.reason})"
    for name, place in list_angle_constants(parent).items():
        reasons[name] = f"kept in FP32: {place} (its sines have angles that FP16 rounds)"
    return reasons


def _constant_values(model: openvino.Model, names: Collection[str]) -> dict[str, Array]:
    """Copy the values of constants, which compression overwrites."""
    return {
        op.get_friendly_name(): op.get_data().copy()
        for op in model.get_ops()
        if op.get_type_name() == "Constant" and op.get_friendly_name() in names
    }


def _restore_float32(model: openvino.Model, values: Mapping[str, Array]) -> None:
    """Restore FP32 values where compression left FP16 and a Convert of the weight's name."""
    from openvino import opset13

    for op in model.get_ops():
        name = op.get_friendly_name()
        if op.get_type_name() != "Convert" or name not in values:
            continue
        constant = opset13.constant(values[name])
        constant.set_friendly_name(name)
        op.output(0).replace(constant.output(0))
