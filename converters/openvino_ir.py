"""OpenVINO IR (.xml + .bin), from ONNX; FP32, FP16 or integers; run by OpenVINO's CPU device.

What is not quantized computes in float32 here: by default OpenVINO picks bfloat16 on CPUs that have
it, and an FP16 IR means FP16 *weights*. No entry of the IR prevents that (decision 8), so the
default result is measured as well. An INT8 IR comes from a quantizer, as an ONNX with Q/DQ nodes or
as an IR.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
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
    Readiness,
    Runner,
    TensorInfo,
)
from ..core.errors import ErrorCode, Hint, MissingError, Option, RunnerError
from ..core.kinds import WEIGHTS_ONLY, Capture, Precision
from ..core.large_arrays import check_memory
from ..core.process import thread_limit
from ..core.records import Coverage
from ..core.signature import Signature
from ..core.target_extensions import OpenedByDefault, Probe
from . import openvino_faults, openvino_precision
from .installed_packages import package_versions
from .openvino_arithmetic import keep_float_divisions, keep_wide_integers
from .openvino_precision import compress_weights, signature_name
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
from .openvino_runner import ConcurrentRunner, OpenVinoRunner, port_dtype
from .openvino_stateful import (
    StatefulRunner,
    add_states,
    check_decoder,
    describe_states,
    has_states,
    read_stateless,
)
from .openvino_weights import (
    COPIED_BYTES,
    count_copied_bytes,
    list_integer_weights,
    read_integer_weights,
    read_quantization_steps,
)

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
# A property of the runtime, not of the file: by default, in groups of 32 (see `open_by_default`).
PRECISION_ADVICE: Mapping[Precision, Hint] = {
    Precision.INT8_DYNAMIC: Hint(
        "use ", Option("to", "openvino:int8-weights"), ": OpenVINO itself rounds the activations "
        "of such a model to 8 bits, unless DYNAMIC_QUANTIZATION_GROUP_SIZE is 0"
    ),
}  # fmt: skip
CAPTURES: tuple[Capture, ...] = ()
DEVICES: tuple[str, ...] = ("cpu",)
PLANTS_BY_DEFAULT: bool = True
FLOAT_ENDS: bool = True
plant_fault = openvino_faults.plant_fault
read_metadata = read_ir_metadata
integer_weights = read_integer_weights
quantization_steps = read_quantization_steps
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


def _read_rewritten(parent: Path, job: Job) -> openvino.Model:
    """Read the ONNX or IR, rewrite what OpenVINO computes wrong, and bound the dims."""
    model = read_openvino(parent)
    drop_domain_guard(model)
    if job.precision is not Precision.INT8:  # quantizers recognise a softplus, not its expansion
        keep_small_softplus(model)
    keep_wide_integers(model, job.signature)
    keep_remainders(model)
    keep_float_divisions(model)
    keep_truth_of_nan(model)
    shapes = {spec.name: partial_shape(spec) for spec in job.signature.inputs}
    # A second reshape is not idle: a ShapeOf then reads the weights of each Gemm, and OpenVINO
    # unpacks integers that anything but a product reads.
    known = tuple(shapes)
    given = {signature_name(port, known): port.get_partial_shape() for port in model.inputs}
    if given != shapes:
        call_framework("OpenVINO's reshape", lambda: model.reshape(shapes))
    keep_lone_keys(model)
    if job.precision is Precision.INT8:
        keep_lone_columns(model)
        keep_signed_joins(model)
    else:  # as above
        keep_lengths(model)
    check_bounds(model, job.signature)
    return model


def convert(job: Job) -> Converted:
    """Read the ONNX or IR, bound its dims as in the signature, save both files."""
    import openvino

    if job.parent is None:
        raise RuntimeError("the OpenVINO job has no parent")
    parent = job.parent
    model = _read_rewritten(parent, job)
    if job.stateful:
        call_framework("OpenVINO", lambda: add_states(model, job.signature, job.precision))
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
    return Converted(
        files=files,
        versions=package_versions("openvino"),
        options={"stateful": "true"} if job.stateful else {},
        notes=notes,
        judged_as=Precision.INT8 if _rounds_in_float32(model, job) else None,
    )


def _rounds_in_float32(model: openvino.Model, job: Job) -> bool:
    """Whether the checkpoint itself, not a quantizer, rounds activations to integers."""
    kinds = (node.get_type_name() for node in model.get_ordered_ops())
    return job.precision is Precision.FP32 and "FakeQuantize" in kinds


def _judge_config() -> dict[str, str]:
    """Return the configuration for judging: float32, on the threads of this process."""
    return {**_EXACT, **_thread_config()}


def _thread_config() -> dict[str, str]:
    most = thread_limit()
    return {} if most is None else {"INFERENCE_NUM_THREADS": str(most)}


def estimate_copies(weights: int, precision: Precision) -> int:
    """Return the bytes of OpenVINO's copies of so many weights, with the scales of INT4."""
    kinds = {Precision.INT4: 0.9, Precision.INT8_WEIGHTS: 1.0, Precision.INT8: 1.0}
    return int(weights * kinds.get(precision, COPIED_BYTES["f32"]))


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
    return _make_runner(_compile_model(path, _judge_config()), signature)


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
    runner = _make_runner(compiled, signature)
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
        compiled = _compile_model(path, config)
        if has_states(compiled):
            one = "calls of one request wait for each other"
            raise RunnerError(one, hint="time it without", code=ErrorCode.NO_EFFECT)
        return ConcurrentRunner(compiled, signature)
    opened = open_by_default(path, device, signature)
    if opened is None:
        raise RunnerError(_SAME, hint="its other row is both", code=ErrorCode.NO_EFFECT)
    return opened.runner


def check_states(signature: Signature) -> None:
    """Check that the model is a decoder whose cache OpenVINO can keep."""
    check_decoder(signature)


def _compile_model(path: Path, config: Mapping[str, str]) -> openvino.CompiledModel:
    import openvino

    check_memory(count_copied_bytes(path), f"OpenVINO, which copies weights of {path.name},")
    try:
        return openvino.Core().compile_model(str(path), "CPU", dict(config))
    except RuntimeError as error:
        raise openvino_error(error) from error


def _make_runner(compiled: openvino.CompiledModel, signature: Signature) -> Runner:
    if not has_states(compiled):
        return OpenVinoRunner(compiled, signature)
    names = [spec.name for spec in signature.inputs]
    return StatefulRunner(compiled, names, signature.outputs)


def open_probe(path: Path, signature: Signature) -> Probe:  # noqa: ARG001 - contract
    """Open the IR for probing, compiled as it is judged."""
    return OpenVinoProbe(path, _judge_config())


def weights(path: Path) -> Iterator[Array]:
    """Yield the float32 constants of the IR without compiling it."""
    for node in read_ir(path).get_ordered_ops():
        if node.get_type_name() == "Constant" and port_dtype(node.output(0)) == "float32":
            yield node.data


def inspect(path: Path) -> Inspection:
    """Describe the IR without compiling it."""
    model = read_stateless(path)
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
        facts={"layers": str(sum(operators.values())), **describe_states(path)},
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
    return TensorInfo(name=openvino_precision.any_name(port), dtype=port_dtype(port), dims=dims)
