"""Record the surface of a torch-tensorrt wheel: python -m modelc.benchmarks.torch_tensorrt_surface.

The wheel's sources are parsed, not run: importing the package needs TensorRT and CUDA. Recorded are
the parameters of the functions that compile and save, the compilation settings with their defaults,
and the operators that have a converter. `modelc inspect --segments` knows the latter by the table
in `converters/trt/torch_converters.py`, which a test compares with the record.
"""

from __future__ import annotations

import argparse
import ast
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FUNCTIONS = {
    "torch_tensorrt.compile": "torch_tensorrt/_compile.py",
    "torch_tensorrt.load": "torch_tensorrt/_compile.py",
    "torch_tensorrt.save": "torch_tensorrt/_compile.py",
    "torch_tensorrt.dynamo.compile": "torch_tensorrt/dynamo/_compiler.py",
}
_SETTINGS = "torch_tensorrt/dynamo/_settings.py"
_DEFAULTS = "torch_tensorrt/dynamo/_defaults.py"
_CONVERTERS = "torch_tensorrt/dynamo/conversion/"
_DECORATOR = "dynamo_tensorrt_converter"


def read_surface(wheel: Path) -> dict[str, Any]:
    """Return the surface of a wheel, as it is recorded."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py")]
        trees = {name: ast.parse(archive.read(name)) for name in names}
    return {
        "wheel": wheel.name,
        "functions": {
            name: _parameters(_named(trees[file], name.rpartition(".")[2]))
            for name, file in _FUNCTIONS.items()
        },
        "settings": _settings(trees[_SETTINGS], trees[_DEFAULTS]),
        "converters": _converters(
            tree for name, tree in sorted(trees.items()) if name.startswith(_CONVERTERS)
        ),
    }


def _named(tree: ast.Module, name: str) -> ast.FunctionDef:
    return next(one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name)


def _parameters(function: ast.FunctionDef) -> dict[str, str]:
    """Return the default of each parameter as text; empty for a required one."""
    given = function.args
    places = [*given.posonlyargs, *given.args]
    blanks: list[ast.expr | None] = [None] * (len(places) - len(given.defaults))
    pairs = [
        *zip(places, [*blanks, *given.defaults], strict=True),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    found = {one.arg: "" if value is None else ast.unparse(value) for one, value in pairs}
    return found | ({f"**{given.kwarg.arg}": ""} if given.kwarg else {})


def _settings(settings: ast.Module, defaults: ast.Module) -> dict[str, str]:
    """Return the fields of CompilationSettings with their default values as text."""
    values = {
        ast.unparse(one.targets[0]): ast.unparse(one.value)
        for one in defaults.body
        if isinstance(one, ast.Assign)
    }
    owner = next(
        one
        for one in settings.body
        if isinstance(one, ast.ClassDef) and one.name == "CompilationSettings"
    )
    fields = [one for one in owner.body if isinstance(one, ast.AnnAssign) and one.value is not None]
    texts = {ast.unparse(one.target): ast.unparse(one.value) for one in fields if one.value}
    return {name: values.get(text, text) for name, text in texts.items()}


def _converters(trees: Iterator[ast.Module]) -> dict[str, list[dict[str, str]]]:
    """Return the keywords of each converter's decorator, by operator."""
    found: dict[str, list[dict[str, str]]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef):
                continue
            for one in node.decorator_list:
                if isinstance(one, ast.Call) and ast.unparse(one.func).endswith(_DECORATOR):
                    key = ast.unparse(one.args[0]).removeprefix("torch.ops.")
                    given = {word.arg or "": ast.unparse(word.value) for word in one.keywords}
                    found.setdefault(key, []).append(given)
    return dict(sorted(found.items()))


def main() -> None:
    """Write the surface of the wheel to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", type=Path, help="a wheel of torch-tensorrt")
    parser.add_argument("--write", type=Path, required=True, metavar="FILE", help="the record")
    given = parser.parse_args()
    given.write.write_text(json.dumps(read_surface(given.wheel), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
