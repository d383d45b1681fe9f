"""ONNX Runtime sessions, of files and of graphs that were changed in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.contract import Feed, Outputs
from ..core.threads import allowed
from .opened import order_inputs

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from .onnx_weights import WeightStore

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
    most = allowed()
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
