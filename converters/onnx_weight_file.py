"""Write a model whose external weights go to their file one at a time, as they are made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from .onnx_guard import all_tensors, external_place

if TYPE_CHECKING:
    import onnx

    from ..core.contract import Array

_PAGE = 4096  # bytes: a runtime can map a tensor that starts at a page


class OnnxWeightFile:
    """Receives the weights of a model; those of small models stay in the model itself."""

    def __init__(self, name: str, stream: BinaryIO | None) -> None:
        self._name = name
        self._stream = stream
        self._added: set[str] = set()

    def add(self, array: Array, name: str) -> onnx.TensorProto:
        """Store an array, and return its tensor."""
        import onnx
        from onnx import helper, numpy_helper

        if self._stream is None:
            return numpy_helper.from_array(array, name)
        code = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = onnx.TensorProto(name=name, dims=array.shape, data_type=code)
        self._store(tensor, array)
        self._added.add(name)
        return tensor

    def move_rest(self, model: onnx.ModelProto, parent: Path) -> None:
        """Store the external weights of the model that are still in a file beside its parent."""
        for tensor in all_tensors(model):
            if tensor.data_location == tensor.EXTERNAL and tensor.name not in self._added:
                self._store(tensor, _map_bytes(tensor, parent))

    def _store(self, tensor: onnx.TensorProto, array: Array) -> None:
        import numpy as np

        del tensor.external_data[:]
        if self._stream is None:
            tensor.data_location, tensor.raw_data = tensor.DEFAULT, array.tobytes()
            return
        self._stream.write(bytes(-self._stream.tell() % _PAGE))
        offset = self._stream.tell()
        self._stream.write(np.ascontiguousarray(array).data)
        tensor.data_location = tensor.EXTERNAL
        for key, value in (("location", self._name), ("offset", offset), ("length", array.nbytes)):
            tensor.external_data.add(key=key, value=str(value))


def _map_bytes(tensor: onnx.TensorProto, path: Path) -> Array:
    """Return the bytes of an external tensor of the model at `path`, mapped."""
    import numpy as np

    file, offset, length = external_place(tensor, path)
    return np.memmap(file, np.uint8, "r", offset, (length,)) if length else np.zeros(0, np.uint8)


@contextmanager
def write_weights(
    model: onnx.ModelProto, path: Path, parent: Path, *, external: bool
) -> Iterator[OnnxWeightFile]:
    """Yield the file of the model's weights; write the model at the end of the context.

    Args:
        model: read without its external weights from `parent`; it may change within the context.
        path: of the model.
        parent: what is left of its weights is moved from the file beside it.
        external: store weights in a file of their own.
    """
    import onnx

    name = f"{path.name}.data"
    if not external:
        weights = OnnxWeightFile(name, None)
        yield weights
        weights.move_rest(model, parent)
    else:
        with path.with_name(name).open("xb") as stream:
            weights = OnnxWeightFile(name, stream)
            yield weights
            weights.move_rest(model, parent)
    onnx.save(model, str(path))
