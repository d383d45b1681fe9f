"""The rules for the code base, as tests."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from modelc.cli.app import BUG, INTERRUPTED, make_app
from modelc.converters.registry import TARGETS
from modelc.core.errors import ModelcError
from modelc.validators.tolerance import TOLERANCES

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NOT_SHIPPED = {"tests", "sample_models", "benchmarks"}
PACKAGES: list[str] = PYPROJECT["tool"]["setuptools"]["packages"]
FOLDERS = sorted(name.partition(".")[2].replace(".", "/") for name in PACKAGES if "." in name)
PRODUCTION = sorted(
    [*ROOT.glob("*.py"), *(file for folder in FOLDERS for file in (ROOT / folder).glob("*.py"))]
)
HEAVY = {
    "modelopt",
    "PIL",
    "msgspec",
    "nncf",
    "numpy",
    "onnx",
    "onnxruntime",
    "openvino",
    "safetensors",
    "tensorrt",
    "torch",
    "transformers",
}
KNOWS_FORMATS = {
    "cli/export.py",  # the commands' own names say a format
    "pipeline/cache/environment.py",  # names of packages, whose versions a manifest holds
}
WORDS = re.compile(r"\.\./shared|farm-bench|/work/")
GROUP: Any = typer.main.get_command(make_app())  # typer's own classes are private
COMMANDS: dict[str, Any] = GROUP.commands


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body, without the docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def texts(*patterns: str) -> Iterator[tuple[Path, str]]:
    for pattern in patterns:
        for file in sorted(ROOT.glob(pattern)):
            if file.is_file() and file != Path(__file__).resolve():
                yield file, file.read_text(encoding="utf-8")


def test_every_package_is_listed_in_pyproject() -> None:
    found = {name_of(path.parent) for n in ("*", "*/*") for path in ROOT.glob(f"{n}/__init__.py")}
    hidden = {name for name in found if name.startswith(".")}
    assert found - NOT_SHIPPED - hidden == set(FOLDERS)


def test_only_two_modules_are_at_the_root() -> None:
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_every_package_is_type_checked() -> None:
    checked = set(PYPROJECT["tool"]["mypy"]["files"])
    folders = {folder.partition("/")[0] for folder in FOLDERS}
    assert {*folders, *NOT_SHIPPED, "docs", "__init__.py", "__main__.py"} <= checked


@pytest.mark.parametrize(
    "code",
    [
        "import modelc",
        "from modelc.cli.app import run_cli; run_cli(['--help'])",
        "from modelc.cli.app import run_cli; run_cli(['export', '--help'])",
        "from modelc.cli.app import run_cli; run_cli(['targets'])",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(code: str) -> None:
    asked = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    loaded = json.loads(ran.stderr.splitlines()[-1])
    assert "modelc" in loaded
    assert not HEAVY.intersection(loaded)


def test_the_entry_point_imports_nothing_outside_its_guard() -> None:
    """An interrupt while modules are imported is answered only inside `main`."""
    code = (
        "import sys; before = {*sys.modules}; import modelc.__main__;"
        "print(*sorted({*sys.modules} - before - {'__future__'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["modelc", "modelc.__main__"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_a_page(name: str) -> None:
    helps = {parameter.name: parameter.help for parameter in COMMANDS[name].params}
    assert COMMANDS[name].help
    assert not [parameter for parameter, text in helps.items() if not text]
    assert (ROOT / "docs" / "commands" / f"{name}.md").is_file()


def test_there_is_no_page_of_a_removed_command() -> None:
    assert {page.stem for page in (ROOT / "docs" / "commands").iterdir()} == set(COMMANDS)


def test_what_is_generated_is_up_to_date() -> None:
    check = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    ran = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_links_between_the_pages_exist() -> None:
    links = [
        (name_of(file), link)
        for file, text in texts("*.md", "docs/*.md", "docs/*/*.md")
        for link in re.findall(r"\]\(([^)#:]+)\)", text)
        if not (file.parent / link).exists()
    ]
    assert not links


def test_every_target_is_in_the_docs_with_what_it_has() -> None:
    lines = (ROOT / "docs" / "targets.md").read_text(encoding="utf-8").splitlines()
    for target in TARGETS:
        row = next(line for line in lines if line.startswith(f"| `{target.NAME}` |"))
        words = (*target.MADE_FROM.values(), *target.CAPTURES, *target.MADE_FROM, *target.DEVICES)
        assert not [word for word in words if str(word) not in row]


def test_the_readme_has_at_most_120_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_every_exit_code_is_one_classs_own_and_in_the_docs() -> None:
    kinds = (
        one for one in ModelcError.__subclasses__() if one.__module__ == ModelcError.__module__
    )
    codes = [kind.exit_code for kind in kinds]
    taken = [0, 1, BUG, INTERRUPTED, *codes]
    page = (ROOT / "docs" / "exit_codes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|", page, re.M)
    assert not [code for code, count in Counter(taken).items() if count > 1]
    assert sorted(map(int, rows)) == sorted(taken)


def test_every_tolerance_is_in_the_docs_with_its_numbers() -> None:
    page = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    for precision, tolerance in TOLERANCES.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| {precision} |"))
        cells = [cell.strip().removesuffix(" dB") for cell in row.split("|")]
        limits = tuple(map(float, cells[2:5]))
        assert limits == (tolerance.atol, tolerance.rtol, tolerance.min_sqnr)
        assert cells[5] == ("-" if tolerance.min_cosine is None else f"{tolerance.min_cosine:g}")
        share = tolerance.min_agreement
        assert cells[6] == ("-" if share is None else f"{100 * share:g} %")
        assert len(cells[7].split()) > 5, "a reason"


@pytest.mark.parametrize("folder", ["cli", "core", "pipeline", "validators", "calibration"])
def test_only_its_own_file_names_a_format(folder: str) -> None:
    names = {text for target in TARGETS for text in (target.NAME, target.SUFFIX)}
    found = [
        f"{name_of(file)}:{node.lineno} {node.value}"
        for file in PRODUCTION
        if file.parent.name == folder and name_of(file) not in KNOWS_FORMATS
        for node in texts_beside_hints(ast.parse(file.read_text(encoding="utf-8")))
        if node.value in names
    ]
    assert not found


def texts_beside_hints(tree: ast.Module) -> Iterator[ast.Constant]:
    """The constants, less what hints give to options, as `Option("to", "onnx")`."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    hinted = {
        arg for call in calls if getattr(call.func, "id", "") == "Option" for arg in call.args
    }
    yield from (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and n not in hinted)


