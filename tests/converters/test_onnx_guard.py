"""Tensors of an ONNX have their bytes, and lie beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from modelc.converters import onnx_model
from modelc.converters.onnx_guard import list_model_files, read_graph
from modelc.core.errors import ConversionError, ErrorCode, RunnerError
from modelc.core.signature import Signature

from ..reasons import has_code

TEXT = (
    '<ir_version: 8, opset_import: ["": 18]>'
    "g (float[n,3] x) => (float[n,4] y) <float[3,4] w> { y = MatMul(x, w) }"
)


def model_of(*tensors: TensorProto) -> onnx.ModelProto:
    model = parser.parse_model(TEXT)
    model.graph.initializer.extend(tensors)
    return model


def outside(**entries: object) -> TensorProto:
    """Weights of 48 bytes that lie in a file of their own."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3, 4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def saved(folder: Path, *tensors: TensorProto) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "w.bin").write_bytes(bytes(64))
    path = folder / "m.onnx"
    path.write_bytes(model_of(*tensors).SerializeToString())
    return path


@pytest.mark.parametrize(
    "entries", [{"location": "w.bin"}, {"location": "w.bin", "offset": 16, "length": 48}]
)
def test_weights_beside_the_model_are_read(tmp_path: Path, entries: dict[str, object]) -> None:
    path = saved(tmp_path, outside(**entries))
    read_graph(path)
    with onnx_model.open_runner(path, "cpu", Signature(inputs=())) as runner:
        assert runner.run({"x": np.ones((1, 3), np.float32)})["y"].tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize(
    "place", ["../w.bin", "/etc/passwd", "a/../../w.bin", "C:\\w", "..\\w", ""]
)
def test_weights_named_out_of_the_folder_are_rejected(tmp_path: Path, place: str) -> None:
    path = saved(tmp_path / "in", outside(location=place))
    (tmp_path / "w.bin").write_bytes(bytes(64))
    for look in (
        onnx_model.inspect,
        lambda p: onnx_model.open_runner(p, "cpu", Signature(inputs=())),
    ):
        with pytest.raises(RunnerError, match="outside"):
            look(path)


def test_a_link_out_of_the_folder_is_rejected(tmp_path: Path) -> None:
    path = saved(tmp_path / "in", outside(location="link.bin"))
    (tmp_path / "secret").write_bytes(bytes(64))
    (tmp_path / "in" / "link.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(RunnerError, match="outside"):
        read_graph(path)
    with pytest.raises(ConversionError, check=has_code(ErrorCode.UNSAFE_PATH, naming="link.bin")):
        list_model_files(path)


def test_links_of_a_hub_snapshot_are_followed(tmp_path: Path) -> None:
    path = saved(tmp_path / "blobs", outside(location="link.bin"))
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "m.onnx").symlink_to(path)
    (snapshot / "link.bin").symlink_to(tmp_path / "blobs" / "w.bin")
    read_graph(snapshot / "m.onnx")
    assert len(list_model_files(snapshot / "m.onnx")) == 2


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": -8}, {"offset": 2**62}, {"offset": "x"}, {"offset": 17, "length": 48},
        {"length": -1}, {"length": 4}, {"length": 2**63},
    ],
)  # fmt: skip
def test_places_beyond_the_file_are_rejected(tmp_path: Path, entries: dict[str, object]) -> None:
    with pytest.raises(RunnerError, match="corrupt"):
        read_graph(saved(tmp_path, outside(location="w.bin", **entries)))


@pytest.mark.parametrize("dims", [[3, 2**40], [-3, 4], [2**62, 2**62]])
@pytest.mark.parametrize("raw", [True, False])
def test_sizes_beyond_the_data_are_rejected(tmp_path: Path, dims: list[int], raw: bool) -> None:
    values = np.ones((3, 4), np.float32)
    tensor = (
        numpy_helper.from_array(values, "w")
        if raw
        else helper.make_tensor("w", TensorProto.FLOAT, [3, 4], values.ravel())
    )
    del tensor.dims[:]
    tensor.dims.extend(dims)
    with pytest.raises(RunnerError, match="tensor 'w'"):
        read_graph(saved(tmp_path, tensor))


def test_a_tensor_in_a_branch_is_checked(tmp_path: Path) -> None:
    inner = helper.make_graph([], "body", [], [], [outside(location="../w.bin")])
    model = model_of(numpy_helper.from_array(np.ones((3, 4), np.float32), "w"))
    model.graph.node.append(helper.make_node("If", ["c"], [], then_branch=inner))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(RunnerError, match="outside"):
        read_graph(tmp_path / "m.onnx")


def test_packed_and_empty_tensors_are_valid(tmp_path: Path) -> None:
    four = helper.make_tensor("q", TensorProto.INT4, [3], b"\x21\x03", raw=True)
    texts = TensorProto(name="t", data_type=TensorProto.STRING, dims=[2], string_data=[b"", b"b"])
    none = helper.make_tensor("e", TensorProto.FLOAT, [0, 5], [])
    weights = numpy_helper.from_array(np.ones((3, 4), np.float32), "w")
    assert len(read_graph(saved(tmp_path, weights, four, texts, none)).graph.initializer) == 4


def test_an_unknown_type_is_shown_as_its_number(tmp_path: Path) -> None:
    """Found by fuzzing: the name of an unknown type is a ValueError of protobuf's."""
    path = saved(tmp_path, numpy_helper.from_array(np.ones((3, 4), np.float32), "w"))
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.elem_type = 99
    path.write_bytes(model.SerializeToString())
    assert onnx_model.inspect(path).inputs[0].dtype == "type 99"


@pytest.mark.parametrize("name", [b"MatMul", b"w", b"x"])
def test_a_name_that_is_not_utf8_is_rejected(tmp_path: Path, name: bytes) -> None:
    """Found by fuzzing: protobuf returns such a name as bytes, silently."""
    path = saved(tmp_path, numpy_helper.from_array(np.ones((3, 4), np.float32), "w"))
    size = bytes([len(name)])
    data = path.read_bytes().replace(size + name, size + b"\xff" * len(name))
    path.write_bytes(data)
    with pytest.raises(RunnerError, match=r"UTF-8|corrupt|onnx"):
        onnx_model.inspect(path)
