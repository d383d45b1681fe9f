"""ONNX Runtime's own format: a flatbuffer of an optimised graph, which mobile builds open alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

from modelc.core.contract import (
    Converted,
    Feed,
    Inspection,
    Job,
    Outputs,
    Readiness,
    Runner,
    TensorInfo,
)
from modelc.core.errors import ConversionError, MissingError, RunnerError
from modelc.core.kinds import Capture, Precision
from modelc.core.records import Coverage
from modelc.core.signature import Signature

# Frameworks are imported inside functions: `modelc targets` loads this file, and no more.
NAME: str = "ort"
SUMMARY: str = "ONNX Runtime's own format, for its mobile builds"
SUFFIX: str = ".ort"
MADE_FROM: Mapping[Precision, str] = {Precision.FP32: "onnx"}
CAPTURES: tuple[Capture, ...] = ()  # the ONNX that it is made from was captured
DEVICES: tuple[str, ...] = ("cpu",)

_IDENTIFIER = slice(4, 8)  # of a flatbuffer's kind
_KIND = b"ORTM"
_PREFIX = "modelc."
_PACKAGES = ("onnxruntime-gpu", "onnxruntime")


def readiness() -> Readiness:
    """Whether an ONNX Runtime is installed, asked without importing it."""
    version = _version()
    if not version:
        return Readiness(
            ready=False, reason="onnxruntime is not installed", mend="pip install onnxruntime"
        )
    return Readiness(ready=True, version=f"onnxruntime {version}")


def claims(path: Path) -> bool:
    """An .ort file with the identifier of its flatbuffer."""
    if path.suffix != SUFFIX or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(_IDENTIFIER.stop)[_IDENTIFIER] == _KIND


def convert(job: Job) -> Converted:
    """Have ONNX Runtime optimise the ONNX for any CPU, and save what it would run."""
    import onnxruntime

    if job.parent is None:
        raise ConversionError(f"{NAME} is made from an ONNX", hint="modelc export --to ort")
    path = job.folder / f"{job.stem}{SUFFIX}"
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.save_model_format", "ORT")
    # Extended optimisations fit the machine that makes them; basic ones run anywhere.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    try:
        onnxruntime.InferenceSession(
            _marked(job.parent, job.metadata), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise ConversionError(
            f"ONNX Runtime: {_line(error)}", hint="the whole text is in the log"
        ) from error
    return Converted(
        files=((path.name, "model"),),
        versions={"onnxruntime": _version()},
        options={"optimization": "basic"},
    )


def open_runner(path: Path, device: str, signature: Signature) -> Runner:  # noqa: ARG001 - contract
    """A session on the CPU."""
    if device not in DEVICES:
        raise MissingError(f"{NAME} does not run on {device}", hint="use --device cpu")
    return OrtRunner(path)


def inspect(path: Path) -> Inspection:
    """What the flatbuffer holds, and what a session of it says of its inputs."""
    session = _session(path)
    graph = _model(path).Graph()
    weights: Counter[str] = Counter()
    for number in range(graph.InitializersLength()):
        tensor = graph.Initializers(number)
        weights[_dtype(tensor.DataType())] += _count(tensor)
    found = session.get_modelmeta()
    return Inspection(
        target=NAME,
        inputs=tuple(map(_info, session.get_inputs())),
        outputs=tuple(map(_info, session.get_outputs())),
        facts={"producer": found.producer_name},
        weights=weights,
        operators=Counter(_operators(graph)),
        metadata=found.custom_metadata_map,
    )


def coverage(path: Path, example: Feed, device: str) -> Coverage | None:  # noqa: ARG001 - contract
    """It has one precision: nothing is to be told."""
    return None


def read_metadata(path: Path) -> Mapping[str, str]:
    """What the file says of the job that made it."""
    found: Mapping[str, str] = _session(path).get_modelmeta().custom_metadata_map
    ours = ((key, text) for key, text in found.items() if key.startswith(_PREFIX))
    return {key.removeprefix(_PREFIX): text for key, text in ours}


class OrtRunner:
    """A session of ONNX Runtime."""

    def __init__(self, path: Path) -> None:
        self._session: Any = _session(path)
        self.inputs = tuple(one.name for one in self._session.get_inputs())
        self._outputs = [one.name for one in self._session.get_outputs()]

    def run(self, feed: Feed) -> Outputs:
        """Run one feed; outputs are copies, as the session's own arrays keep all its memory."""
        for name in self.inputs:
            if name not in feed:
                raise RunnerError(
                    f"the model takes {name!r}, which no input of the signature gives",
                    hint=f"name the inputs as the model does: {', '.join(self.inputs)}",
                )
        try:
            values = self._session.run(self._outputs, {name: feed[name] for name in self.inputs})
        except Exception as error:
            raise _refused(error) from error
        return {name: value.copy() for name, value in zip(self._outputs, values, strict=True)}

    def __enter__(self) -> OrtRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session = None


def _session(path: Path) -> Any:
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise _refused(error) from error


def _marked(parent: Path, told: Mapping[str, str]) -> bytes:
    """The ONNX with what this job has to say of itself in place of what its own job said."""
    import onnx

    model = onnx.load(parent)
    kept = {one.key: one.value for one in model.metadata_props if not one.key.startswith(_PREFIX)}
    onnx.helper.set_model_props(
        model, {**kept, **{f"{_PREFIX}{key}": text for key, text in told.items()}}
    )
    return bytes(model.SerializeToString())


def _model(path: Path) -> Any:
    """The flatbuffer's model; a session of it was opened, so it is sound."""
    from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs import InferenceSession

    return InferenceSession.InferenceSession.GetRootAs(path.read_bytes(), 0).Model()


def _operators(graph: Any) -> Iterator[str]:
    """Operators of a graph and of the graphs inside its nodes."""
    for number in range(graph.NodesLength()):
        node = graph.Nodes(number)
        yield node.OpType().decode()
        for place in range(node.AttributesLength()):
            inner = node.Attributes(place).G()
            if inner is not None:
                yield from _operators(inner)


def _count(tensor: Any) -> int:
    elements = 1
    for place in range(tensor.DimsLength()):
        elements *= tensor.Dims(place)
    return elements


def _dtype(code: int) -> str:
    import onnx

    return str(onnx.TensorProto.DataType.Name(code)).lower()


def _info(value: Any) -> TensorInfo:
    dims = tuple("?" if size is None else str(size) for size in value.shape)
    dtype = value.type.removeprefix("tensor(").removesuffix(")")
    return TensorInfo(name=value.name, dtype=dtype, dims=dims)


def _version() -> str:
    for package in _PACKAGES:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:240]


def _refused(error: Exception) -> RunnerError:
    return RunnerError(f"ONNX Runtime: {_line(error)}", hint="the whole text is in the log")
