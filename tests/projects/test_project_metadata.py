"""`[models.NAME.meta]` and `[defaults.meta]` in modelc.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.core.model_meta import ModelMeta
from modelc.core.preprocess import Preprocess
from modelc.projects.model_orders import plan_project
from modelc.projects.setting_layers import Overrides

PROJECT = """
[defaults.meta]
license = "MIT"
extra.team = "vision"
[models.net]
checkpoint = "net.safetensors"
model = "nets:build"
to = "torchscript"
"""


def meta_of(folder: Path, text: str, *sets: str) -> ModelMeta:
    (folder / "net.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    (folder / "labels.txt").write_text("cat\ndog\n")
    (folder / "modelc.toml").write_text(PROJECT + text)
    planned = plan_project(folder / "modelc.toml", given=Overrides(sets=sets))
    found = planned.models[0].order.meta
    assert found is not None
    return found


def test_tables_of_model_and_defaults_are_joined(tmp_path: Path) -> None:
    text = '[models.net.meta]\nclasses = "labels.txt"\npreprocess = {resize = 8, crop = 8}\n'
    assert meta_of(tmp_path, text) == ModelMeta(
        classes=("cat", "dog"),
        preprocess=Preprocess.parse("resize=8,crop=8"),
        license="MIT",
        extra={"team": "vision"},
    )


def test_texts_and_flags(tmp_path: Path) -> None:
    found = meta_of(tmp_path, 'meta = ["classes=a,b"]\n', "net.meta.license=Apache-2.0")
    assert (found.classes, found.license) == (("a", "b"), "Apache-2.0")
    assert meta_of(tmp_path, "", "meta.license=ISC").license == "ISC"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('[models.net.meta]\nlicence = "MIT"\n', ErrorCode.UNKNOWN_NAME),
        ("[models.net.meta]\nclasses = 3\n", ErrorCode.INVALID_VALUE),
        ("[models.net.meta]\nlicense = true\n", ErrorCode.INVALID_VALUE),
        ('[models.net.meta]\nlicense = "Mine"\n', ErrorCode.INVALID_VALUE),
        ("meta = 3\n", ErrorCode.INVALID_VALUE),
    ],
)
def test_faults_have_a_place(tmp_path: Path, text: str, code: ErrorCode) -> None:
    with pytest.raises(UsageError) as caught:
        meta_of(tmp_path, text)
    assert caught.value.code is code
    assert caught.value.place is not None


def test_included_steps_are_settings_of_a_model(tmp_path: Path) -> None:
    text = (
        'include-preprocess = true\npostprocess = "softmax,topk=2"\n'
        '[models.net.meta]\npreprocess = "imagenet"\n'
    )
    meta_of(tmp_path, text)
    source = plan_project(tmp_path / "modelc.toml").models[0].order.source
    assert source.preprocess.startswith("resize=256,crop=224x224")
    assert source.postprocess == "softmax,topk=2"
