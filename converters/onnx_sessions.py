"""ONNX Runtime sessions, and the runner of ONNX models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.contract import Feed, Outputs
from ..core.errors import LOGGED, ErrorCode, Hint, MissingError, Option, RunnerError
from ..core.large_arrays import copy_array
from ..core.process import thread_limit
from ..core.records import size_text
from ..core.target_extensions import OpenedByDefault
from .installed_packages import package_versions
from .onnx_guard import external_bytes, read_graph
from .onnx_half_emulation import (
    bfloat16_ends,
    cast_ends,
    computes_in_half,
    emulate_half,
    half_ends,
    has_half,
    has_half_io,
)
from .onnx_topology import all_graphs
from .runner_base import RunnerBase, order_inputs, runner_error, text_lines

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from ..core.signature import Signature
    from .onnx_files import WeightStore

Providers = Sequence[tuple[str, Mapping[str, str]]]
CPU_PROVIDERS: Providers = (("CPUExecutionProvider", {}),)
_LOG_ERRORS = 3  # the lowest severity that is logged
_LARGE = 2**30  # bytes of external weights
_DATA_FOLDER = "session.model_external_initializers_file_folder_path"


def open_session(  # noqa: PLR0913 - how the session holds and changes the graph
    model: Path | onnx.ModelProto,
    folder: Path,
    providers: Providers = CPU_PROVIDERS,
    *,
    held: WeightStore | None = None,
    once: bool = False,
    optimize: bool = True,
) -> onnxruntime.InferenceSession:
    """Open a session of a file, or of a graph in memory whose weights may lie in `folder`.

    `held` are weights detached from the graph; they must outlive the session. With `once`, the
    session does not rearrange its weights for speed, which takes a second copy. Without `optimize`,
    every node runs as the graph has it.

    Raises:
        Exception: anything that ONNX Runtime raises.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_ERRORS
    options.enable_cpu_mem_arena = not once
    limit_threads(options)
    if once:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if has_float8(read_graph(model) if isinstance(model, Path) else model):
        # ONNX Runtime 1.24 fuses Q/DQ as if they were int8, and drops a Relu before one.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        basic = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.graph_optimization_level = basic
    if not optimize:
        level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.graph_optimization_level = level
    if isinstance(model, Path):
        source: str | bytes = str(model)
    else:
        source = model.SerializeToString()
        options.add_session_config_entry(_DATA_FOLDER, str(folder))
        if held is not None:
            held.give(options, model.graph)
    return onnxruntime.InferenceSession(
        source, options, providers=[(name, dict(settings)) for name, settings in providers]
    )


def has_float8(model: onnx.ModelProto) -> bool:
    """Whether a graph quantizes to 8-bit floats: a zero point has their type."""
    from onnx import TensorProto

    return any(
        tensor.data_type == TensorProto.FLOAT8E4M3FN
        for graph in all_graphs(model.graph)
        for tensor in graph.initializer
    )


def limit_threads(options: onnxruntime.SessionOptions) -> None:
    """Limit a session to the threads of this process: it reads no variable, only the machine."""
    most = thread_limit()
    if most is not None:
        options.intra_op_num_threads = most
        options.inter_op_num_threads = 1


def run_session(session: onnxruntime.InferenceSession, feed: Feed) -> Outputs:
    """Return all outputs by name.

    Raises:
        RunnerError: the feed lacks an input of the model.
        Exception: anything that ONNX Runtime raises.
    """
    inputs = [value.name for value in session.get_inputs()]
    outputs = [value.name for value in session.get_outputs()]
    given = dict(zip(inputs, order_inputs(feed, inputs), strict=True))
    return dict(zip(outputs, session.run(outputs, given), strict=True))


_CUDA = "CUDAExecutionProvider"
_CUDA_ADVICE = (
    'onnxruntime.InferenceSession("PATH", providers=[("CUDAExecutionProvider", {"use_tf32": "0"})])'
)
_PROVIDERS: Mapping[str, Providers] = {
    "cpu": CPU_PROVIDERS,
    "cuda": ((_CUDA, {"use_tf32": "0"}),),  # TF32 keeps 10 bits of mantissa
}


