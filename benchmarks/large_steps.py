"""Memory and time of steps with large weights: python benchmarks/large_steps.py [1B 2B 8B].

An export of a model with 8 billion weights takes hours. This script runs the steps that read all
weights, each in a process of its own, on a graph whose products and table have the shapes of the
model (no attention, no cache). One file of 3 GB has its weights: a tensor begins 1 MiB behind the
one before, so that all differ. `own` is memory that the kernel can only write to swap. Linux only.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelc.benchmarks.large_models import read_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import onnx

SHAPES = {  # hidden, intermediate, layers, words; a quarter of the hidden ones are keys
    "tiny": (256, 512, 2, 2000),
    "0.3B": (2048, 6144, 4, 32000),
    "1B": (4096, 14336, 4, 32000),
    "2B": (4096, 14336, 8, 32000),
    "8B": (4096, 14336, 32, 128256),
    "1B-1": (4096, 14336, 1, 32000),  # one layer of it
    "1B-2": (4096, 14336, 2, 32000),
    "8B-1": (4096, 14336, 1, 128256),
}
FORMATS = ("onnx:int4", "onnx:int8-weights", "openvino:int4", "openvino:int8-weights")
STEPS = ("quantize", "compare weights", "open and run")
_DATA, _PERIOD, _STEP = "weights.bin", 2**26, 2**20  # file; floats that repeat; bytes
_EVERY = 0.02  # seconds between two samples
_IDS = "ids:int64[batch=1..2,sequence=1..8]"


class _Graph:
    """Nodes, and weights that lie in one file."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def add_node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return its output."""
        from onnx import helper

        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def add_weight(self, name: str, rows: int, columns: int) -> str:
        """Add a weight; return its name."""
        from onnx import TensorProto

        tensor = TensorProto(name=name, dims=(rows, columns), data_type=TensorProto.FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        offset, length = _STEP * len(self.tensors), 4 * rows * columns
        for key, value in (("location", _DATA), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        self.tensors.append(tensor)
        return name

    def multiply(self, x: str, name: str, rows: int, columns: int) -> str:
        """Add a product with a weight; return its output."""
        return self.add_node("MatMul", x, self.add_weight(name, rows, columns))

    def add_layer(self, x: str, n: int, hidden: int, inner: int) -> str:
        """Add the products of one layer; return its output."""
        q = self.multiply(x, f"{n}.q", hidden, hidden)
        k, v = (self.multiply(x, f"{n}.{one}", hidden, hidden // 4) for one in "kv")
        kv = self.add_node("Tanh", self.add_node("Mul", k, v))
        o = self.add_node("Add", self.add_node("Concat", kv, kv, kv, kv, axis=-1), q)
        o = self.multiply(o, f"{n}.o", hidden, hidden)
        x = self.add_node("Add", x, self.add_node("Tanh", o))
        gate, up = (self.multiply(x, f"{n}.{one}", hidden, inner) for one in ("gate", "up"))
        middle = self.add_node("Tanh", self.add_node("Mul", gate, up))
        down = self.multiply(middle, f"{n}.down", inner, hidden)
        return self.add_node("Add", x, self.add_node("Tanh", down))


def write_graph(folder: Path, size: str) -> Path:
    """Write the graph beside its weights, and return it; it may be there already."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper

    hidden, inner, layers, words = SHAPES[size]
    model, graph = folder / "model.onnx", _Graph()
    if model.exists():
        return model
    x = graph.add_node("Gather", graph.add_weight("table", words, hidden), "ids")
    for n in range(layers):
        x = graph.add_layer(x, n, hidden, inner)
    logits = graph.multiply(x, "head", hidden, words)
    dims = ["batch", "sequence"]
    made = helper.make_graph(
        graph.nodes, "large",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, dims)],
        [helper.make_tensor_value_info(logits, TensorProto.FLOAT, [*dims, words])],
        graph.tensors,
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    part = np.random.default_rng(0).standard_normal(_PERIOD, dtype=np.float32) / hidden**0.5
    needed = 4 * hidden * max(words, inner) + _STEP * len(graph.tensors)
    with (folder / _DATA).open("wb") as stream:
        for _ in range(-(-needed // part.nbytes)):
            stream.write(part.data)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)]), str(model))
    return model


def list_weights(model: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the mapped weights of the graph by name."""
    from modelc.converters.onnx_files import read_values
    from modelc.converters.onnx_guard import read_graph

    for tensor in read_graph(model).graph.initializer:
        yield tensor.name, read_values(tensor, model)


def run_step(folder: Path, size: str, form: str, step: str) -> None:
    """In the child: run one step; the result of a quantizer is left for the others."""
    import numpy as np

    from modelc.converters.quantizers.quantizer_registry import quantizers_for
    from modelc.converters.registry import target_named
    from modelc.core.contract import QuantizeJob
    from modelc.core.grammar import parse_input
    from modelc.core.kinds import Precision
    from modelc.core.signature import merge_inputs
    from modelc.core.weights import IntegerWeighted
    from modelc.validators.rounded_weights import find_misrounded_weights

    model = write_graph(folder / size, size)
    name, precision = form.split(":")
    out = folder / size / form.replace(":", "-")
    signature = merge_inputs((parse_input(_IDS),), {})
    target = target_named(name)
    if step == "quantize":
        out.mkdir()
        (quantizer,) = quantizers_for(name, Precision(precision))
        quantizer.quantize(QuantizeJob(
            parent=model, consumer=name, signature=signature, calibration=None, folder=out,
            precision=Precision(precision),
        ))  # fmt: skip
        return
    path = out / f"model{target.SUFFIX}"
    if step == "compare weights" and isinstance(target, IntegerWeighted):
        faults = find_misrounded_weights(dict(list_weights(model)), target.integer_weights(path))
        print(f"{len(faults)} faults", *faults[:1])
    else:
        runner = target.open_runner(path, "cpu", signature)
        (logits,) = runner.run({"ids": np.ones((2, 8), np.int64)}).values()
        print(f"logits deviate by {logits.std():.4f}")


def measure(argv: list[str], most: int) -> tuple[int, float, str]:
    """Run a step; return its peak of own bytes, its seconds, and what it printed last."""
    began, own = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT)
        while child.poll() is None:
            own = max(own, read_memory(child.pid)[0])
            if own > most:
                child.kill()
            time.sleep(_EVERY)
        output.seek(0)
        said = (output.read().splitlines() or [""])[-1]
    return own, time.monotonic() - began, said if child.returncode == 0 else f"FAILED: {said}"


def main() -> int:
    """Measure each step of each format and size, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", default=["1B", "2B", "8B"])
    parser.add_argument("--to", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument("--most", type=int, default=9000, help="MB at which a step is ended")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "modelc-large"))
    parser.add_argument("--step", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        run_step(args.folder, *args.step)
        return 0
    print("| model | format | step | own MB | s | |\n| --- | --- | --- | ---: | ---: | --- |")
    for size in args.sizes:
        write_graph(args.folder / size, size)
        for form in args.to:
            for step in STEPS:
                argv = [sys.executable, __file__, "--folder", str(args.folder)]
                own, seconds, said = measure([*argv, "--step", size, form, step], args.most * 10**6)
                cells = (size, form, step, f"{own / 1e6:.0f}", f"{seconds:.0f}", said)
                print(f"| {' | '.join(cells)} |", flush=True)
            shutil.rmtree(args.folder / size / form.replace(":", "-"))
        shutil.rmtree(args.folder / size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
