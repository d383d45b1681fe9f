"""A Hugging Face export beside a broken torchvision: the error names it, not the folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from modelc.checkpoints.huggingface_folder import blame_broken_package, find_broken_package

transformers = pytest.importorskip("transformers")

CODE = "raise RuntimeError('operator torchvision::nms does not exist')\n"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A folder of packages with a torchvision that another torch was meant for."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(CODE)
    info = tmp_path / "torchvision-0.20.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.20.0\n")
    return tmp_path


def test_a_broken_torchvision_is_named_and_not_the_folder(broken: Path) -> None:
    folder = broken / "bert"
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    paths = [
        str(broken),
        *(Path(p).absolute() for p in os.environ.get("PYTHONPATH", "").split(":") if p),
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "modelc", "export", str(folder), "--to", "torchscript"],
        cwd=broken,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 4, ran.stderr
    assert "torchvision 0.20.0" in (ran.stderr)
    assert "torchvision::nms" in ran.stderr
    assert " torch==" in ran.stderr


def test_an_error_of_the_model_alone_passes_through() -> None:
    with pytest.raises(ValueError, match="no weights"), blame_broken_package("transformers"):
        raise ValueError("no weights")


def test_a_package_that_is_missing_is_named() -> None:
    error = ImportError("cannot import name X")
    error.__cause__ = ModuleNotFoundError("No module named 'timm.layers'", name="timm.layers")
    assert find_broken_package(error) == "timm"
