"""The workspace of a quantizer: a copy of the parent, samples, method, quiet calls."""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, MutableMapping
from contextlib import chdir
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from ...capture.framework_errors import call_framework
from ...core.contract import Advance, Array, CalibrationFeeds, QuantizeJob
from ...core.errors import (
    ConversionError,
    ErrorCode,
    Hint,
    ModelcError,
    Option,
    UsageError,
    unknown_name_error,
)
from ...core.kinds import Precision
from ...core.records import sha256_of
from ...core.signature import InputSpec, Signature
from ..onnx_compatibility import opset_of
from ..onnx_guard import copy_external_weights, list_model_files

if TYPE_CHECKING:
    import onnx

Made = TypeVar("Made")
_FOLDER = "work"
_NAME = "model.onnx"
_MOST_KEPT = 4  # values of a kind; each may be as large as the model
_GEMM_INPUTS = 3  # with a bias


@dataclass(frozen=True, kw_only=True)
class QuantizerWorkspace:
    """A copy of the model: its folder, its file, and whether its weights are external.

    `memory` is that of the job, `origin` what the model and the samples are made of: two workspaces
    with the same origin have the same model and the same samples.
    """

    folder: Path
    model: Path
    external: bool
    origin: tuple[Hashable, ...] = ()
    memory: MutableMapping[tuple[Hashable, ...], Any] = field(default_factory=dict)

    def load(self) -> onnx.ModelProto:
        """Load the copy with its weights in memory."""
        import onnx

        return onnx.load(str(self.model))

    def recall(self, what: tuple[Hashable, ...], make: Callable[[], Made]) -> Made:
        """Return what an earlier job of the run made of the same model and samples, or make it.

        Only the first few of a kind are kept: the search for an accuracy budget makes many.
        """
        key = (*self.origin, *what)
        if key in self.memory:
            found: Made = self.memory[key]
            return found
        made = make()
        kind = key[: len(self.origin) + 1]
        if sum(known[: len(kind)] == kind for known in self.memory) < _MOST_KEPT:
            self.memory[key] = made
        return made

    def clear(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder)


def create_workspace(job: QuantizeJob, *, opset: int, link: bool = False) -> QuantizerWorkspace:
    """Copy the parent into the job's folder with every node named, at `opset` or later.

    With `link`, for what only reads them, external weights are linked where the disk can.

    Raises:
        ConversionError: the parent cannot be read, or not converted to the opset.
    """
    import onnx

    folder = job.folder / _FOLDER
    folder.mkdir()
    model = call_framework("onnx", lambda: onnx.load(str(job.parent), load_external_data=False))
    external = copy_external_weights(model, job.parent, folder, link=link)
    path = folder / _NAME
    found = opset_of(model)
    if found < opset:
        model = _raise_opset(model, found, opset)
    changes = _name_nodes(model) + _lift_constants(model.graph) + _fold_beta(model.graph, folder)
    if changes or found < opset:
        onnx.save(model, str(path))
    else:
        shutil.copyfile(job.parent, path)
    files = tuple(sha256_of(file) for file in list_model_files(job.parent))
    return QuantizerWorkspace(
        folder=folder,
        model=path,
        external=bool(external),
        origin=(*files, opset, "" if job.calibration is None else job.calibration.record.digest),
        memory=job.memory,
    )


def _raise_opset(model: onnx.ModelProto, found: int, opset: int) -> onnx.ModelProto:
    """Convert the model to a later opset; its external weights stay in their files.

    The version converter works on one protobuf in memory: for it, external weights are inputs.
    """
    from onnx import version_converter

    weights = _set_aside_weights(model.graph)
    try:
        raised = version_converter.convert_version(model, opset)
    except Exception as error:
        raise ConversionError(
            f"the model has opset {found} and cannot be converted to {opset}",
            hint=Hint("export it with ", Option("opset", "21")),
            option="opset",
        ) from error
    names = {tensor.name for tensor in weights}
    inputs = [value for value in raised.graph.input if value.name not in names]
    del raised.graph.input[:]
    raised.graph.input.extend(inputs)
    raised.graph.initializer.extend(weights)
    return raised


