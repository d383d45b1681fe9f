"""OpenVINO IR (.xml + .bin), from ONNX; FP32, FP16 or integers; run by OpenVINO's CPU device.

What is not quantized computes in float32 here: by default OpenVINO picks bfloat16 on CPUs that have
it, and an FP16 IR means FP16 *weights*. No entry of the IR prevents that (decision 8), so the
default result is measured as well. An INT8 IR comes from a quantizer, as an ONNX with Q/DQ nodes or
as an IR.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..capture.framework_errors import call_framework
from ..core.contract import (
    Array,
    Converted,
    Feed,
    Inspection,
    Job,
    Outputs,
    Readiness,
    Runner,
    TensorInfo,
)
from ..core.errors import ErrorCode, Hint, MissingError, Option, RunnerError
from ..core.kinds import WEIGHTS_ONLY, Capture, Precision
from ..core.large_arrays import copy_array
from ..core.process import thread_limit
from ..core.records import Coverage
from ..core.signature import Signature
from ..core.target_extensions import OpenedByDefault, Probe
from . import openvino_faults, openvino_precision
from .installed_packages import package_versions
from .openvino_arithmetic import keep_float_divisions, keep_wide_integers
from .openvino_precision import compress_weights
from .openvino_probe import OpenVinoProbe
from .openvino_reader import (
    check_bounds,
    drop_domain_guard,
    openvino_error,
    partial_shape,
    read_ir,
    read_ir_metadata,
    read_openvino,
)
from .openvino_rewrites import (
    keep_lengths,
    keep_lone_columns,
    keep_lone_keys,
    keep_remainders,
    keep_signed_joins,
    keep_small_softplus,
    keep_truth_of_nan,
)
from .openvino_weights import list_integer_weights, read_integer_weights
from .runner_base import RunnerBase, order_inputs

if TYPE_CHECKING:
    import openvino

NAME: str = "openvino"
SUMMARY: str = "OpenVINO IR in FP32 or INT8, or with weights in FP16, INT8 or INT4"
SUFFIX: str = ".xml"
MADE_FROM: Mapping[Precision, str] = {
    Precision.FP32: "onnx",
    Precision.FP16: "onnx",
    Precision.INT8: "onnx",
    Precision.INT8_WEIGHTS: "onnx",
    Precision.INT4: "onnx",
}
CAPTURES: tuple[Capture, ...] = ()
DEVICES: tuple[str, ...] = ("cpu",)
PLANTS_BY_DEFAULT: bool = True
FLOAT_ENDS: bool = True
plant_fault = openvino_faults.plant_fault
read_metadata = read_ir_metadata
integer_weights = read_integer_weights
_EXACT = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
_ADVICE = 'core.compile_model("PATH", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})'
_DEFAULTS = {"bf16": "bf16", "f16": "fp16"}  # OpenVINO's default precision by its name in modelc


def readiness() -> Readiness:
    """Return whether the openvino package is installed."""
    found = package_versions("openvino").get("openvino")
    if found is None:
        return Readiness(
            ready=False, reason="openvino is not installed", mend="pip install openvino"
        )
    return Readiness(ready=True, version=found)


def claims(path: Path) -> bool:
    """Return whether it is an .xml file with the root `<net ...>`."""
    if path.suffix != SUFFIX or not path.is_file():
        return False
    with path.open("rb") as stream:
        return b"<net " in stream.read(512)


def _write_metadata(model: openvino.Model, metadata: Mapping[str, str]) -> None:
    """Write the metadata, and the labels where OpenVINO's Model API finds them."""
    for key, value in metadata.items():
        model.set_rt_info(value, ["modelc", key])
    classes = json.loads(metadata.get("meta") or "{}").get("classes", ())
    if classes:
        labels = " ".join("_".join(name.split()) for name in classes)
        model.set_rt_info(labels, ["model_info", "labels"])


