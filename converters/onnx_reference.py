"""An ONNX file as the reference of other artifacts: ONNX Runtime without graph optimisations.

Its noise comes from the same file: other roundings of weights and inputs, sums in another order,
and float64 by `onnx_evaluator.py` where that computes the same graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..core.contract import Array, Feed, Outputs
from ..core.errors import RunnerError
from .installed_packages import package_versions
from .onnx_evaluator import GraphEvaluator
from .onnx_files import float_weights
from .onnx_guard import all_tensors, read_graph
from .onnx_half_emulation import half_ends
from .onnx_sessions import OnnxRunner, open_session, runnable_model, session_error
from .runner_base import RunnerBase

if TYPE_CHECKING:
    import onnx
    import onnxruntime

_FLOAT = 1  # onnx.TensorProto.FLOAT
_LEAST_WEIGHT = 16  # elements: smaller constants are axes, scales and bounds as often as weights
_ABSOLUTE = {"Resize", "Upsample", "QuantizeLinear", "DequantizeLinear", "Clip", "Range"}
_ROUNDING = {"Resize", "Upsample", "Floor", "Ceil", "Round"}
_INTEGERS = {2, 3, 4, 5, 6, 7, 12, 13}  # TensorProto.DataType
_NAN_TESTS = {"IsNaN", "IsInf"}
_MAX_PERTURBED = 1 << 30  # bytes of a graph in memory, below protobuf's limit


class OnnxReference(RunnerBase):
    """A file opened as a reference: its outputs, and how far roundoff moves them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        model = read_graph(path)
        runnable = runnable_model(path, model, "cpu", float_io=bool(half_ends(model)))
        self._model = model if isinstance(runnable, Path) else runnable
        self._runner = OnnxRunner(_open(runnable, path))
        self.inputs = self._runner.inputs
        self._perturbed: onnxruntime.InferenceSession | None = None
        self._weights: dict[str, Array] = {}
        self._evaluators: dict[bool, GraphEvaluator] = {}

    @property
    def runtime(self) -> str:
        """The runtime with its version, for people."""
        found = package_versions("onnxruntime-gpu", "onnxruntime")
        return f"ONNX Runtime {next(iter(found.values()), '')}".strip()

    @property
    def tests_nonfinite(self) -> bool:
        """Whether the graph tests for NaN or Inf."""
        return any(node.op_type in _NAN_TESTS for node in self._model.graph.node)

    @property
    def rounds_to_integers(self) -> bool:
        """Whether the graph may make integers of floats."""
        return any(
            node.op_type in _ROUNDING
            or (node.op_type == "Cast" and any(one.i in _INTEGERS for one in node.attribute))
            for node in self._model.graph.node
        )

    def run(self, feed: Feed) -> Outputs:
        """Run one feed as ONNX defines the graph: no operator is fused or replaced."""
        return self._runner.run(feed)

    def run_exact(self, feed: Feed) -> Outputs:
        """Run one feed in float64.

        Raises:
            RunnerError: the graph rounds on purpose, or has an operator without float64.
        """
        return self._evaluate(feed, double=True)

    def run_sequential_sums(self, feed: Feed) -> Outputs:
        """Run one feed by ONNX's own evaluator in float32, with sequential sums and means.

        Raises:
            RunnerError: as `run_exact`.
        """
        return self._evaluate(feed, double=False)

    def _evaluate(self, feed: Feed, *, double: bool) -> Outputs:
        if double not in self._evaluators:
            self._evaluators[double] = GraphEvaluator(self._path, double=double)
        return self._evaluators[double].run(feed)

    def run_perturbed(self, feed: Feed, share: float, seed: int) -> Outputs:
        """Run one feed with float weights multiplied by 1 + share * N(0, 1) per element.

        Raises:
            RunnerError: ONNX Runtime rejects the feed.
        """
        import numpy as np

        if self._perturbed is None:
            self._open_perturbed()
        generator = np.random.default_rng(seed)
        moved = {
            name: (array * (1 + share * generator.standard_normal(array.shape))).astype(array.dtype)
            for name, array in self._weights.items()
        }
        session = self._perturbed
        given = {name: feed[name] for name in self.inputs}
        names = [value.name for value in self._model.graph.output]
        try:
            values = session.run(names, {**given, **moved})  # type: ignore[union-attr]  # opened
        except Exception as error:
            raise session_error(error) from error
        return {name: np.array(value) for name, value in zip(names, values, strict=True)}

    def _open_perturbed(self) -> None:
        """Open a session whose weights may be given with a feed, as overridden defaults."""
        import onnx
        from onnx import helper

        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        self._weights = _load_weights(self._model, self._path)
        declared = {value.name for value in model.graph.input}
        for name, array in self._weights.items():
            if name not in declared:
                value = helper.make_tensor_value_info(name, _FLOAT, array.shape)
                model.graph.input.append(value)
        model.ir_version = max(model.ir_version, 4)  # before, an initializer was not a default
        self._perturbed = _open(model, self._path)

    def weights(self) -> dict[str, Array]:
        """Return the float32 constants that an artifact of the same model holds, by name."""
        named = [one for one in all_tensors(self._model) if one.data_type == _FLOAT]
        found: dict[str, Array] = {}
        for number, (tensor, array) in enumerate(
            zip(named, float_weights(self._path), strict=True)
        ):
            found[tensor.name or f"constant {number}"] = array
        return found

    def close(self) -> None:
        """Release the sessions."""
        self._runner.close()
        self._perturbed = None
        self._evaluators.clear()


def _open(model: Path | onnx.ModelProto, path: Path) -> onnxruntime.InferenceSession:
    try:
        return open_session(model, path.parent, optimize=False)
    except Exception as error:
        raise session_error(error) from error


def _load_weights(model: onnx.ModelProto, path: Path) -> dict[str, Array]:
    """Return the initializers to perturb: float32, and not a bound, a scale or a size."""
    import numpy as np
    from onnx import numpy_helper

    absolute = {
        name for node in model.graph.node if node.op_type in _ABSOLUTE for name in node.input[1:]
    }
    found: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        size = int(np.prod(tensor.dims))
        if tensor.data_type != _FLOAT or size < _LEAST_WEIGHT or tensor.name in absolute:
            continue
        folder = str(path.parent)
        found[tensor.name] = numpy_helper.to_array(tensor, base_dir=folder)
    if sum(array.nbytes for array in found.values()) > _MAX_PERTURBED:
        raise RunnerError("its weights are too large to perturb", hint="its inputs are perturbed")
    return found
