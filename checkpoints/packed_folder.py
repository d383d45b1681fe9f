"""Folders of transformers whose weights are packed integers: read as floats, integers kept beside.

The floats are files on a disk, mapped like those of `float32_copy.py`; the integers take one byte a
weight until the end of the export.
"""

from __future__ import annotations

import json
import math
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ..core.contract import Array
from ..core.errors import CheckpointError, ErrorCode, first_line
from ..core.large_arrays import find_room
from ..core.records import size_text
from ..core.torch_file import TORCHAO
from ..core.weights import QuantizedMatrix
from .packed_weights import MODELOPT, PackedFormat, PackedLayer, find_format
from .torchao_weights import keep_matrix

if TYPE_CHECKING:
    import torch

_SETTINGS = "quantization_config"
_MODELOPT_FILE = "hf_quant_config.json"
_MARKS = ("qweight", "weight_packed", "weight_scale")  # each packed layer has one of these
_SMOOTHING = "pre_quant_scale"  # factors of the layer's input
_FLOATS = ("F16", "BF16", "F32")
_OTHERS = ("F64", "I64", "I32", "I16", "I8", "U8", "BOOL")
_WEIGHTS = {"I32": 8, "U8": 2}  # that an element holds at most
_JSON_LIMIT = 1 << 24  # bytes


@dataclass(frozen=True, kw_only=True)
class UnpackedFolder:
    """A folder with float weights, and what its layers were packed from, by layer."""

    path: Path
    files: Sequence[Path]
    matrices: dict[str, QuantizedMatrix] = field(default_factory=dict)
    smoothing: dict[str, Array] = field(default_factory=dict)


def read_settings(folder: Path, config: Mapping[str, object]) -> dict[str, Any]:
    """Return how a folder is quantized; empty if it is not.

    Raises:
        CheckpointError: ModelOpt's file is no JSON.
    """
    found = config.get(_SETTINGS)
    if isinstance(found, dict):
        return found
    path = folder / _MODELOPT_FILE  # older versions write nothing into config.json
    if not path.is_file() or path.stat().st_size > _JSON_LIMIT:
        return {}
    try:
        return {**json.loads(path.read_text(encoding="utf-8"))["quantization"],
                "quant_method": MODELOPT}  # fmt: skip
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} does not say how the folder is quantized: {first_line(error)}",
            hint="export the folder again with modelopt.torch.export.export_hf_checkpoint",
            code=ErrorCode.CORRUPT_FILE,
        ) from error


@contextmanager
def unpack_folder(
    folder: Path, config: Mapping[str, object], files: Sequence[Path]
) -> Iterator[UnpackedFolder]:
    """Yield a copy of a folder with the floats that its integers stand for.

    The copy is deleted at the end of the context; what is mapped stays. Yields the folder itself
    if it is not quantized, or by torchao.

    Raises:
        CheckpointError: the integers cannot be kept, or no disk has room.
    """
    settings = read_settings(folder, config)
    if not settings or settings.get("quant_method") == TORCHAO:
        yield UnpackedFolder(path=folder, files=files)
        return
    packing = find_format(settings, str(folder))
    with ExitStack() as held:
        tensors = _TensorFiles(folder, files, held)
        layers = tensors.find_layers()
        bound = tensors.estimate_floats()
        place = find_room(bound)
        if place is None:
            raise CheckpointError(
                f"no disk has {size_text(bound)} free for the float weights of {folder}",
                hint="free room on the disk of TMPDIR, or set TMPDIR to another one",
                code=ErrorCode.UNSUPPORTED,
            )
        name = held.enter_context(tempfile.TemporaryDirectory(prefix="modelc-floats-", dir=place))
        yield _write_copy(Path(name), config, tensors, (packing, layers))


