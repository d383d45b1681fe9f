"""ONNX to TensorRT network, strongly typed; whatever the parser refuses is told by module."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ...core.contract import TensorInfo
from ...core.errors import ConversionError, Hint, Option
from ..onnx_origins import UNKNOWN_ORIGIN, read_origins
from .messages import ErrorLog

if TYPE_CHECKING:
    import tensorrt

_MAX_ERRORS = 5  # errors in a message; all are in the log
TRT_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
    "BOOL": "bool",
}  # trt.DataType -> the name that torch and numpy have for it


def parse_network(
    trt: ModuleType, builder: tensorrt.Builder, path: Path, log: ErrorLog
) -> tuple[tensorrt.INetworkDefinition, tensorrt.OnnxParser]:
    """Parse an ONNX file; its types are the precision of the engine, on TensorRT 10 and 11.

    Returns:
        the network, and the parser that owns the memory of its weights: keep both.

    Raises:
        ConversionError: the parser refused it; the message names node, operator and module.
    """
    # On 10 this is asked for; on 11 it is always so and the flag is ignored.
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(flags)
    parser: tensorrt.OnnxParser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(path)):
        raise _parser_error(parser, path, log)
    return network, parser


def _parser_error(parser: tensorrt.OnnxParser, path: Path, log: ErrorLog) -> ConversionError:
    origins = read_origins(path)
    told: list[str] = []
    for index in range(parser.num_errors):
        error: tensorrt.ParserError = parser.get_error(index)
        name, operator = error.node_name(), error.node_operator()
        origin = origins.get(name, UNKNOWN_ORIGIN)
        node = " ".join(part for part in (operator, name) if part) or "the model"
        where = f"{origin.module} ({node})" if origin.module else node
        source = f" at {origin.source}" if origin.source else ""
        told.append(f"{where}{source}: {error.desc()} [{error.code().name}]")
    for line in told:
        log.errors.append(line)
    shown = "; ".join(told[:_MAX_ERRORS]) or log.reason
    more = f" (and {len(told) - _MAX_ERRORS} more)" if len(told) > _MAX_ERRORS else ""
    return ConversionError(
        f"TensorRT's ONNX parser refused {path.name}: {shown}{more}",
        hint=Hint(
            "change the module that is named, or name a library with the operator by ",
            Option("plugins"),
        ),
        option="plugins",
    )


def network_tensors(
    network: tensorrt.INetworkDefinition,
) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """Inputs and outputs as the network declares them; a dim that varies is `?`."""
    inputs = tuple(_tensor_info(network.get_input(i)) for i in range(network.num_inputs))
    outputs = tuple(_tensor_info(network.get_output(i)) for i in range(network.num_outputs))
    return inputs, outputs


def _tensor_info(tensor: tensorrt.ITensor) -> TensorInfo:
    code = tensor.dtype.name
    dims = tuple("?" if size < 0 else str(size) for size in tensor.shape)
    return TensorInfo(name=tensor.name, dtype=TRT_DTYPES.get(code, code.lower()), dims=dims)
