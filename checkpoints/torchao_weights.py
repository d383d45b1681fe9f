"""Weights that torchao quantized: floats for eager and captures, integers kept for the converters.

Captures, float64 references and planted faults need plain tensors. Eager therefore computes with
the values that the integers stand for, and the integers wait beside them (`find_matrices`) until a
converter finds the same values among the constants of its file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..core.errors import CheckpointError, ErrorCode, first_line
from ..core.torch_file import TORCHAO, import_torchao
from ..core.weights import QuantizedMatrix
from .packed_weights import find_format

if TYPE_CHECKING:
    from pathlib import Path

    import torch

_ROUNDS = "rounds_activations"  # attribute of a module
_MATRICES = "_modelc_matrices"  # attribute of a module: its matrices by the names of parameters
_KINDS = ("Int8Tensor", "IntxUnpackedToInt8Tensor")  # those that torchao computes with on a CPU
_WIDTHS = (4, 8)  # bits in which the integers are stored
_MATRIX = 2  # number of dims
_ROWS = 4  # of the random input on which a layer is compared with torchao's
_ROUNDED = " with activations of 8 bits per token"
_SAME = {"float32": 1e-5, "float64": 1e-5}  # of the peak; half precision rounds more
_SAME_HALF = 3e-2
_REQUANTIZE = (
    "quantize it with Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig or "
    "IntxWeightOnlyConfig, which run on a CPU, or save its float weights"
)


def is_torchao(tensor: object) -> bool:
    """Return whether a tensor is of one of torchao's classes."""
    return type(tensor).__module__.partition(".")[0] == TORCHAO


def check_quantization(folder: Path, config: dict[str, object]) -> None:
    """Check that modelc keeps the integers of a quantized folder, and import what reads it.

    Raises:
        CheckpointError: it was quantized by a method that is not supported.
        MissingError: torchao is not installed.
    """
    settings = config.get("quantization_config")
    if not isinstance(settings, dict):
        return
    if settings.get("quant_method") == TORCHAO:
        import_torchao(str(folder))
    else:
        find_format(settings, str(folder))


