"""Read a model into OpenVINO: its errors, Fourier transforms, dims and metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.parsers import expat

from ..capture.framework_errors import call_framework
from ..capture.refusals import RefusedError
from ..core.errors import LOGGED, ConversionError, ErrorCode, Hint, Option, RunnerError
from .onnx_domain_guard import GUARD_PREFIX
from .openvino_rewrites import floor_remainder, int64_constant, keep_order_of_equals
from .runner_base import runner_error, text_lines

if TYPE_CHECKING:
    import openvino

    from ..core.contract import Array
    from ..core.signature import InputSpec, Signature

_OPERATOR = re.compile(r"^-- (?P<name>\S+)-\d+ with a message:$", flags=re.MULTILINE)
_SUMMARY = "Summary:"
# messages about operators behind an unsupported one, whose output is unknown
_FOLLOWS = ("Unsupported input type dynamic", "Element not supported", "rank has to be known")
_FIXED = "must be static"


def read_openvino(path: Path) -> openvino.Model:
    """Read an ONNX or an IR with ONNX's order of equal elements.

    Raises:
        RefusedError: OpenVINO cannot read it; its whole message is in the log.
    """
    model = call_framework("OpenVINO", lambda: _read_file(path))
    keep_order_of_equals(model)
    return model


def _read_file(path: Path) -> openvino.Model:
    import openvino
    from openvino.frontend.onnx import ConversionExtension

    try:
        core = openvino.Core()
        core.add_extension(
            [ConversionExtension("STFT", _convert_stft), ConversionExtension("DFT", _convert_dft)]
        )
        return core.read_model(str(path))
    except RuntimeError as error:
        reason = root_refusal(str(error))
        if not reason:
            raise
        fixed = Hint("if one size will do, --static DIM fixes it; ", LOGGED)
        raise RefusedError(
            f"OpenVINO rejected the model: {reason}",
            hint=fixed if _FIXED in reason else LOGGED,
        ) from error


def read_ir(path: Path) -> openvino.Model:
    """Read an IR as it is.

    Raises:
        RunnerError: OpenVINO cannot read it.
    """
    import openvino

    try:
        return openvino.Core().read_model(str(path))
    except RuntimeError as error:
        raise openvino_error(error) from error


def check_dtype(name: str, array: Array, dtype: str) -> None:
    """Check the dtype of an input, which OpenVINO would cast silently.

    Raises:
        RunnerError: it is another one.
    """
    if str(array.dtype) != dtype:
        raise RunnerError(
            f"OpenVINO: input {name!r} is {array.dtype}, the model takes {dtype}",
            hint=f"feed it as {dtype}",
        )


def openvino_error(error: RuntimeError) -> RunnerError:
    """Drop the source locations that precede OpenVINO's message."""
    lines = [one for one in text_lines(error) if not one.startswith(("Exception from ", "Check '"))]
    return runner_error("OpenVINO", error, "\n".join(lines))


def _convert_stft(node: Any) -> list[Any]:
    """Translate STFT: real signals of [rows, samples, 1] of any size, spectra by frame."""
    import numpy as np
    from openvino import opset15 as op

    signal, step, window, *rest = map(node.get_input, range(node.get_input_size()))
    if not _has_input(window):
        window = op.broadcast(np.float32(1), op.unsqueeze(rest[0], int64_constant(0)))
    length = op.squeeze(op.shape_of(window), int64_constant(0))
    samples = op.squeeze(signal, int64_constant(2))
    found = op.stft(samples, window, length, step, transpose_frames=False)
    if not node.get_attribute("onesided", 1):  # the other half is the conjugate in reverse
        half = op.gather(op.shape_of(found), int64_constant(2), int64_constant(0))
        first = op.subtract(op.unsqueeze(length, int64_constant(0)), half)
        other = op.slice(found, first, int64_constant(0), int64_constant(-1), int64_constant(2))
        conjugate = op.multiply(other, np.array([1, -1], np.float32))
        found = op.concat([found, conjugate], 2)
    return [found.output(0)]


def _convert_dft(node: Any) -> list[Any]:
    """Translate DFT, except from half a spectrum to a signal, which ONNX has since opset 27."""
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
    """Return whether an optional input is present; a node of its own stands for an absent one."""
    return str(value.get_node().get_type_name()) != "NullNode"


