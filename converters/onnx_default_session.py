"""Run an ONNX file in a child process as users do: ONNX Runtime with its default options.

On the CPU, modelc judges a half-precision model by a float32 copy that rounds as the file says, so
nothing else opens the file itself. ONNX Runtime may crash on it, which only a child survives.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from ctypes import string_at
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import is_zipfile

from ..core.children.child_call import CallEnd, ChildCall, ParentConnection, run_in_child
from ..core.children.messages import Returned, StoppedByError
from ..core.children.processes import OutputLog, ProcessEnd
from ..core.process import thread_limit
from ..core.target_extensions import DefaultOutputs

if TYPE_CHECKING:
    import onnxruntime

    from ..core.contract import Array, Feed, Outputs

_UNSUPPORTED = "NotImplemented"  # ONNX Runtime's exception where a provider lacks a kernel
_WIDTHS: Mapping[str, str] = {"tensor(float16)": "float16", "tensor(float)": "float32"}
_BFLOAT16 = "tensor(bfloat16)"
_GRACE = 1.0  # seconds


@dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """The model, and the folder with the feeds and for the outputs."""

    model: Path
    folder: Path


@dataclass(frozen=True, kw_only=True)
class SessionFailure:
    """The error of ONNX Runtime: the name of its class, and its message in one line."""

    kind: str
    message: str


def run_by_default(path: Path, feeds: Sequence[Feed]) -> DefaultOutputs:
    """Return what a session without options gives for each feed, all in one child process.

    Half inputs are cast from float32, and half outputs to it.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, feed in enumerate(feeds):
            _save_arrays(folder / f"feed{number}.npz", feed)
        call = ChildCall(
            function=run_session,
            argument=SessionRequest(model=path, folder=folder),
            messages=(SessionFailure, type(None)),
            threads=thread_limit(),
            grace=_GRACE,
            quiet=True,
        )
        end = run_in_child(call, lambda _: None, log=OutputLog(echo=True))
        outputs = tuple(
            _load_arrays(folder / f"outputs{number}.npz")
            for number in range(len(feeds))
            if is_zipfile(folder / f"outputs{number}.npz")
        )
    if isinstance(end, Returned) and isinstance(end.value, SessionFailure):
        return DefaultOutputs(
            outputs=outputs,
            failure=end.value.message,
            unsupported=end.value.kind == _UNSUPPORTED,
        )
    step = f"feed {len(outputs) + 1}" if outputs else "load"
    return DefaultOutputs(outputs=outputs, failure=_failure_of(end, step))


def _failure_of(end: CallEnd, step: str) -> str:
    match end:
        case Returned():
            return ""
        case ProcessEnd() if end.signal_name:
            return f"ONNX Runtime crashed with {end.signal_name} ({step})"
        case StoppedByError():
            return f"ONNX Runtime ended early ({step}): {end.message}"
    return f"ONNX Runtime ended early ({step})"


def _save_arrays(file: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays and their names, by position: a name may be any text."""
    import numpy as np

    np.savez(file, np.array([*arrays]), *arrays.values(), allow_pickle=False)


def _load_arrays(file: Path) -> dict[str, Array]:
    import numpy as np

    with np.load(file) as content:
        names, *arrays = (content[key] for key in content.files)
    return dict(zip(names.tolist(), arrays, strict=True))


def run_session(request: SessionRequest, parent: ParentConnection) -> SessionFailure | None:
    """Run every feed of the folder and write its outputs beside it; called in the child."""
    del parent
    import onnxruntime

    folder = request.folder
    try:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = thread_limit() or 0
        session = onnxruntime.InferenceSession(
            str(request.model), options, providers=["CPUExecutionProvider"]
        )
        for number in range(len([*folder.glob("feed*")])):
            outputs = _run_feed(session, _load_arrays(folder / f"feed{number}.npz"))
            _save_arrays(folder / f"outputs{number}.npz", outputs)
    except Exception as error:  # noqa: BLE001 - the runtime's edge
        return SessionFailure(kind=type(error).__name__, message=" ".join(str(error).split()))
    return None


def _run_feed(session: onnxruntime.InferenceSession, feed: Feed) -> Outputs:
    given = {one.name: _to_ort(feed[one.name], one.type) for one in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    found = session.run_with_ort_values(names, given)
    return {name: _from_ort(value) for name, value in zip(names, found, strict=True)}


def _to_ort(array: Array, kind: str) -> onnxruntime.OrtValue:
    import ml_dtypes
    import numpy as np
    import onnxruntime
    from onnx import TensorProto

    if kind == _BFLOAT16:
        bits = array.astype(ml_dtypes.bfloat16).view(np.uint16)
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array.astype(_WIDTHS.get(kind, array.dtype)))


def _from_ort(value: onnxruntime.OrtValue) -> Array:
    """Return an output, with half types as float32; NumPy has no bfloat16: its bytes are read."""
    import ml_dtypes
    import numpy as np

    if value.data_type() == _BFLOAT16:
        stored = string_at(value.data_ptr(), value.tensor_size_in_bytes())
        found: Array = np.frombuffer(stored, ml_dtypes.bfloat16).reshape(value.shape())
    else:
        found = value.numpy()
    return found.astype("float32") if found.dtype in ("float16", ml_dtypes.bfloat16) else found
