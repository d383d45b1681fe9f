"""Run compiled OpenVINO models, one request at a time or several."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..core.contract import Array, Feed, Outputs
from ..core.large_arrays import copy_array
from ..core.signature import Signature
from .openvino_precision import signature_name
from .openvino_reader import check_dtype, openvino_error
from .runner_base import RunnerBase, order_inputs

if TYPE_CHECKING:
    import openvino


class OpenVinoRunner(RunnerBase):
    """A compiled OpenVINO model; its tensors keep the names of the ONNX."""

    def __init__(self, compiled: openvino.CompiledModel, signature: Signature) -> None:
        names = tuple(spec.name for spec in signature.inputs)
        self.inputs = tuple(signature_name(port, names) for port in compiled.inputs)
        self._dtypes = [port_dtype(port) for port in compiled.inputs]
        self._outputs = [signature_name(port, signature.outputs) for port in compiled.outputs]
        kinds = [port.get_element_type().get_type_name() for port in compiled.outputs]
        self._half = [kind == "bf16" for kind in kinds]
        self._compiled: openvino.CompiledModel | None = compiled

    def run(self, feed: Feed) -> Outputs:
        """Run the feed; return copies, because OpenVINO reuses its memory."""
        if self._compiled is None:
            raise RuntimeError("the model is closed")
        given = order_inputs(feed, self.inputs)
        for name, dtype in zip(self.inputs, self._dtypes, strict=True):
            check_dtype(name, feed[name], dtype)
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


def port_dtype(port: Any) -> str:
    """Return numpy's name of the port's element type."""
    return str(port.get_element_type().to_dtype())
