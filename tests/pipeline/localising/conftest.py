"""A small BERT in ONNX, OpenVINO and TorchScript, and a way to spoil its ONNX and look into it."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from modelc.core.contract import Array
from modelc.core.findings import Localisation
from modelc.pipeline.localising.asking import Looking, localise_file
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run import run

FORMATS = ("onnx", "openvino", "torchscript")


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory, bert_source: Source) -> Path:
    """The folder of good conversions. To change one, copy it."""
    out = tmp_path_factory.mktemp("bert") / "out"
    wanted = tuple(Wanted(target=name) for name in FORMATS)
    with warnings.catch_warnings(record=True):
        run(Order(source=bert_source, wanted=wanted, out=out))
    return out


class Spoiled:
    """A copy of the ONNX that is changed and looked into."""

    def __init__(self, folder: Path, source: Source) -> None:
        self.path = folder / "model.onnx"
        self.model = onnx.load(self.path)
        self._source = source

    def node(self, name: str) -> onnx.NodeProto:
        named: dict[str, onnx.NodeProto] = {node.name: node for node in self.model.graph.node}
        return named[name]

    def weight(self, node: str, change: Callable[[Array], Array], place: int = 1) -> None:
        """Give one node another constant."""
        given = self.node(node)
        tensors = {tensor.name: tensor for tensor in self.model.graph.initializer}
        changed = change(numpy_helper.to_array(tensors[given.input[place]]).copy())
        self.model.graph.initializer.append(numpy_helper.from_array(changed, "spoiled"))
        given.input[place] = "spoiled"

    def attribute(self, node: str, name: str, value: object) -> None:
        given = self.node(node)
        for one in [one for one in given.attribute if one.name == name]:
            given.attribute.remove(one)
        given.attribute.append(onnx.helper.make_attribute(name, value))

    def look(self, *, memory: int = 2 << 30, out: Path | None = None) -> Localisation:
        onnx.save(self.model, self.path)
        looking = Looking(memory=memory, out=out)
        return localise_file(self.path, self._source, looking=looking)


@pytest.fixture
def spoiled(bert: Path, bert_source: Source, tmp_path: Path) -> Spoiled:
    """A good ONNX, to be spoiled."""
    for name in ("model.onnx", "model.debug.json"):
        shutil.copy(bert / name, tmp_path / name)
    return Spoiled(tmp_path, bert_source)
