"""Tensors of the V2 inference protocol: datatypes, bytes, JSON, and checks of what a server sent.

Open Inference Protocol, https://github.com/kserve/open-inference-protocol.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..core.contract import Array
from ..core.errors import RunnerError

MAX_RANK = 32
_BF16 = "BF16"
_DTYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16",
    "FP32": "float32", "FP64": "float64", _BF16: "float32",
}  # fmt: skip
DATATYPES: Mapping[str, str] = {dtype: name for name, dtype in _DTYPES.items() if name != _BF16}
"""The datatype of each dtype of numpy."""
_SERVER_HINT = "look at the server's log, and at the model's code on the server"


@dataclass(frozen=True, kw_only=True)
class SentTensor:
    """An input of a request."""

    name: str
    datatype: str
    array: Array


def dtype_of(datatype: str) -> str | None:
    """Return the dtype that arrays of a datatype have here; None for text and unknown ones.

    bfloat16 becomes float32, as in eager outputs.
    """
    return _DTYPES.get(datatype)


def pack_array(tensor: SentTensor) -> bytes:
    """Return an array as bytes in the form of its datatype."""
    import numpy as np

    array = tensor.array
    if tensor.datatype == _BF16:
        import ml_dtypes

        array = array.astype(ml_dtypes.bfloat16)
    return np.ascontiguousarray(array).tobytes()


def unpack_array(name: str, datatype: str, shape: Sequence[object], raw: bytes) -> Array:
    """Return the array of an output that was sent as bytes.

    Raises:
        RunnerError: datatype, shape and number of bytes contradict each other.
    """
    import numpy as np

    sizes = check_shape(name, shape)
    stored = np.dtype("uint16" if datatype == _BF16 else _require_dtype(name, datatype))
    wanted = math.prod(sizes) * stored.itemsize
    if wanted != len(raw):
        raise RunnerError(
            f"the server sent {len(raw)} bytes for output {name!r} of {datatype} {list(sizes)}, "
            f"which has {wanted}",
            hint=_SERVER_HINT,
        )
    flat = np.frombuffer(raw, stored)
    if datatype == _BF16:
        flat = (flat.astype("uint32") << 16).view("float32")
    elif datatype == "BOOL":
        flat = np.frombuffer(raw, "uint8") != 0
    return flat.reshape(sizes).copy()


def unpack_list(name: str, datatype: str, shape: Sequence[object], data: object) -> Array:
    """Return the array of an output that was sent as a list of values, flat or nested.

    Raises:
        RunnerError: the values do not fill the shape, or are not of the datatype.
    """
    sizes = check_shape(name, shape)
    dtype = _require_dtype(name, datatype)
    try:
        found = _array_of(data, dtype)
    except (ValueError, TypeError, OverflowError, RecursionError):
        found = None
    if found is None or len(found) != math.prod(sizes):
        raise RunnerError(
            f"the server sent values for output {name!r} that are not {datatype} {list(sizes)}",
            hint=_SERVER_HINT,
        )
    return found.reshape(sizes)


def _array_of(values: object, dtype: str) -> Array | None:
    """Return a list of numbers as a flat array; None if a value changes by that.

    JSON has no NaN: null stands for it among floats.
    """
    import numpy as np

    if not isinstance(values, list):
        return None
    flat = np.array(values, dtype=object).ravel()
    if np.issubdtype(dtype, np.floating):
        return np.array([math.nan if one is None else one for one in flat], dtype=dtype)
    found = flat.astype(dtype)
    same = dtype == "bool" or bool(np.all(found.astype(object) == flat))
    return found if same else None


def check_shape(name: str, shape: Sequence[object]) -> tuple[int, ...]:
    """Return the sizes of an output.

    Raises:
        RunnerError: a size is negative, or not a whole number; or there are too many.
    """
    sizes = [one for one in shape if isinstance(one, int) and not isinstance(one, bool)]
    if len(sizes) != len(shape) or len(sizes) > MAX_RANK or any(one < 0 for one in sizes):
        raise RunnerError(
            f"the server sent output {name!r} with an impossible shape", hint=_SERVER_HINT
        )
    return tuple(sizes)


def _require_dtype(name: str, datatype: str) -> str:
    dtype = _DTYPES.get(datatype)
    if dtype is None:
        raise RunnerError(
            f"the server sent output {name!r} as {datatype}, which is not a tensor of numbers",
            hint="serve the model without postprocessing, or name another output",
        )
    return dtype
