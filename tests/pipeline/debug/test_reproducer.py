"""The reproducer of a model whose parts have hostile names."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.pipeline.debug import refine_culprit

from ...reasons import has_code

NAMES = ["..", ".", "", "../../x", "/etc", "a" * 400, "\x00", "ok/layer.0"]


def written(folder: Path, *, node: str = "n", module: str = "m") -> Path:
    culprit: Any = SimpleNamespace(
        node=SimpleNamespace(name=node), given={"x": np.ones(2)}, tensor="t", module=module,
        expected=np.ones(2),
    )  # fmt: skip
    probe: Any = SimpleNamespace(loader="def run(*_): ...", extract=lambda *_: "part.onnx")
    return refine_culprit.write_reproducer(
        culprit, probe, folder, artifact="a", about="what was found"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_nodes_name_never_escapes_the_folder(tmp_path: Path, name: str) -> None:
    """A node called `..` had the output folder removed."""
    (tmp_path / "model.onnx").write_text("kept")
    place = written(tmp_path, node=name)
    assert place.parent == tmp_path / "debug"
    assert (place / "reproduce.py").is_file()
    assert (tmp_path / "model.onnx").read_text() == "kept"


@pytest.mark.parametrize("module", ['"""\nraise SystemExit(3)\n"""', '\\"""', "a\nb", "x\\"])
def test_a_modules_name_is_text_in_the_script(tmp_path: Path, module: str) -> None:
    """What a file calls a module was code in the script that modelc wrote."""
    tree = ast.parse((written(tmp_path, module=module) / "reproduce.py").read_text())
    kinds = (ast.Expr, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.Assign, ast.If)
    assert all(isinstance(node, kinds) for node in tree.body)


def test_a_link_in_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "debug").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSAFE_PATH)):
        written(tmp_path / "out")
    assert not list((tmp_path / "elsewhere").iterdir())