def root_refusal(text: str) -> str:
    """Return the operator that OpenVINO does not support, and why; empty if it names none.

    OpenVINO lists failed operators in any order, with all that depend on them.
    """
    _, *parts = _OPERATOR.split(text.partition(_SUMMARY)[0])
    reasons = [
        (name, [line.strip() for line in body.splitlines() if line.strip()])
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    ]
    roots = [
        f"{name}: {lines[-1]}"
        for name, lines in reasons
        if lines and not any(sign in lines[-1] for sign in _FOLLOWS)
    ]
    return roots[0] if roots else ""


def fourier_transform(values: openvino.Output, axis: int, *, inverse: bool) -> openvino.Output:
    """Return the discrete Fourier transform along an axis of n elements.

    If n is not a power of two, X[k] = w[k] sum_j (x[j] w[j]) conj(w[k - j]) with w[k] = exp(-i pi
    k^2 / n) (Bluestein): a convolution, made of transforms of a power of two.

    Args:
        values: [..., n, ..., 2], real and imaginary parts in the last axis.
        axis: the axis of n, counted from the front.
        inverse: from the spectrum back, divided by n.
    """
    import numpy as np
    from openvino import opset15 as op

    axes, rank = int64_constant(axis), len(values.get_partial_shape())
    size, kind = values.get_partial_shape()[axis], values.get_element_type()
    if size.is_static and size.get_length().bit_count() == 1:
        return (op.idft if inverse else op.dft)(values, axes).output(0)
    beside = np.array([-1, *[1] * (rank - 2 - axis), 2])
    n = op.gather(op.shape_of(values), axes, int64_constant(0))
    chirp = _chirp(size, n, kind, inverse=inverse)
    w = op.reshape(chirp, beside, False)
    m = _convolution_length(n)
    spectrum = op.dft(_complex_product(values, w), axes, m)
    response = op.reshape(op.dft(_filter(chirp, n, m, kind), int64_constant(0)), beside, False)
    found = op.idft(_complex_product(spectrum, response), axes)
    found = _complex_product(op.slice(found, int64_constant(0), n, int64_constant(1), axes), w)
    return (op.divide(found, op.convert(n, kind)) if inverse else found).output(0)


def _convolution_length(n: Any) -> Any:
    """Return the convolution's power of two: above 2 n, however the logarithm is rounded."""
    import numpy as np
    from openvino import opset15 as op

    power = op.floor(op.divide(op.log(op.convert(op.add(n, n), "f32")), np.float32(np.log(2))))
    length = op.power(np.float32(2), op.add(power, np.float32(1)))
    return op.convert(op.add(length, np.float32(0.5)), "i64")


def _chirp(size: openvino.Dimension, n: Any, kind: openvino.Type, *, inverse: bool) -> Any:
    """Return w as [n, 2], conjugate for the inverse; k^2 is reduced modulo 2 n in integers.

    Splits k into a high and a low word: k^2 exceeds the 32 bits in which OpenVINO's CPU computes
    from 46341 on, and its FloorMod goes through float32, which is inexact from some 4100 on.
    """
    import numpy as np
    from openvino import opset15 as op

    sign = 1 if inverse else -1
    if size.is_static:
        count = size.get_length()
        angles = np.pi * (np.arange(count) ** 2 % (2 * count)) / count
        return op.constant(np.stack([np.cos(angles), sign * np.sin(angles)], -1), dtype=kind)
    k = op.range(np.int64(0), op.squeeze(n, int64_constant(0)), np.int64(1), "i64")
    square = _squares(k, op.add(n, n))
    turns = op.select(op.greater(square, n), op.add(n, n), int64_constant(0))
    step = op.divide(np.array(sign * np.pi, kind.to_dtype()), op.convert(n, kind))
    angle = op.multiply(op.convert(op.subtract(square, turns), kind), step)
    return op.concat(
        [op.unsqueeze(part, int64_constant(1)) for part in (op.cos(angle), op.sin(angle))], 1
    )


def _squares(k: Any, step: Any) -> Any:
    """Return k^2 modulo a step below 2^23, where (256 h + l)^2 = 2^16 h^2 + 2^9 h l + l^2."""
    import numpy as np
    from openvino import opset15 as op

    def times(x: Any, factor: Any) -> Any:
        return floor_remainder(op.multiply(x, factor), step)

    word = np.int64(256)
    high = op.divide(k, word)
    low = op.subtract(k, op.multiply(high, word))
    most = times(times(times(high, high), word), word)
    mixed = times(times(times(high, low), word), np.int64(2))
    return floor_remainder(op.add(op.add(most, mixed), times(low, low)), step)


