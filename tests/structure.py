"""Measure the structure of the code base.

`python tests/structure.py` prints the figures, `--list` what they count.

The figures are limits of `tests/test_structure.py`: they may fall, and they may not rise.
"""

from __future__ import annotations

import argparse
import ast
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
THREADED = 3  # functions that one parameter may pass through
SMALL = 80  # lines below which a file needs a reason

_PARTICIPLE = re.compile(
    r"[a-z]{2,}(?:ed|ing)|gone|taken|told|kept|made|found|drawn|held|said|begun|heard|written|given|shown|"
    r"known|seen|done|left|lost|meant|sent|spent|built|bent|bought|brought|caught|chosen|driven|fallen|"
    r"forgotten|frozen|hidden|laid|led|lent|paid|proven|sold|sought|spoken|stood|struck|"
    r"sworn|taught|thought|thrown|understood|woken|worn|wound|torn|broken|borne|bound|fed"
)
_NOT_PARTICIPLES = {
    *("feed", "embed", "need", "seed", "string", "ring", "exceed", "proceed", "speed", "shed"),
    *("bring", "ping", "spring", "thing", "nothing", "red", "bed", "padding", "warning", "pending"),
}
_WORDS = re.compile(r"[A-Za-z][a-z'-]*(?: [a-z][a-z'-]*){2,}")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What is counted over the product code and the tests."""

    files: int
    lines: int
    small_files: int  # of fewer than 80 lines, `__init__.py` left out
    test_lines: int
    functions: int
    participles: tuple[str, ...]  # functions that start with a participle
    repeated_classes: tuple[str, ...]  # class names that stand in more than one module
    repeated_files: tuple[str, ...]  # file names that stand in more than one folder
    threaded: tuple[str, ...]  # parameters that pass through more than three functions
    prose: tuple[str, ...]  # assertions of tests on a sentence


def product_files(root: Path = ROOT) -> list[Path]:
    """The files of the installed package."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    rooms = [
        name.partition(".")[2].replace(".", "/")
        for name in project["tool"]["setuptools"]["packages"]
    ]
    return sorted(file for room in rooms for file in (root / room).glob("*.py"))


def measure(root: Path = ROOT) -> Figures:
    """Count every figure."""
    files = product_files(root)
    tests = sorted(set((root / "tests").rglob("*.py")) - set((root / "tests/nets").rglob("*.py")))
    trees = {file.relative_to(root).as_posix(): _tree(file) for file in files}
    lengths = {name: len((root / name).read_text(encoding="utf-8").splitlines()) for name in trees}
    functions = [(name, node) for name, tree in trees.items() for node in _functions(tree)]
    classes, names = defaultdict(set), defaultdict(set)
    for name, tree in trees.items():
        names[Path(name).name].add(name)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].add(name)
    return Figures(
        files=len(files),
        lines=sum(lengths.values()),
        small_files=sum(
            length < SMALL for name, length in lengths.items() if not name.endswith("__init__.py")
        ),
        test_lines=sum(len(file.read_text(encoding="utf-8").splitlines()) for file in tests),
        functions=len(functions),
        participles=tuple(
            f"{name}:{node.name}" for name, node in functions if is_participle(node.name)
        ),
        repeated_classes=tuple(_repeated(classes)),
        repeated_files=tuple(_repeated({k: v for k, v in names.items() if k != "__init__.py"})),
        threaded=tuple(threaded(functions)),
        prose=tuple(prose for file in tests for prose in prose_assertions(file, root)),
    )


def is_participle(name: str) -> bool:
    """Whether a function's name starts with a participle: `gone_on`, `making`."""
    first = name.lstrip("_").partition("_")[0]
    return first not in _NOT_PARTICIPLES and _PARTICIPLE.fullmatch(first) is not None


def threaded(functions: list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]) -> Iterator[str]:
    """Parameters that more than three functions hand on under one name to the next, unread by any.

    A function is found by its name alone, so that two of one name count as one.
    """
    passes: dict[tuple[str, str], set[str]] = {}
    for _, node in functions:
        parameters = {a.arg for a in [*node.args.args, *node.args.kwonlyargs]} - {"self", "cls"}
        for parameter in parameters:
            passes.setdefault((node.name, parameter), set()).update(_receivers(node, parameter))
    seen = set()
    for function, parameter in passes:
        chain = _longest(passes, function, parameter)
        if len(chain) > THREADED and not _is_reached(passes, function, parameter):
            seen.add(f"{parameter}: {' > '.join(chain)}")
    yield from sorted(seen)


def prose_assertions(file: Path, root: Path = ROOT) -> Iterator[str]:
    """Strings of three words or more in assertions of a test file, and in `match=` of `raises`."""
    for node in ast.walk(_tree(file)):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Assert):
            parts = [node.test]
        elif isinstance(node, ast.Call):
            parts = [keyword.value for keyword in node.keywords if keyword.arg == "match"]
        for text in (c for part in parts for c in ast.walk(part)):
            if (
                isinstance(text, ast.Constant)
                and isinstance(text.value, str)
                and _WORDS.search(text.value)
            ):
                yield f"{file.relative_to(root).as_posix()}:{text.lineno}"


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _repeated(places: dict[str, set[str]]) -> Iterator[str]:
    for name, files in sorted(places.items()):
        if len(files) > 1:
            yield f"{name}: {', '.join(sorted(files))}"


def _receivers(node: ast.FunctionDef | ast.AsyncFunctionDef, parameter: str) -> set[str]:
    """Functions that are handed the parameter; none where the body reads it in another way."""
    uses = Counter(
        "read" for name in ast.walk(node) if isinstance(name, ast.Name) and name.id == parameter
    )["read"]
    handed: list[str] = []
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            values = [*call.args, *(keyword.value for keyword in call.keywords)]
            called = (
                call.func.attr
                if isinstance(call.func, ast.Attribute)
                else getattr(call.func, "id", "")
            )
            handed += [
                called for value in values if isinstance(value, ast.Name) and value.id == parameter
            ]
    return set(handed) if handed and len(handed) == uses else set()


def _longest(passes: dict[tuple[str, str], set[str]], function: str, parameter: str) -> list[str]:
    best: list[str] = []
    stack = [[function]]
    while stack:
        path = stack.pop()
        best = max(best, path, key=len)
        if len(path) <= THREADED + 1:
            following = passes.get((path[-1], parameter), set())
            stack += [
                [*path, name]
                for name in following
                if (name, parameter) in passes and name not in path
            ]
    return best


def _is_reached(passes: dict[tuple[str, str], set[str]], function: str, parameter: str) -> bool:
    return any(function in to for (_, handed), to in passes.items() if handed == parameter)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print what is counted as well")
    listed = parser.parse_args().list
    for name, value in vars(measure()).items():
        print(f"{name:18} {len(value) if isinstance(value, tuple) else value}")  # noqa: T201
        if listed and isinstance(value, tuple):
            print(*(f"    {line}" for line in value), sep="\n")  # noqa: T201


if __name__ == "__main__":
    main()