def _set_aside_weights(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    """Replace the external weights of a graph by inputs, and return them."""
    from onnx import helper
    from onnx.external_data_helper import uses_external_data

    weights = [tensor for tensor in graph.initializer if uses_external_data(tensor)]
    others = [tensor for tensor in graph.initializer if not uses_external_data(tensor)]
    known = {value.name for value in graph.input}
    weights, others = deepcopy(weights), deepcopy(others)  # the graph is about to drop its own
    del graph.initializer[:]
    graph.initializer.extend(others)
    graph.input.extend(
        helper.make_tensor_value_info(one.name, one.data_type, one.dims)
        for one in weights
        if one.name not in known
    )
    return weights


def _lift_constants(graph: onnx.GraphProto) -> int:
    """Turn `Constant` nodes into initializers, where libraries look for weights."""
    lifted = [
        (node, attribute.t)
        for node in graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    ]
    for node, tensor in lifted:
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = node.output[0]
        graph.node.remove(node)
    return len(lifted)


def _fold_beta(graph: onnx.GraphProto, folder: Path) -> int:
    """Multiply Gemm biases by `beta`, which ONNX Runtime's quantizer drops; return the count."""
    import numpy as np
    from onnx import helper, numpy_helper

    constants = {tensor.name: tensor for tensor in graph.initializer}
    scaled = [
        (node, attribute)
        for node in graph.node
        if node.op_type == "Gemm" and len(node.input) == _GEMM_INPUTS and node.input[2]
        for attribute in node.attribute
        if attribute.name == "beta" and attribute.f != 1
    ]
    for node, attribute in scaled:
        bias, beta = node.input[2], np.float32(attribute.f)
        node.input[2] = f"{node.name}::bias"
        attribute.f = 1.0
        if bias in constants:
            array = numpy_helper.to_array(constants[bias], str(folder))
            product = np.asarray(array * beta).astype(array.dtype)
            graph.initializer.append(numpy_helper.from_array(product, node.input[2]))
            continue
        graph.initializer.append(numpy_helper.from_array(np.asarray(beta), f"{node.name}::beta"))
        inputs, place = [bias, f"{node.name}::beta"], list(graph.node).index(node)
        name = f"{node.name}::scaled"
        graph.node.insert(place, helper.make_node("Mul", inputs, [node.input[2]], name=name))
    return len(scaled)


def _name_nodes(model: onnx.ModelProto) -> int:
    """Name every node that has no name; return their number."""
    nameless = [node for node in model.graph.node if not node.name]
    used = {node.name for node in model.graph.node}
    for index, node in enumerate(nameless):
        name = f"{node.op_type}_{index}"
        node.name = name if name not in used else f"unnamed_{name}"
    return len(nameless) + make_names_unique(model.graph)


def make_names_unique(graph: onnx.GraphProto) -> int:
    """Number nodes of one name, except the first; return the count.

    ONNX Runtime rejects a model with two nodes of one name, and selection by name would mean both.
    """
    used = {node.name for node in graph.node}
    seen: set[str] = set()
    changed = 0
    for node in graph.node:
        if node.name and node.name in seen:
            node.name = next(name for n in count(2) if (name := f"{node.name}_{n}") not in used)
            used.add(node.name)
            changed += 1
        seen.add(node.name)
    return changed


class CalibrationSamples:
    """The calibration feeds reduced to the model's inputs; reading them reports progress.

    Every iteration reads them again; nothing is kept, so memory does not grow with the set.
    """

    def __init__(self, feeds: CalibrationFeeds, inputs: Collection[str], advance: Advance) -> None:
        self._feeds = feeds
        self._inputs = inputs
        self._advance = advance

    def __len__(self) -> int:
        return len(self._feeds)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        total = len(self._feeds)
        for done, feed in enumerate(self.without_progress(), start=1):
            self._advance(done, total)  # before the yield: a library that counts does not return
            yield feed

    def without_progress(self) -> Iterator[dict[str, Array]]:
        """Iterate without progress events, for a look at the first few."""
        for number, feed in enumerate(self._feeds, start=1):
            missing = [name for name in self._inputs if name not in feed]
            if missing:
                raise ConversionError(
                    f"calibration sample {number} has no {missing[0]!r}, which the model requires",
                    hint=f"name the arrays as the model does: {', '.join(self._inputs)}",
                    code=ErrorCode.SAMPLE_MISMATCH,
                )
            yield {name: feed[name] for name in self._inputs}


def _widen(array: Array, spec: InputSpec | None) -> Array:
    """Repeat the array along each dynamic dim of size 1."""
    for axis, dim in enumerate(spec.dims if spec is not None else ()):
        if array.shape[axis] == 1 < dim.high:
            array = array.repeat(2, axis=axis)
    return array


class CalibrationReader:
    """Samples as a data reader of ONNX Runtime and ModelOpt.

    Reads in the folder that was current when the reader was created: paths of samples may be
    relative to it, and a library may run elsewhere.
    """

    def __init__(self, samples: CalibrationSamples, signature: Signature) -> None:
        self._samples = samples
        self._specs = {spec.name: spec for spec in signature.inputs}
        self._next = iter(samples)
        self._home = Path.cwd()

    def get_next(self) -> dict[str, Array] | None:
        """Return the next sample; None after the last."""
        with chdir(self._home):
            return next(self._next, None)

    def get_first(self) -> dict[str, Array]:
        """Return the first sample without advancing; sizes of 1 that may be larger are 2.

        ModelOpt looks here for products of one row, which it does not quantize.
        """
        with chdir(self._home):
            first = next(iter(self._samples))
        return {name: _widen(array, self._specs.get(name)) for name, array in first.items()}

    def rewind(self) -> None:
        """Start from the first sample."""
        self._next = iter(self._samples)


def calibration_samples(job: QuantizeJob, inputs: Collection[str]) -> CalibrationSamples:
    """Return the job's samples for a model with these inputs.

    Raises:
        ConversionError: there is none.
    """
    if not job.calibration:
        raise ConversionError(
            "there are no calibration samples",
            hint=Hint("give ", Option("calib"), " a folder of samples"),
            option="calib",
            code=ErrorCode.NO_SAMPLES,
        )
    return CalibrationSamples(job.calibration, inputs, job.advance)


_LOG = logging.getLogger(__name__)  # its output goes to the step's log


def call_quietly(what: str, make: Callable[[], Made]) -> Made:
    """Run a call of the library `what`; modelc's own errors, such as of a sample, pass unchanged.

    Raises:
        ConversionError: the library raised.
    """
    try:
        with _capture_output():
            return call_framework(what, make)
    except ConversionError as error:
        if isinstance(error.__cause__, ModelcError):
            raise error.__cause__ from None
        raise


@contextlib.contextmanager
def _capture_output() -> Iterator[None]:
    """Redirect Python's stdout and stderr for the block to the log at debug level."""
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            yield
    finally:
        for line in filter(str.strip, text.getvalue().splitlines()):
            _LOG.debug("%s", line.rpartition("\r")[2])


def choose_method(
    job: QuantizeJob,
    methods: Mapping[tuple[str, Precision], tuple[str, ...]],
    with_samples: Mapping[tuple[str, Precision], tuple[str, ...]] = MappingProxyType({}),
) -> str:
    """Return the job's method, or the first for its consumer and precision.

    If the job has samples, the first `with_samples` precedes that.

    Raises:
        UsageError: the quantizer does not support these, or the method for them.
    """
    offered = methods.get((job.consumer, job.precision))
    if offered is None:
        raise UsageError(
            f"the quantizer does not support {job.consumer} in {job.precision}",
            hint=Hint("choose another, or ", Option("quantizer", "auto")),
            option="quantizer",
            code=ErrorCode.UNSUPPORTED,
        )
    if job.method is not None and job.method not in offered:
        raise unknown_name_error("calibration method", job.method, offered)
    usual = with_samples.get((job.consumer, job.precision), ()) if job.calibration else ()
    return job.method or (*usual, *offered)[0]