class _TensorFiles:
    """The tensors of a folder's safetensors, whichever file holds them."""

    def __init__(self, folder: Path, files: Sequence[Path], held: ExitStack) -> None:
        from safetensors import SafetensorError, safe_open

        self.folder, self.places = folder, {}
        self.weights = {file for file in files if file.suffix == ".safetensors"}
        if not self.weights:
            raise CheckpointError(
                f"{folder} is quantized, and its weights are not safetensors",
                hint="save it again with save_pretrained(..., safe_serialization=True)",
                code=ErrorCode.UNSUPPORTED,
            )
        for file in sorted(self.weights):
            try:
                opened = held.enter_context(safe_open(file, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise CheckpointError(
                    f"{file} cannot be read: {first_line(error)}",
                    hint="download the file again",
                    code=ErrorCode.CORRUPT_FILE,
                ) from error
            self.places.update(dict.fromkeys(opened.keys(), opened))

    def find_layers(self) -> dict[str, list[str]]:
        """Return the suffixes of the tensors of each packed layer."""
        marked = {name.rpartition(".")[0] for name in self.places if name.endswith(_MARKS)}
        layers: dict[str, list[str]] = {layer: [] for layer in marked}
        for name in self.places:
            layer, _, suffix = name.rpartition(".")
            if layer in layers:
                layers[layer].append(suffix)
        return layers

    def estimate_floats(self) -> int:
        """Return the most bytes that the tensors take as floats."""
        return sum(
            4 * math.prod(self.shape_of(name)) * _WEIGHTS.get(self.dtype_of(name), 1)
            for name in self.places
        )

    def shape_of(self, name: str) -> list[int]:
        """Return a tensor's shape by the file's header."""
        return [int(size) for size in self.places[name].get_slice(name).get_shape()]

    def dtype_of(self, name: str) -> str:
        """Return a tensor's dtype as safetensors names it."""
        return str(self.places[name].get_slice(name).get_dtype())

    def read(self, name: str) -> Array:
        """Return a tensor; half precision becomes float32.

        Raises:
            CheckpointError: its dtype is that of no float or integer of numpy's.
        """
        dtype = self.dtype_of(name)
        if dtype not in (*_FLOATS, *_OTHERS):
            raise CheckpointError(
                f"{self.folder}: the tensor {name} is {dtype}, which is not kept",
                hint="give the folder of its float weights with --int4 or --int8-weights",
                code=ErrorCode.UNSUPPORTED,
            )
        tensor = self.places[name].get_tensor(name)
        found: Array = (tensor.float() if dtype in _FLOATS else tensor).numpy()
        return found


def _write_copy(
    copy: Path,
    config: Mapping[str, object],
    tensors: _TensorFiles,
    packed: tuple[PackedFormat, Mapping[str, Sequence[str]]],
) -> UnpackedFolder:
    """Write the config without its quantization, links to other files, and the floats."""
    packing, layers = packed
    plain = {key: value for key, value in config.items() if key != _SETTINGS}
    for entry in tensors.folder.iterdir():
        if entry not in tensors.weights and not entry.name.endswith(".index.json"):
            (copy / entry.name).symlink_to(entry.resolve())
    (copy / "config.json").unlink(missing_ok=True)
    (copy / "config.json").write_text(json.dumps(plain), encoding="utf-8")
    (copy / _MODELOPT_FILE).unlink(missing_ok=True)
    unpacked = UnpackedFolder(path=copy, files=(copy / "model.safetensors",))
    for layer, suffixes in layers.items():
        known = [one for one in suffixes if one in packing.parts]
        extra = {*suffixes} - {*known, "bias"}
        found = PackedLayer(
            name=f"{tensors.folder}: {layer}", packing=packing,
            tensors={one: tensors.read(f"{layer}.{one}") for one in known},
        )  # fmt: skip
        if extra:
            raise found.error(f"it has {', '.join(sorted(extra))} too")
        unpacked.matrices[layer] = packing.unpack(found)
        if _SMOOTHING in found.tensors:
            unpacked.smoothing[layer] = found.read(_SMOOTHING, "f", 1)
    if not unpacked.matrices:
        raise CheckpointError(
            f"{tensors.folder} is quantized by {packing.method}, and has no packed weights",
            hint="delete quantization_config from config.json if its weights are floats",
            code=ErrorCode.MISFIT_WEIGHTS,
        )
    with unpacked.files[0].open("xb") as stream:
        _write_floats(stream, tensors, unpacked)
    return unpacked


def _write_floats(stream: BinaryIO, tensors: _TensorFiles, unpacked: UnpackedFolder) -> None:
    """Write a safetensors file, one tensor in memory at a time."""
    others = [name for name in tensors.places if not _is_part(name, unpacked)]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in (*others, *(f"{layer}.weight" for layer in unpacked.matrices)):
        matrix = unpacked.matrices.get(name.removesuffix(".weight"))
        shape = tensors.shape_of(name) if matrix is None else list(matrix.integers.shape)
        stored = "F32" if matrix is not None else tensors.dtype_of(name)
        dtype = "F32" if stored in _FLOATS else stored
        size = 4 * math.prod(shape) if dtype == "F32" else tensors.read(name).nbytes
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    stream.write(struct.pack("<Q", len(text)) + text)
    for name in others:
        stream.write(tensors.read(name).tobytes())
    for matrix in unpacked.matrices.values():
        stream.write(matrix.dequantize().tobytes())


def _is_part(name: str, unpacked: UnpackedFolder) -> bool:
    layer, _, suffix = name.rpartition(".")
    return layer in unpacked.matrices and suffix != "bias"


def attach_integers(module: torch.nn.Module, unpacked: UnpackedFolder) -> tuple[str, ...]:
    """Keep the integers beside the weights of a module that was loaded from the copy.

    Raises:
        CheckpointError: a layer is no Linear, or its weights are not those of the integers.
    """
    if not unpacked.matrices:
        return ()
    parts = dict(module.named_modules())
    kinds: dict[str, int] = {}
    absent = []
    for layer, matrix in unpacked.matrices.items():
        name = _find_part(layer, parts)
        if name is None:
            absent.append(layer)
            continue
        _check_weight(layer, parts[name], matrix)
        part = parts[name]
        if layer in unpacked.smoothing:
            part = _make_smoothed(part, unpacked.smoothing[layer])
            module.set_submodule(name, part)
        keep_matrix(part, "weight", matrix)
        kinds[f"int{matrix.bits}"] = kinds.get(f"int{matrix.bits}", 0) + 1
    method = next(iter(unpacked.matrices.values())).source
    text = ", ".join(f"{count} of {kind}" for kind, count in kinds.items()) or "none"
    notes = [f"weights that {method} quantized: {text}; only onnx and openvino keep the integers"]
    if absent:
        notes.append(
            f"the class has no layers for {len(absent)} packed weights: {', '.join(absent[:10])}"
        )
    return tuple(notes)


def _find_part(layer: str, parts: Mapping[str, Any]) -> str | None:
    """Return the module of a layer: by its name, or by the end of it in a class without a head."""
    if layer in parts:
        return layer
    return next((name for name in parts if name and layer.endswith(f".{name}")), None)


def _check_weight(layer: str, part: torch.nn.Module, matrix: QuantizedMatrix) -> None:
    import torch

    weight = getattr(part, "weight", None)
    linear = isinstance(part, torch.nn.Linear) and isinstance(weight, torch.Tensor)
    if linear and torch.equal(weight, torch.from_numpy(matrix.dequantize())):  # type: ignore[arg-type]  # as above
        return
    raise CheckpointError(
        f"{layer} of {matrix.source} is a {type(part).__name__} with other weights than its "
        "integers stand for",
        hint="give the folder of its float weights with --int4 or --int8-weights",
        code=ErrorCode.UNSUPPORTED,
    )


def _make_smoothed(part: Any, factors: Array) -> torch.nn.Module:
    """Return a Linear that multiplies its input by factors first, as AWQ of ModelOpt does.

    Raises:
        CheckpointError: it has another number of inputs.
    """
    import torch
    from torch import nn

    if factors.size != part.in_features:
        raise CheckpointError(
            f"{factors.size} factors of {_SMOOTHING} do not fit {part.in_features} inputs",
            hint="export the folder again",
            code=ErrorCode.MISFIT_WEIGHTS,
        )

    class SmoothedLinear(nn.Module):
        """A product whose inputs have factors."""

        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = part.weight, part.bias
            self.in_features, self.out_features = part.in_features, part.out_features
            self.register_buffer("factors", torch.from_numpy(factors.copy()))

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            factors: torch.Tensor = self.factors  # type: ignore[assignment]  # a buffer
            return nn.functional.linear(given * factors, self.weight, self.bias)

    return SmoothedLinear().eval()
