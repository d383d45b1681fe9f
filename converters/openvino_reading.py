"""Reads a model into OpenVINO; of its refusals, the operator that all the others follow from.

ONNX's STFT is read as OpenVINO's: its own reader takes signals of one size alone. ONNX's DFT is
read here too: OpenVINO's own reader takes axis 1 for the one that opset 20 gives as an input.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import LOGGED, Hint
from .capture.causes import RefusedError
from .guarded import call_framework
from .openvino_exact import keep_order_of_equals
from .openvino_transforms import fourier_transform

if TYPE_CHECKING:
    import openvino

_OPERATOR = re.compile(r"^-- (?P<name>\S+)-\d+ with a message:$", flags=re.MULTILINE)
_SUMMARY = "Summary:"
# What OpenVINO says of operators behind one that it did not take, whose output it knows nothing of
_FOLLOWS = ("Unsupported input type dynamic", "Element not supported", "rank has to be known")
_FIXED = "must be static"


def read_openvino(path: Path) -> openvino.Model:
    """The model of an ONNX or an IR, with the order that ONNX asks for among equals.

    Raises:
        RefusedError: OpenVINO cannot read it; the whole of what it says is in the log.
    """
    model = call_framework("OpenVINO", lambda: _read_file(path))
    keep_order_of_equals(model)
    return model


def _read_file(path: Path) -> openvino.Model:
    import openvino

    try:
        core = openvino.Core()
        core.add_extension([_stft_extension(), _dft_extension()])
        return core.read_model(str(path))
    except RuntimeError as error:
        reason = root_refusal(str(error))
        if not reason:
            raise
        fixed = Hint("if one size will do, --static DIM fixes it; ", LOGGED)
        raise RefusedError(
            f"OpenVINO refused the model: {reason}",
            hint=fixed if _FIXED in reason else LOGGED,
        ) from error


def _stft_extension() -> Any:
    """Reads STFT: real signals of [rows, samples, 1] of any size, spectra by frame."""
    from openvino.frontend.onnx import ConversionExtension

    def convert_stft(node: Any) -> list[Any]:
        import numpy as np
        from openvino import opset15

        def numbers(*values: int) -> Any:
            return opset15.constant(np.array(values, np.int64))

        signal, step, window, *rest = map(node.get_input, range(node.get_input_size()))
        if not _has_input(window):
            window = opset15.broadcast(np.float32(1), opset15.unsqueeze(rest[0], numbers(0)))
        length = opset15.squeeze(opset15.shape_of(window), numbers(0))
        samples = opset15.squeeze(signal, numbers(2))
        found = opset15.stft(samples, window, length, step, transpose_frames=False)
        if not node.get_attribute("onesided", 1):  # the other half is the conjugate, in reverse
            half = opset15.gather(opset15.shape_of(found), numbers(2), numbers(0))
            first = opset15.subtract(opset15.unsqueeze(length, numbers(0)), half)
            other = opset15.slice(found, first, numbers(0), numbers(-1), numbers(2))
            conjugate = opset15.multiply(other, np.array([1, -1], np.float32))
            found = opset15.concat([found, conjugate], 2)
        return [found.output(0)]

    return ConversionExtension("STFT", convert_stft)


def _dft_extension() -> Any:
    """Reads DFT, but for that of half a spectrum back to a signal, which ONNX has from 27 on."""
    from openvino.frontend.onnx import ConversionExtension

    return ConversionExtension("DFT", _convert_dft)


def _convert_dft(node: Any) -> list[Any]:
    import numpy as np
    from openvino import opset15

    values, *rest = map(node.get_input, range(node.get_input_size()))
    length, axis = [*rest, None, None][:2]
    shape = values.get_partial_shape()
    if axis is None:
        place = node.get_attribute("axis", 1)  # before opset 20
    else:
        place = int(axis.get_node().get_data().reshape(-1)[0])
    axes = opset15.constant(np.array([place % len(shape)], np.int64))
    given = length is not None and _has_input(length)
    sizes = [opset15.reshape(length, np.array([1], np.int64), False)] if given else []
    last = np.array([len(shape) - 1], np.int64)
    if shape[len(shape) - 1] == 1 and node.get_attribute("onesided", 0):
        return [opset15.rdft(opset15.squeeze(values, last), axes, *sizes).output(0)]
    if shape[len(shape) - 1] == 1:
        none = opset15.broadcast(np.float32(0), opset15.shape_of(values))
        values = opset15.concat([values, none], len(shape) - 1).output(0)
    inverse = bool(node.get_attribute("inverse", 0))
    if not sizes:
        return [fourier_transform(values, place % len(shape), inverse=inverse)]
    return [(opset15.idft if inverse else opset15.dft)(values, axes, *sizes).output(0)]


def _has_input(value: Any) -> bool:
    """Whether an optional input is there: what stands for one that is not is a node of its own."""
    return str(value.get_node().get_type_name()) != "NullNode"


def root_refusal(text: str) -> str:
    """The operator that OpenVINO did not take, and why; empty where it names none.

    It lists what failed in any order, with all that lies behind it.
    """
    _, *parts = _OPERATOR.split(text.partition(_SUMMARY)[0])
    told = [
        (name, [line.strip() for line in body.splitlines() if line.strip()])
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    ]
    roots = [
        f"{name}: {lines[-1]}"
        for name, lines in told
        if lines and not any(sign in lines[-1] for sign in _FOLLOWS)
    ]
    return roots[0] if roots else ""