def convert(job: Job) -> Converted:
    """Read the ONNX or IR, bound its dims as in the signature, save both files."""
    import openvino

    if job.parent is None:
        raise RuntimeError("the OpenVINO job has no parent")
    parent = job.parent
    model = read_openvino(parent)
    drop_domain_guard(model)
    if job.precision is not Precision.INT8:  # quantizers recognise a softplus, not its expansion
        keep_small_softplus(model)
    keep_wide_integers(model, job.signature)
    keep_remainders(model)
    keep_float_divisions(model)
    keep_truth_of_nan(model)
    shapes = {spec.name: partial_shape(spec) for spec in job.signature.inputs}
    call_framework("OpenVINO's reshape", lambda: model.reshape(shapes))
    keep_lone_keys(model)
    if job.precision is Precision.INT8:
        keep_lone_columns(model)
        keep_signed_joins(model)
    else:  # as above
        keep_lengths(model)
    check_bounds(model, job.signature)
    _write_metadata(model, job.metadata)
    name = job.stem + SUFFIX
    half = job.precision is Precision.FP16
    notes = compress_weights(model, job, parent) if half else ()
    rest = half and not notes
    call_framework(
        "OpenVINO's writer",
        lambda: openvino.save_model(model, str(job.folder / name), compress_to_fp16=rest),
    )
    weights = str(Path(name).with_suffix(".bin"))
    files = ((name, "model"), (weights, "data"))
    return Converted(files=files, versions=package_versions("openvino"), notes=notes)


def _judge_config() -> dict[str, str]:
    """Return the configuration for judging: float32, on the threads of this process."""
    return {**_EXACT, **_thread_config()}


def _thread_config() -> dict[str, str]:
    most = thread_limit()
    return {} if most is None else {"INFERENCE_NUM_THREADS": str(most)}


def judge_settings(device: str) -> Mapping[str, str]:  # noqa: ARG001 - one device
    """Return the settings for judging."""
    return _EXACT


def open_runner(path: Path, device: str, signature: Signature) -> Runner:
    """Compile the IR for the CPU in float32."""
    if device != "cpu":
        raise MissingError(
            f"openvino runs on cpu, not on {device}",
            hint=Hint("use ", Option("device", "cpu")),
            option="device",
        )
    return OpenVinoRunner(_compile_model(path, _judge_config()), signature)


def open_by_default(path: Path, device: str, signature: Signature) -> OpenedByDefault | None:  # noqa: ARG001 - one device
    """Compile the IR with default settings; None if that means float32 on this CPU.

    Before a product with integer weights, OpenVINO rounds the activations to 8 bits by default.
    """
    compiled = _compile_model(path, _thread_config())
    rounds = inspect(path).quantized in WEIGHTS_ONLY
    picked = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    compute = _DEFAULTS.get(picked, "int8" if rounds else "")
    if not compute:
        return None
    advice = _ADVICE.replace('"f32"', '"f32", "EXECUTION_MODE_HINT": "ACCURACY"')
    runner = OpenVinoRunner(compiled, signature)
    return OpenedByDefault(runner=runner, compute=compute, advice=advice if rounds else _ADVICE)


_SAME = "the runtime's defaults compute as the judge does"


def list_deployments(device: str) -> tuple[str, ...]:  # noqa: ARG001 - one device
    """Return the ways to open an IR: default settings, and requests in parallel."""
    return "default", "throughput"


def open_deployment(path: Path, deployment: str, device: str, signature: Signature) -> Runner:
    """Compile the IR as it is judged, with default settings, or for throughput.

    Raises:
        RunnerError: OpenVINO cannot open it; with the code `NO_EFFECT` if default settings change
            nothing.
    """
    if not deployment:
        return open_runner(path, device, signature)
    if deployment == "throughput":
        config = {**_judge_config(), "PERFORMANCE_HINT": "THROUGHPUT"}
        return ConcurrentRunner(_compile_model(path, config), signature)
    opened = open_by_default(path, device, signature)
    if opened is None:
        raise RunnerError(_SAME, hint="its other row is both", code=ErrorCode.NO_EFFECT)
    return opened.runner


def _compile_model(path: Path, config: Mapping[str, str]) -> openvino.CompiledModel:
    import openvino

    try:
        return openvino.Core().compile_model(str(path), "CPU", dict(config))
    except RuntimeError as error:
        raise openvino_error(error) from error


