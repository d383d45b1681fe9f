"""Random nets of NNSmith as PyTorch source: python benchmarks/nnsmith_make.py DIR --count 100.

Runs in an environment of its own, with torch, nnsmith and z3, which nothing else needs:

    python -m venv fuzz && fuzz/bin/pip install torch onnx numpy z3-solver hydra-core \
        hydra-colorlog multipledispatch appdirs setuptools && fuzz/bin/pip install --no-deps nnsmith

DIR/net_SEED.py holds a class `Net` each, whose weights torch draws from the seed, and above it the
inputs as `--input` reads them. NNSmith stops its nets at NaN with its `debug_numeric`; here its
operators are written down one by one, and that check is no part of them.
"""

from __future__ import annotations

import argparse
import inspect
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

DTYPES = {
    torch.float32: "float32", torch.float64: "float64", torch.int64: "int64",
    torch.int32: "int32", torch.int8: "int8", torch.uint8: "uint8", torch.bool: "bool",
    torch.int16: "int16",
}  # fmt: skip


class _Leaves(fx.Tracer):
    """Modules are calls; only what is between them is followed."""

    def is_leaf_module(self, m: nn.Module, _: str) -> bool:
        return bool(m)


class Written(nn.Module):
    """A net of NNSmith's instructions: its layers as `mN`, its constants as `cN`."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.steps: list[tuple[Callable[..., Any] | str, Any, Any]] = []
        for at, (apply, inputs, outputs, _) in enumerate(net.instructions):
            known: Callable[..., Any] | str = apply
            if isinstance(apply, nn.Module):
                known = f"m{at}"
                constant = getattr(apply, "data", None)
                if isinstance(constant, nn.Parameter):
                    known = f"c{at}"
                    self.register_parameter(known, constant)
                else:
                    self.add_module(known, apply)
            self.steps.append((known, inputs, outputs))
        self.takes, self.gives = list(net.input_map), list(net.output_map)

    def graph(self) -> fx.Graph:
        """The instructions as a graph of torch's own calls."""
        graph = fx.Graph()
        tracer: Any = _Leaves()  # its attributes are those that `trace` would set
        tracer.root, tracer.graph, tracer.module_paths = self, graph, {}
        tracer.submodule_paths, tracer.tensor_attrs = None, {}
        values: dict[str, Any] = {
            name: fx.Proxy(graph.placeholder(f"x{at}"), tracer)
            for at, name in enumerate(self.takes)
        }
        for known, inputs, outputs in self.steps:
            given = [values[name] for name in inputs]
            if isinstance(known, str) and known.startswith("c"):
                made: Any = fx.Proxy(graph.get_attr(known), tracer)
            elif isinstance(known, str):
                node = graph.call_module(known, tuple(one.node for one in given))
                made = fx.Proxy(node, tracer)
            elif inspect.ismethoddescriptor(known):
                made = getattr(given[0], known.__name__)(*given[1:])
            else:
                made = known(*given)
            made = made if isinstance(made, list) else [made]
            values.update(zip(outputs, made, strict=True))
        graph.output(tuple(values[name].node for name in self.gives))
        return graph

    def layers(self) -> Iterator[str]:
        """The lines of `__init__`."""
        for name, layer in self.named_children():
            yield f"self.{name} = nn.{layer!r}"
        for name, value in self.named_parameters(recurse=False):
            drawn = f"torch.randn({tuple(value.shape)}).to({value.dtype})"
            yield f"self.{name} = nn.Parameter({drawn}, requires_grad={value.is_floating_point()})"


def source_of(net: Any, seed: int) -> str:
    """The text of one module."""
    written = Written(net)
    graph = written.graph()
    graph.lint()
    body = graph.python_code("self").src
    body = re.sub(r";  [\w = ]+ = None$", "", body[body.index("def forward") :].strip(), flags=re.M)
    lines = ["", *body.splitlines()]
    inputs = [
        f"x{at}:{DTYPES[like.dtype.torch()]}[{','.join(map(str, like.shape))}]"
        for at, like in enumerate(net.input_map.values())
    ]
    operators = [type(op).__name__ for _, _, _, op in net.instructions]
    head = [
        f'"""NNSmith 0.1.0, seed {seed}: {", ".join(operators)}."""', "",
        "import torch", "from torch import device, inf, nan, nn", "",
        f"SEED = {seed}", f"INPUTS = {tuple(inputs)!r}", "", "",
        "class Net(nn.Module):", "    def __init__(self):", "        super().__init__()",
    ]  # fmt: skip
    init = [f"        {line}" for line in written.layers()]
    return "\n".join([*head, *init, *(f"    {line}".rstrip() for line in lines)]) + "\n"


def make(seed: int, opset: Any, model: Any) -> str:
    """One random net of 5 to 16 operators, run once."""
    from nnsmith.graph_gen import model_gen

    size = random.Random(seed).randint(5, 16)
    gen = model_gen(
        opset=opset, method="symbolic-cinit", seed=seed, max_elem_per_tensor=2**12,
        max_nodes=size, timeout_ms=4000, rank_choices=None, dtype_choices=None,
    )  # fmt: skip
    torch.manual_seed(seed)
    net = model.from_gir(gen.make_concrete()).native_model
    text = source_of(net, seed)
    if "float16" in text:
        raise ValueError("half precision: eager is brought to float32 there, another function")
    space: dict[str, Any] = {}
    exec(compile(text, f"net_{seed}", "exec"), space)
    built = space["Net"]().eval()
    given = net.get_random_inps()
    with torch.no_grad():
        built(*given.values())
    return text


def main() -> int:
    """Read the options, write the nets; what cannot be written is counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    from nnsmith.abstract.extension import activate_ext
    from nnsmith.materialize import Model
    from nnsmith.narrow_spec import auto_opset

    model = Model.init("torch", backend_target="cpu")
    model.add_seed_setter()
    opsets = [auto_opset(model, None, vulops=vulnerable) for vulnerable in (False, True)]
    activate_ext(opset=opsets[1], factory=None)
    args.out.mkdir(parents=True, exist_ok=True)
    lost = 0
    for seed in range(args.first, args.first + args.count):
        try:
            text = make(seed, opsets[seed % 3 == 0], model)
        except Exception as error:  # noqa: BLE001 - NNSmith's solver, or a net that does not run
            print(f"{seed}: {type(error).__name__}: {str(error)[:150]}", flush=True)
            lost += 1
            continue
        (args.out / f"net_{seed}.py").write_text(text)
    print(f"{args.count - lost} nets written, {lost} lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
