"""Files that are programs are opened only if they are trusted, or recorded in a manifest."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from modelc.core.errors import CheckpointError, ErrorCode, ModelcError
from modelc.core.events import Noted, ignore_events
from modelc.pipeline.api import inspect, localise, validate
from modelc.pipeline.eager_reference import read_checkpoint
from modelc.pipeline.order import Order, Source
from modelc.pipeline.recorded_run import Moved
from modelc.pipeline.run_order import run
from modelc.pipeline.run_progress import Progress

from ..reasons import has_code

PROGRAMS = ("model.torchscript.pt", "model.pt2")
Orders = Callable[..., Order]


@pytest.fixture
def alone(exported_digits: Path, tmp_path: Path) -> Path:
    """Two programs without the manifest that knows them."""
    for name in PROGRAMS:
        shutil.copy(exported_digits / name, tmp_path / name)
    return tmp_path


def read(source: Source, folder: Path) -> str:
    return read_checkpoint(source, Progress(tell=ignore_events, logs=folder / "logs")).kind


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_checkpoint_that_is_a_program_requires_trust(alone: Path, name: str) -> None:
    source = Source(checkpoint=alone / name)
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.CONSENT_REQUIRED)) as caught:
        read(source, alone)
    assert "trust" in caught.value.options
    assert "\n" not in caught.value.message
    assert read(replace(source, trust=True), alone) in ("torchscript", "pt2")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_recorded_checkpoint_requires_no_trust(
    exported_digits: Path, tmp_path: Path, name: str
) -> None:
    assert read(Source(checkpoint=exported_digits / name), tmp_path) in ("torchscript", "pt2")


def test_a_changed_checkpoint_requires_trust(exported_digits: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(exported_digits, folder)
    with zipfile.ZipFile(folder / "model.torchscript.pt", "a") as archive:
        archive.writestr("model/extra/more", "x")
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.CONSENT_REQUIRED)):
        read(Source(checkpoint=folder / "model.torchscript.pt"), tmp_path)


def test_only_the_recorded_digest_is_trusted(alone: Path) -> None:
    source = Source(checkpoint=alone / PROGRAMS[0], trust=True)
    checkpoint = read_checkpoint(source, Progress(tell=ignore_events, logs=alone / "logs"))
    assert read(replace(source, trust=False, recorded=checkpoint.digest), alone) == "torchscript"
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.CONSENT_REQUIRED)):
        read(replace(source, trust=False, recorded="0" * 64), alone)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("look", [inspect, validate, localise])
def test_no_command_opens_an_unknown_program(
    alone: Path, look: Callable[..., object], name: str, digits_source: Source
) -> None:
    more = {} if look is inspect else {"against": digits_source}
    with pytest.raises(ModelcError) as caught:
        look(alone / name, **more)
    if look is not localise or name == PROGRAMS[0]:  # a .pt2 is not one to be looked into at all
        assert "trust" in caught.value.options


def test_a_trusted_or_recorded_program_is_inspected(alone: Path, exported_digits: Path) -> None:
    trusted = inspect(alone / PROGRAMS[0], trust=True)
    recorded = inspect(exported_digits / PROGRAMS[0])
    assert trusted.inspection == recorded.inspection


def test_an_unknown_engine_is_not_loaded(tmp_path: Path, digits_source: Source) -> None:
    (tmp_path / "m.engine").write_bytes(b"ftrt" + bytes(40))
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.CONSENT_REQUIRED)):
        validate(tmp_path / "m.engine", against=digits_source)


def test_a_folder_made_from_a_trusted_program_is_judged_again_without_trust(
    alone: Path, order: Orders
) -> None:
    source = Source(checkpoint=alone / PROGRAMS[0], trust=True)
    made = run(order("onnx", source=source, out=alone / "out"))
    assert made.passed
    again = validate(alone / "out", moved=Moved())
    assert again.exit_code == 0


def test_trust_is_checked_before_any_step_of_a_framework(alone: Path, order: Orders) -> None:
    told: list[object] = []
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.CONSENT_REQUIRED)):
        run(order("onnx", source=Source(checkpoint=alone / PROGRAMS[1])), told.append)
    assert not [event for event in told if isinstance(event, Noted)]


def test_the_factory_of_the_user_is_recorded_with_its_digest(
    tmp_path: Path, order: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    code = "from torch import nn\n\ndef build():\n    return nn.Linear(3, 2)\n"
    (tmp_path / "their_nets.py").write_text(code)
    torch.save(torch.nn.Linear(3, 2).state_dict(), tmp_path / "w.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    source = Source(
        checkpoint=tmp_path / "w.pt", model="their_nets:build", inputs=("x:float32[b=1..4,3]",)
    )
    manifest = run(order("torchscript", source=source))
    assert manifest.checkpoint.factory == "their_nets:build"
    assert manifest.needs.files["their_nets.py"] == sha256(code.encode()).hexdigest()