class OpenVinoRunner(RunnerBase):
    """A compiled OpenVINO model; its tensors keep the names of the ONNX."""

    def __init__(self, compiled: openvino.CompiledModel, signature: Signature) -> None:
        names = tuple(spec.name for spec in signature.inputs)
        self.inputs = tuple(
            openvino_precision.signature_name(port, names) for port in compiled.inputs
        )
        self._dtypes = [_port_dtype(port) for port in compiled.inputs]
        self._outputs = [
            openvino_precision.signature_name(port, signature.outputs) for port in compiled.outputs
        ]
        kinds = [port.get_element_type().get_type_name() for port in compiled.outputs]
        self._half = [kind == "bf16" for kind in kinds]
        self._compiled: openvino.CompiledModel | None = compiled

    def run(self, feed: Feed) -> Outputs:
        """Run the feed; return copies, because OpenVINO reuses its memory."""
        if self._compiled is None:
            raise RuntimeError("the model is closed")
        given = order_inputs(feed, self.inputs)
        for name, dtype in zip(self.inputs, self._dtypes, strict=True):
            if str(feed[name].dtype) != dtype:  # OpenVINO would cast it silently
                raise RunnerError(
                    f"OpenVINO: input {name!r} is {feed[name].dtype}, the model takes {dtype}",
                    hint=f"feed it as {dtype}",
                )
        try:
            results = self._compiled(given)
        except RuntimeError as error:
            raise openvino_error(error) from error
        return {
            name: _copy_array(results[i], self._half[i]) for i, name in enumerate(self._outputs)
        }

    def prepare(self, feed: Feed) -> Callable[[], object]:
        """Return a call on arrays that shares their memory, and that of the outputs."""
        compiled, given = self._compiled, order_inputs(feed, self.inputs)
        if compiled is None:
            raise RuntimeError("the model is closed")
        return lambda: compiled(given, share_inputs=True, share_outputs=True)

    def close(self) -> None:
        """Drop the compiled model."""
        self._compiled = None


class ConcurrentRunner(OpenVinoRunner):
    """A model compiled for throughput, whose prepared call keeps as many requests in flight.

    Each of `in_flight` requests runs `rounds` times in a call, so that the time of a call divided
    by `rounds` is that of one request among the others.
    """

    rounds = 4

    def __init__(self, compiled: openvino.CompiledModel, signature: Signature) -> None:
        super().__init__(compiled, signature)
        self.in_flight = int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))

    def prepare(self, feed: Feed) -> Callable[[], object]:
        """Return a call that starts all requests, each as soon as one before it is done."""
        import openvino

        compiled, given = self._compiled, order_inputs(feed, self.inputs)
        if compiled is None:
            raise RuntimeError("the model is closed")
        queue = openvino.AsyncInferQueue(compiled, self.in_flight)

        def call() -> None:
            for _ in range(self.rounds * self.in_flight):
                queue.start_async(given, share_inputs=True)
            queue.wait_all()

        return call


def _copy_array(array: Array, bfloat16: bool) -> Array:
    """Copy the array; convert bfloat16, which OpenVINO presents as float16, to float32."""
    import numpy as np

    if not bfloat16:
        return copy_array(array)
    bits = array.view(np.uint16).astype(np.uint32) << 16  # the upper half of a float32
    return bits.view(np.float32)


def _port_dtype(port: Any) -> str:
    """Return numpy's name of the port's element type."""
    return str(port.get_element_type().to_dtype())


def open_probe(path: Path, signature: Signature) -> Probe:  # noqa: ARG001 - contract
    """Open the IR for probing, compiled as it is judged."""
    return OpenVinoProbe(path, _judge_config())


def weights(path: Path) -> Iterator[Array]:
    """Yield the float32 constants of the IR without compiling it."""
    for node in read_ir(path).get_ordered_ops():
        if node.get_type_name() == "Constant" and _port_dtype(node.output(0)) == "float32":
            yield node.data


def inspect(path: Path) -> Inspection:
    """Describe the IR without compiling it."""
    model = read_ir(path)
    weights: Counter[str] = Counter()
    operators: Counter[str] = Counter()
    for node in model.get_ops():
        kind = node.get_type_name()
        operators[kind] += 1
        if kind == "Constant" and not node.output(0).get_partial_shape().is_dynamic:
            weights[node.output(0).get_element_type().to_string()] += prod(
                node.output(0).get_shape()
            )
    return Inspection(
        target=NAME,
        inputs=tuple(_tensor_info(port) for port in model.inputs),
        outputs=tuple(_tensor_info(port) for port in model.outputs),
        facts={"layers": str(sum(operators.values()))},
        weights=weights,
        operators=operators,
        metadata=read_ir_metadata(path),
        quantized=_precision_of_layers(model, operators),
    )


def _precision_of_layers(model: openvino.Model, operators: Mapping[str, int]) -> Precision | None:
    """Return the precision of the quantized layers, the lowest; None without any."""
    if "FakeQuantize" in operators:
        return Precision.INT8
    return min((stored for _, stored in list_integer_weights(model)), default=None)


def coverage(path: Path, example: Feed, device: str) -> Coverage:  # noqa: ARG001 - one device
    """Return the dtypes in which the compiled model runs, by layers and by time."""
    return openvino_precision.measure_coverage(path, example, _judge_config())


def _tensor_info(port: Any) -> TensorInfo:
    dims = tuple(str(dim) for dim in port.get_partial_shape())
    return TensorInfo(name=openvino_precision.any_name(port), dtype=_port_dtype(port), dims=dims)
