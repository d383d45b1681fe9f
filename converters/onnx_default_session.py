"""Run an ONNX file in a child process as users do: ONNX Runtime with its default options.

On the CPU, modelc judges a half-precision model by a float32 copy that rounds as the file says, so
nothing else opens the file itself. ONNX Runtime may crash on it, which only a child survives.
The child runs this file: `python onnx_default_session.py MODEL FOLDER THREADS`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnxruntime

    from ..core.contract import Array, Feed, Outputs
    from ..core.target_extensions import DefaultOutputs

_NAMES, _ERROR = "names.json", "error.json"  # in the child's folder, beside one .npz per feed
_UNSUPPORTED = "NotImplemented"  # ONNX Runtime's exception where a provider lacks a kernel
_WIDTHS: Mapping[str, str] = {"tensor(float16)": "float16", "tensor(float)": "float32"}


def run_by_default(path: Path, feeds: Sequence[Feed]) -> DefaultOutputs:
    """Return what a session without options gives for each feed, all in one child process.

    Half inputs are cast from float32, and half outputs to it.
    """
    from ..core.process import thread_limit
    from ..core.target_extensions import DefaultOutputs
    from .trt.supervised_process import ProcessTimeouts, run_supervised

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, feed in enumerate(feeds):
            _save_arrays(folder / f"feed{number}", feed)
        command = [sys.executable, "-P", "-W", "ignore", __file__, str(path), name]
        ended = run_supervised(
            [*command, str(thread_limit() or 0)], lambda _: None, ProcessTimeouts(stop=1.0)
        )
        outputs = tuple(
            _load_arrays(folder / f"outputs{number}")
            for number in range(len(feeds))
            if (folder / f"outputs{number}" / _NAMES).is_file()
        )
        if (folder / _ERROR).is_file():
            error = json.loads((folder / _ERROR).read_text("utf-8"))
            return DefaultOutputs(
                outputs=outputs,
                failure=error["message"],
                unsupported=error["kind"] == _UNSUPPORTED,
            )
    if ended.code:
        why = f"crashed with {ended.signal_name}" if ended.signal_name else "ended early"
        step = f"feed {len(outputs) + 1}" if outputs else "load"
        return DefaultOutputs(outputs=outputs, failure=f"ONNX Runtime {why} ({step})")
    return DefaultOutputs(outputs=outputs)


def _save_arrays(place: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays to a folder; the file with their names comes last, when all are complete."""
    import numpy as np

    place.mkdir()
    for number, array in enumerate(arrays.values()):
        np.save(place / f"{number}.npy", array, allow_pickle=False)
    (place / _NAMES).write_text(json.dumps([*arrays]), encoding="utf-8")


def _load_arrays(place: Path) -> dict[str, Array]:
    import numpy as np

    names = json.loads((place / _NAMES).read_text("utf-8"))
    return {name: np.load(place / f"{number}.npy") for number, name in enumerate(names)}


def main(model: Path, folder: Path, threads: int) -> int:
    """Run every feed of the folder and write its outputs beside it; 1 where that fails."""
    import onnxruntime

    try:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        for number in range(len([*folder.glob("feed*")])):
            outputs = _run_feed(session, _load_arrays(folder / f"feed{number}"))
            _save_arrays(folder / f"outputs{number}", outputs)
    except Exception as error:  # noqa: BLE001 - the runtime's edge
        found = {"kind": type(error).__name__, "message": " ".join(str(error).split())}
        (folder / _ERROR).write_text(json.dumps(found), encoding="utf-8")
        return 1
    return 0


def _run_feed(session: onnxruntime.InferenceSession, feed: Feed) -> Outputs:
    given = {}
    for value in session.get_inputs():
        width = _WIDTHS.get(value.type)
        array = feed[value.name]
        given[value.name] = array.astype(width) if width else array
    names = [value.name for value in session.get_outputs()]
    found = dict(zip(names, session.run(names, given), strict=True))
    return {
        name: array.astype("float32") if array.dtype == "float16" else array
        for name, array in found.items()
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
