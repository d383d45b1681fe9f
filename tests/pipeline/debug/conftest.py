"""A small BERT in ONNX, OpenVINO and TorchScript, and a way to plant faults in its ONNX."""

from __future__ import annotations

import importlib
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from modelc.core.contract import Array
from modelc.core.findings import Localisation
from modelc.pipeline.debug.localise_file import DebugOptions, localise_file
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.run_order import run

HERE = Path(__file__).parent
FORMATS = ("onnx", "openvino", "torchscript")


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory, bert_source: Source) -> Path:
    """The folder of good conversions. To change one, copy it."""
    out = tmp_path_factory.mktemp("bert") / "out"
    wanted = tuple(Wanted(target=name) for name in FORMATS)
    with warnings.catch_warnings(record=True):
        run(Order(source=bert_source, wanted=wanted, out=out))
    return out


class FaultyOnnx:
    """A copy of an ONNX, in which to plant faults and localise them."""

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
        self.model.graph.initializer.append(numpy_helper.from_array(changed, "faulty"))
        given.input[place] = "faulty"

    def attribute(self, node: str, name: str, value: object) -> None:
        given = self.node(node)
        for one in [one for one in given.attribute if one.name == name]:
            given.attribute.remove(one)
        given.attribute.append(onnx.helper.make_attribute(name, value))

    def localise(self, *, memory: int = 2 << 30, out: Path | None = None) -> Localisation:
        onnx.save(self.model, self.path)
        looking = DebugOptions(memory=memory, out=out)
        return localise_file(self.path, self._source, looking=looking)


@pytest.fixture
def faulty(bert: Path, bert_source: Source, tmp_path: Path) -> FaultyOnnx:
    """A good ONNX, in which to plant a fault."""
    for name in ("model.onnx", "model.debug.json"):
        shutil.copy(bert / name, tmp_path / name)
    return FaultyOnnx(tmp_path, bert_source)


class Conversions:
    """Nets of debug_nets.py as they were converted, each once."""

    def __init__(self, folder: Path) -> None:
        self.nets = importlib.import_module("debug_nets")
        self._folder = folder
        self._made: dict[str, Path] = {}

    def source(self, name: str, *, trust: bool = False) -> Source:
        import torch

        path = self._folder / f"{name}.pt"
        if not path.exists():
            torch.save(self.nets.build(name).state_dict(), path)
        return Source(
            checkpoint=path, model="debug_nets:build", model_args={"name": name},
            inputs=(self.nets.INPUT,), trust=trust,
        )  # fmt: skip

    def folder(self, name: str, formats: Sequence[str] = FORMATS) -> Path:
        """The output folder of a net. To change what is in it, copy it."""
        if name not in self._made:
            out = self._folder / name
            wanted = tuple(Wanted(target=one) for one in formats)
            judging = Judging(sensitivity=0)
            with warnings.catch_warnings(record=True):
                run(Order(source=self.source(name), wanted=wanted, out=out, judging=judging))
            self._made[name] = out
        return self._made[name]

    def faulty(self, name: str, folder: Path) -> FaultyOnnx:
        """A copy of a net's ONNX, in which to plant a fault."""
        made = self.folder(name)
        for file in ("model.onnx", "model.debug.json"):
            shutil.copy(made / file, folder / file)
        return FaultyOnnx(folder, self.source(name))


@pytest.fixture(scope="session")
def conversions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversions]:
    """Small nets, converted when they are asked for."""
    sys.path.append(str(HERE))  # tests are not a package
    yield Conversions(tmp_path_factory.mktemp("conversions"))
    sys.path.remove(str(HERE))