def _filter(chirp: Any, n: Any, m: Any, kind: openvino.Type) -> Any:
    """Return conj(w[k]) for k from 0 to n - 1, zeros, and for k from 1 - n to -1, as [m, 2]."""
    import numpy as np
    from openvino import opset15 as op

    conjugate = op.multiply(chirp, np.array([1, -1], kind.to_dtype()))
    gap = op.subtract(op.add(m, int64_constant(1)), op.add(n, n))
    zeros = op.broadcast(np.array(0, kind.to_dtype()), op.concat([gap, int64_constant(2)], 0))
    back = op.slice(
        conjugate, int64_constant(-1), int64_constant(0), int64_constant(-1), int64_constant(0)
    )
    return op.concat([conjugate, zeros, back], 0)


def _complex_product(x: Any, y: Any) -> Any:
    """Multiply complex numbers with real and imaginary parts in the last axis."""
    from openvino import opset15 as op

    last = int64_constant(-1)
    a, b = (op.gather(x, int64_constant(part), last) for part in (0, 1))
    c, d = (op.gather(y, int64_constant(part), last) for part in (0, 1))
    real = op.subtract(op.multiply(a, c), op.multiply(b, d))
    return op.concat([real, op.add(op.multiply(a, d), op.multiply(b, c))], -1)


def partial_shape(spec: InputSpec) -> openvino.PartialShape:
    """Return the shape of an input: sizes, ranges, and `?` for a dim without bounds."""
    import openvino

    return openvino.PartialShape(
        [
            openvino.Dimension(dim.low, dim.high) if dim.bounded else openvino.Dimension()
            for dim in spec.dims
        ]
    )


def drop_domain_guard(model: openvino.Model) -> None:
    """Remove the check of `--guard` from a model that was read from a guarded ONNX.

    The check relies on ONNX Runtime rejecting an index beyond a table. OpenVINO 2026.4 reads past
    the table instead, and rejects sizes outside a range by itself.
    """
    for node in model.get_ordered_ops():
        named = node.get_friendly_name().startswith(GUARD_PREFIX)
        if named and node.get_type_name() == "Reshape":
            node.output(0).replace(node.input_value(0))


def check_bounds(model: openvino.Model, signature: Signature) -> None:
    """Check that every dynamic dim is still dynamic.

    Raises:
        ConversionError: OpenVINO made a dim a constant.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    for port in model.inputs:
        name = next((name for name in port.get_names() if name in specs), "")
        for dim, made in zip(
            specs[name].dims if name else (), port.get_partial_shape(), strict=False
        ):
            if dim.dynamic and made.is_static:
                raise ConversionError(
                    f"OpenVINO fixed dim {dim.name!r} of {name} at {made.get_length()}",
                    hint=Hint(
                        "if one size will do, ", Option("static", f"{dim.name}"), " fixes it"
                    ),
                    option="static",
                    code=ErrorCode.UNSUPPORTED,
                )


_METADATA_PATH = ["net", "rt_info", "modelc"]


def read_ir_metadata(path: Path) -> dict[str, str]:
    """Read the entries of `net/rt_info/modelc`.

    Rejects a document type: its entities may expand without limit or name other files.

    Raises:
        RunnerError: it is not XML, or OpenVINO did not write it.
    """
    found: dict[str, str] = {}
    at: list[str] = []

    def begin(name: str, attributes: Mapping[str, str]) -> None:
        if at == _METADATA_PATH:
            if name in found:
                raise _corrupt_error(path, f"it contains {name} twice")
            found[name] = attributes.get("value", "")
        at.append(name)

    def end(name: str) -> None:  # noqa: ARG001 - expat's own order of calls
        at.pop()

    def doctype(*_: object) -> None:
        raise _corrupt_error(path, "it has a document type")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.StartDoctypeDeclHandler = doctype
    try:
        with path.open("rb") as stream:
            parser.ParseFile(stream)
    except (OSError, expat.ExpatError, ValueError) as error:
        raise _corrupt_error(path, str(error)) from error
    return found


def _corrupt_error(path: Path, why: str) -> RunnerError:
    return RunnerError(f"{path.name} is not an OpenVINO IR: {why}", hint="export it again")