def open_onnx(path: Path, device: str, signature: Signature | None = None) -> OnnxRunner:
    """Open a session on the CPU, or on CUDA if its provider loads.

    On the CPU, a model with half tensors runs as a copy that rounds them
    (`onnx_half_emulation.py`), and weights beyond 1 GiB stay in their mapped file, without ONNX
    Runtime's copies of them in the order of its kernels. If modelc made inputs and outputs half, or
    inputs are half that the signature has as float32, the runner still accepts and returns float32.

    Raises:
        RunnerError: ONNX Runtime cannot open the model.
        MissingError: the CUDA provider does not load.
    """
    if device == "cuda":
        _require_cuda()
    model = read_graph(path)
    floats = [] if signature is None else [s.name for s in signature.inputs if s.dtype == "float32"]
    float_io = any(one.name in floats for one in half_ends(model))
    try:
        runnable = runnable_model(path, model, device, float_io=float_io)
        once = device == "cpu" and external_bytes(model, path) > _LARGE
        session = open_session(runnable, path.parent, _PROVIDERS[device], once=once)
    except Exception as error:
        raise session_error(error) from error
    return OnnxRunner(session)


def note_mapped_weights(path: Path) -> tuple[str, ...]:
    """Return a note if a session that judges the file maps its weights; empty for small ones."""
    size = external_bytes(read_graph(path), path)
    text = f"judged on CPUs with {size_text(size)} of weights mapped, which are not prepacked there"
    return (text,) if size > _LARGE else ()


# Execution providers besides that of the device, by the name of their benchmark row.
_DEPLOYMENTS: Mapping[str, Mapping[str, str]] = {
    "cpu": {"openvino": "OpenVINOExecutionProvider", "dnnl": "DnnlExecutionProvider"},
    "cuda": {
        "default": _CUDA, "tensorrt": "TensorrtExecutionProvider",
        "tensorrt-rtx": "NvTensorRTRTXExecutionProvider",
    },
}  # fmt: skip
_PACKAGES = {"openvino": "onnxruntime-openvino", "dnnl": "onnxruntime-dnnl"}


def list_deployments(device: str) -> tuple[str, ...]:
    """Return the providers to benchmark on a device; on the CPU, those of installed packages."""
    return tuple(
        name
        for name in _DEPLOYMENTS[device]
        if name not in _PACKAGES or package_versions(_PACKAGES[name])
    )


def open_deployment(path: Path, deployment: str, device: str) -> OnnxRunner:
    """Open the file itself as users do, also one of half precision, on a named provider.

    Without a name it is that of the device. CUDA computes in float32, and in TF32 as `default`.

    Raises:
        RunnerError: as `open_onnx`; with the code `NO_EFFECT` if the provider is not installed.
        MissingError: the CUDA provider does not load.
    """
    import onnxruntime

    if device == "cuda":
        _require_cuda()
    providers = _PROVIDERS[device]
    if deployment:
        provider = _DEPLOYMENTS[device][deployment]
        providers = ((provider, {}),)
        if provider not in onnxruntime.get_available_providers():
            raise RunnerError(
                f"the installed ONNX Runtime has no {provider}",
                hint="install a build that has it", code=ErrorCode.NO_EFFECT,
            )  # fmt: skip
    try:
        session = open_session(path, path.parent, providers)
    except Exception as error:
        raise session_error(error) from error
    used = session.get_providers()
    if used[0] != providers[0][0]:  # ONNX Runtime only logs that a provider does not load
        raise RunnerError(
            f"{providers[0][0]} does not load here: ONNX Runtime runs the model with {used[0]}",
            hint=LOGGED,
        )
    return OnnxRunner(session)