def test_only_the_registry_imports_a_format() -> None:
    modules = {target.__name__.rpartition(".")[2] for target in TARGETS}  # type: ignore[attr-defined]  # each is a module
    found = [
        f"{name_of(file)}:{node.lineno}"
        for file in PRODUCTION
        if name_of(file) != "converters/registry.py"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and "converters" in (node.module or "").split(".")
        if modules & {(node.module or "").rpartition(".")[2], *(a.name for a in node.names)}
    ]
    assert not found


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {name_of(f): len(f.read_text(encoding="utf-8").splitlines()) for f in PRODUCTION}
    assert not {name: length for name, length in lengths.items() if length > 400}


def test_no_function_body_is_longer_than_50_lines() -> None:
    lengths = {
        f"{name_of(file)}:{function.name}": body_lines(function)
        for file in PRODUCTION
        for function in functions(file)
    }
    assert not {name: length for name, length in lengths.items() if length > 50}


def test_nothing_names_the_place_where_it_was_made() -> None:
    files = ("*.*", "Makefile", ".ci/*", "docs/**/*.md", "tests/**/*.py")
    folders = (*FOLDERS, "benchmarks", "docs", "sample_models")
    found = [
        f"{name_of(file)}: {word}"
        for file, text in texts(*files, *(f"{folder}/*.py" for folder in folders))
        for word in WORDS.findall(text)
    ]
    assert not found