def unflatten(
    path: Path, portion: dict[str, torch.Tensor], metadata: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    """Return a safetensors file's tensors with torchao's, which the file holds in parts, joined.

    Raises:
        CheckpointError: parts are missing, or torchao does not know their form.
    """
    import_torchao(str(path))
    from torchao.prototype.safetensors import (
        safetensors_support,
    )

    try:
        found, rest = safetensors_support.unflatten_tensor_state_dict(portion, dict(metadata))
    except Exception as error:  # torchao's reader raises anything at garbage
        raise CheckpointError(
            f"torchao cannot read {path}: {first_line(error)}",
            hint="install the version of torchao that wrote it, or save the file again",
            code=ErrorCode.CORRUPT_FILE,
        ) from error
    return {**rest, **found}


def is_flattened(metadata: Mapping[str, str] | None) -> bool:
    """Return whether the metadata of a safetensors file describe tensors of torchao."""
    if not metadata or "tensor_names" not in metadata:
        return False
    try:
        names = json.loads(metadata["tensor_names"])
        kinds = [json.loads(metadata[name])["_type"] for name in names]
    except (ValueError, KeyError, TypeError):
        return False
    return any(kind != "Tensor" for kind in kinds)


def unwrap_weights(module: torch.nn.Module) -> tuple[str, ...]:
    """Replace torchao's tensors in a module by floats, keep their integers; return notes.

    Each layer's result is compared with that of torchao's own on a random input.

    Raises:
        CheckpointError: torchao does not compute with such a tensor on a CPU, or the results
            differ.
    """
    counts: dict[str, int] = {}
    for name, part in list(module.named_modules()):
        for key, tensor in list(part._parameters.items()):
            if tensor is None or not is_torchao(tensor.data):
                continue
            label = f"{name}.{key}" if name else key
            kind = _unwrap_weight(module, name, key, label)
            counts[kind] = counts.get(kind, 0) + 1
    if not counts:
        return ()
    text = ", ".join(f"{count} of {kind}" for kind, count in counts.items())
    return (f"weights that torchao quantized: {text}; only onnx and openvino keep the integers",)


def keep_matrix(part: torch.nn.Module, key: str, matrix: QuantizedMatrix) -> None:
    """Keep the integers of a module's own parameter until a converter finds its values."""
    setattr(part, _MATRICES, {**getattr(part, _MATRICES, {}), key: matrix})


def find_matrices(module: torch.nn.Module) -> Iterator[tuple[str, QuantizedMatrix]]:
    """Yield the name and the integers of each weight that the checkpoint has as integers."""
    for name, part in module.named_modules():
        for key, matrix in getattr(part, _MATRICES, {}).items():
            yield f"{name}.{key}" if name else key, matrix


def rounds_activations(module: torch.nn.Module) -> bool:
    """Return whether a layer of the checkpoint rounds its activations to 8 bits at run time."""
    return any(getattr(part, _ROUNDS, False) for part in module.modules())


def _unwrap_weight(module: torch.nn.Module, name: str, key: str, label: str) -> str:
    """Replace one parameter, or the Linear that it belongs to; return what it was."""
    from torch import nn

    part = module.get_submodule(name)
    weight = part._parameters[key]
    matrix = _read_matrix(label, weight)
    values = matrix.dequantize()
    scheme = _activation_scheme(label, weight)
    floats = _as_parameter(values)
    if scheme:
        if type(part) is not nn.Linear or key != "weight" or not name:
            raise CheckpointError(
                f"{label} has 8-bit activations in a {type(part).__name__}, which modelc supports "
                "for torch.nn.Linear inside a model alone",
                hint="leave this layer out in quantize_ (filter_fn)",
                code=ErrorCode.UNSUPPORTED,
            )
        made: Any = _make_dynamic_linear(floats, part.bias, scheme)
        _check_same(label, weight, lambda x: made(x) - (0 if made.bias is None else made.bias))
        keep_matrix(made, "values", matrix)
        module.set_submodule(name, made)
        return f"int{matrix.bits}{_ROUNDED}"
    if isinstance(part, nn.Linear):
        _check_same(label, weight, lambda x: nn.functional.linear(x, floats))
    part._parameters[key] = floats
    keep_matrix(part, key, matrix)
    return f"int{matrix.bits}"


def _as_parameter(values: Any) -> torch.nn.Parameter:
    import torch

    return torch.nn.Parameter(torch.from_numpy(values), requires_grad=False)


def _read_matrix(label: str, weight: Any) -> QuantizedMatrix:
    """Return the integers of a weight with one scale and zero point for each block.

    Raises:
        CheckpointError: its class or its blocks are not supported.
    """
    import numpy as np

    kind = type(weight.data).__name__
    if kind not in _KINDS or weight.ndim != _MATRIX or weight.block_size[0] not in (
        1, weight.shape[0],
    ):  # fmt: skip
        raise CheckpointError(
            f"{label} is a {kind} of torchao with blocks of "
            f"{'x'.join(map(str, getattr(weight, 'block_size', ())))}, which cannot be converted",
            hint=_REQUANTIZE,
            code=ErrorCode.UNSUPPORTED,
        )
    rows, columns = weight.shape
    integers = weight.qdata.detach().numpy()
    blocks = columns // int(weight.block_size[1])
    shape = (rows, blocks)
    scales = np.broadcast_to(weight.scale.detach().float().reshape(-1, blocks).numpy(), shape)
    zeros = np.zeros(shape, np.int8)
    if weight.zero_point is not None and weight.zero_point.numel():
        zeros = np.broadcast_to(weight.zero_point.detach().reshape(-1, blocks).numpy(), shape)
    top = 8 if kind == _KINDS[0] else int(str(weight.target_dtype).removeprefix("torch.int"))
    bits = next(width for width in _WIDTHS if top <= width)
    return QuantizedMatrix(
        integers=integers, scales=np.ascontiguousarray(scales), zeros=zeros.astype(np.int8),
        bits=bits, source=TORCHAO,
    )  # fmt: skip


def _activation_scheme(label: str, weight: Any) -> str:
    """Return how a weight's product rounds activations: `symmetric`, `asymmetric` or not ("").

    Raises:
        CheckpointError: in a way that is not supported.
    """
    if getattr(weight, "activation_quantization", None) is not None:
        return "asymmetric"  # per token: torchao has no other
    scaled = [
        name
        for name in ("act_quant_scale", "act_quant_zero_point", "act_pre_scale")
        if getattr(weight, name, None) is not None
    ]
    asked = getattr(weight, "act_quant_kwargs", None)
    by_row = asked is None or type(asked.granularity).__name__ == "PerRow"
    if scaled or not by_row or getattr(asked, "reduce_range", False):
        what = ", ".join(scaled) or "activations that are not rounded per token to 8 bits"
        raise CheckpointError(
            f"{label} of torchao has {what}, which cannot be converted",
            hint=_REQUANTIZE,
            code=ErrorCode.UNSUPPORTED,
        )
    return "" if asked is None else str(asked.mapping_type.name).lower()


def _check_same(label: str, weight: Any, compute: Any) -> None:
    """Compare a layer without its bias with torchao's on a random input.

    Raises:
        CheckpointError: they differ.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    given = torch.randn((_ROWS, weight.shape[1]), generator=generator)
    with torch.no_grad():
        meant = torch.nn.functional.linear(given.to(weight.dtype), weight).float()
        found = compute(given)
    dtype = str(weight.dtype).removeprefix("torch.")
    most = _SAME.get(dtype, _SAME_HALF) * float(meant.abs().max())
    off = float((found - meant).abs().max())
    if not off <= most:
        raise CheckpointError(
            f"{label} of torchao computes something else than its integers and scales say: "
            f"{off:.2g} off, of {float(meant.abs().max()):.2g}",
            hint=_REQUANTIZE,
            code=ErrorCode.UNSUPPORTED,
        )


def _make_dynamic_linear(
    values: torch.nn.Parameter, bias: torch.nn.Parameter | None, scheme: str
) -> torch.nn.Module:
    """Return a Linear that rounds each token to 8 bits as torchao does.

    The weight has another name than in Linear: code that reads it past forward would skip the
    rounding, and fails instead.
    """
    import torch
    from torch import nn

    class RoundedLinear(nn.Module):
        """A product with a weight of integers, and with activations of 8 bits per token."""

        def __init__(self) -> None:
            super().__init__()
            setattr(self, _ROUNDS, True)
            self.symmetric = scheme == "symmetric"
            self.least = torch.finfo(torch.float32).eps
            self.values = values
            self.bias = bias
            self.in_features, self.out_features = values.shape[1], values.shape[0]

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            low = given.amin(-1, keepdim=True).clamp(max=0.0)
            high = given.amax(-1, keepdim=True).clamp(min=0.0)
            if self.symmetric:
                scale = (torch.maximum(-low, high) / 127.5).clamp(min=self.least)
                whole = (given * (1.0 / scale)).round().clamp(-128, 127)
                return nn.functional.linear(whole * scale, self.values, self.bias)
            scale = ((high - low) / 255.0).clamp(min=self.least)
            zero = (-128 - (low / scale).round()).clamp(-128, 127)
            whole = ((given * (1.0 / scale)).round() + zero).clamp(-128, 127)
            return nn.functional.linear((whole - zero) * scale, self.values, self.bias)

    return RoundedLinear().eval()
