"""ONNX Runtime sessions, and the runner of ONNX models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.contract import Feed, Outputs
from ..core.errors import Hint, MissingError, Option, RunnerError
from ..core.process import thread_limit
from ..core.target_extensions import OpenedByDefault
from .onnx_guard import read_graph
from .onnx_half_emulation import (
    computes_in_half,
    emulate_half,
    has_bfloat16_output,
    has_half,
    has_half_io,
    with_float_io,
    with_float_outputs,
)
from .runner_base import RunnerBase, order_inputs, runner_error, text_lines

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from .onnx_files import WeightStore

Providers = Sequence[tuple[str, Mapping[str, str]]]
CPU_PROVIDERS: Providers = (("CPUExecutionProvider", {}),)
_LOG_ERRORS = 3  # the least severe that is logged
_DATA_FOLDER = "session.model_external_initializers_file_folder_path"


def open_session(
    model: Path | onnx.ModelProto,
    folder: Path,
    providers: Providers = CPU_PROVIDERS,
    *,
    held: WeightStore | None = None,
    once: bool = False,
) -> onnxruntime.InferenceSession:
    """A session of a file, or of a graph in memory whose weights may lie in `folder`.

    `held` are weights that were taken out of the graph; they must outlive the session. A session
    that runs `once` does not arrange its weights for speed, which takes a second copy of them.

    Raises:
        Exception: whatever ONNX Runtime raises; the caller says what it means.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_ERRORS
    options.enable_cpu_mem_arena = not once
    limit_threads(options)
    if once:
        options.add_session_config_entry("session.disable_prepacking", "1")
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


def limit_threads(options: onnxruntime.SessionOptions) -> None:
    """Hold a session to the threads of this process; it asks the machine, and no variable."""
    most = thread_limit()
    if most is not None:
        options.intra_op_num_threads = most
        options.inter_op_num_threads = 1


def run_session(session: onnxruntime.InferenceSession, feed: Feed) -> Outputs:
    """All outputs by name.

    Raises:
        RunnerError: the model takes an input that the feed does not have.
        Exception: whatever ONNX Runtime raises.
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


def open_onnx(path: Path, device: str) -> OnnxRunner:
    """Open a session on the CPU, or on CUDA where its provider really loads.

    On the CPU a model with half tensors runs as a copy that rounds them (`onnx_rounding.py`).
    Where inputs and outputs were made half, the runner takes and gives float32 all the same.

    Raises:
        RunnerError: ONNX Runtime would not open the model.
        MissingError: CUDA is asked for and its provider does not load.
    """
    if device == "cuda":
        _require_cuda()
    model = read_graph(path)
    try:
        session = open_session(
            _runnable_model(path, model, device), path.parent, _PROVIDERS[device]
        )
    except Exception as error:
        raise _session_error(error) from error
    return OnnxRunner(session)


def open_onnx_by_default(path: Path, device: str) -> OpenedByDefault | None:
    """Open a session as users do who set nothing; None on the CPU, where that changes nothing.

    Raises:
        RunnerError: ONNX Runtime would not open the model.
    """
    if device != "cuda":
        return None
    try:
        session = open_session(path, path.parent, ((_CUDA, {}),))
    except Exception as error:
        raise _session_error(error) from error
    return OpenedByDefault(runner=OnnxRunner(session), compute="tf32", advice=_CUDA_ADVICE)


def is_judged_by_copy(path: Path) -> bool:
    """Whether the CPU session that judges a file runs a float32 copy of it."""
    return not isinstance(_runnable_model(path, read_graph(path), "cpu"), Path)


def session_settings(device: str) -> dict[str, str]:
    """The settings of a session that judges; what is not named is ONNX Runtime's default."""
    ((provider, options),) = _PROVIDERS[device]
    return {"provider": provider, "graph_optimization_level": "ORT_ENABLE_ALL", **options}


def _require_cuda() -> None:
    """ONNX Runtime only logs that a provider does not load, and goes on with the CPU.

    It is asked with a model that any device can run: what then does not open is not CUDA's fault.
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


def _runnable_model(path: Path, model: onnx.ModelProto, device: str) -> Path | onnx.ModelProto:
    """The file itself, or a copy in memory of a model that is half in parts."""
    float_io = has_half_io(model)
    if not has_half(model):
        return path
    if device == "cpu" and (float_io or computes_in_half(model)):
        model = emulate_half(model, float_io=float_io)
    elif float_io:
        return with_float_io(model)
    elif not has_bfloat16_output(model):
        return path
    return with_float_outputs(model)


def _session_error(error: Exception) -> RunnerError:
    """ONNX Runtime breaks its sentences into lines."""
    return runner_error("ONNX Runtime", error, " ".join(text_lines(error)))


class OnnxRunner(RunnerBase):
    """An ONNX Runtime session."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self.inputs = tuple(value.name for value in session.get_inputs())
        self._outputs = [value.name for value in session.get_outputs()]
        self._session: onnxruntime.InferenceSession | None = session

    def run(self, feed: Feed) -> Outputs:
        """Run the feed's arrays as they are; outputs are copies.

        ONNX Runtime's own arrays keep the memory of the whole session, weights and all.
        """
        if self._session is None:
            raise RuntimeError("the session is closed")
        given = dict(zip(self.inputs, order_inputs(feed, self.inputs), strict=True))
        try:
            values = self._session.run(self._outputs, given)
        except Exception as error:
            raise _session_error(error) from error
        return {name: _copy_value(value) for name, value in zip(self._outputs, values, strict=True)}

    def close(self) -> None:
        """Drop the session and its memory."""
        self._session = None


def _copy_value(value: Any) -> Any:
    """A copy where it is an array: a model may give sequences and maps, which are refused later."""
    import numpy as np

    return value.copy() if isinstance(value, np.ndarray) else value