def open_onnx_by_default(path: Path, device: str) -> OpenedByDefault | None:
    """Open a session with default options; None on the CPU, where that changes nothing.

    Raises:
        RunnerError: ONNX Runtime cannot open the model.
    """
    if device != "cuda":
        return None
    try:
        session = open_session(path, path.parent, ((_CUDA, {}),))
    except Exception as error:
        raise session_error(error) from error
    return OpenedByDefault(runner=OnnxRunner(session), compute="tf32", advice=_CUDA_ADVICE)


def is_judged_by_copy(path: Path) -> bool:
    """Whether the CPU session that judges a file runs a float32 copy of it."""
    return not isinstance(runnable_model(path, read_graph(path), "cpu"), Path)


def session_settings(device: str) -> dict[str, str]:
    """Return the settings of a judging session; others are ONNX Runtime's defaults."""
    ((provider, options),) = _PROVIDERS[device]
    return {"provider": provider, "graph_optimization_level": "ORT_ENABLE_ALL", **options}


def _require_cuda() -> None:
    """Raise if CUDA does not load: ONNX Runtime only logs it, and falls back to the CPU.

    Probes with a model that any device can run, so that a failure to open is not CUDA's.
    """
    from onnx import parser

    text = '<ir_version: 8, opset_import: ["": 18]> g (float[1] x) => (float[1] y) { y = Neg(x) }'
    session = open_session(parser.parse_model(text), Path(), _PROVIDERS["cuda"])
    if session.get_providers()[0] != _CUDA:
        raise MissingError(
            f"ONNX Runtime could not load {_CUDA} and fell back to the CPU",
            hint=Hint(
                "use ",
                Option("device", "cpu"),
                ", or install a CUDA that this onnxruntime-gpu was built for",
            ),
            option="device",
        )


def runnable_model(
    path: Path, model: onnx.ModelProto, device: str, *, float_io: bool = False
) -> Path | onnx.ModelProto:
    """Return the file, or a copy in memory of a partly half model.

    With `float_io`, or if modelc made them half, inputs and outputs are float32.
    """
    float_io = float_io or has_half_io(model)
    if not has_half(model):
        return path
    if device == "cpu" and (float_io or computes_in_half(model)):
        model = emulate_half(model, float_io=float_io)
    elif float_io:
        return cast_ends(model, (*model.graph.input, *model.graph.output))
    elif not bfloat16_ends(model):
        return path
    return cast_ends(model, bfloat16_ends(model))


def session_error(error: Exception) -> RunnerError:
    """Join the lines of ONNX Runtime's message."""
    return runner_error("ONNX Runtime", error, " ".join(text_lines(error)))


class OnnxRunner(RunnerBase):
    """An ONNX Runtime session."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self.inputs = tuple(value.name for value in session.get_inputs())
        self._outputs = [value.name for value in session.get_outputs()]
        self._session: onnxruntime.InferenceSession | None = session

    def run(self, feed: Feed) -> Outputs:
        """Run the feed's arrays unchanged; return copies.

        ONNX Runtime's own arrays keep the memory of the whole session alive, including weights.
        """
        import numpy as np

        if self._session is None:
            raise RuntimeError("the session is closed")
        given = dict(zip(self.inputs, order_inputs(feed, self.inputs), strict=True))
        try:
            values = self._session.run(self._outputs, given)
        except Exception as error:
            raise session_error(error) from error
        found = dict(zip(self._outputs, values, strict=True))
        return {  # a sequence or map is rejected later
            name: copy_array(value) if isinstance(value, np.ndarray) else value
            for name, value in found.items()
        }

    def prepare(self, feed: Feed) -> Callable[[], object]:
        """Return a call on arrays, cast to the session's half inputs where it has them."""
        session = self._session
        if session is None:
            raise RuntimeError("the session is closed")
        given = {}
        for value in session.get_inputs():
            array = feed[value.name]
            half = value.type == "tensor(float16)" and array.dtype.kind == "f"
            given[value.name] = array.astype("float16") if half else array
        return lambda: session.run(self._outputs, given)

    def close(self) -> None:
        """Drop the session and its memory."""
        self._session = None
