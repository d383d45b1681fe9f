"""What a run may replace in its output folder: its own files, never the user's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.core.contract import Target
from modelc.core.errors import ErrorCode, UsageError
from modelc.pipeline.manifest_file import read_manifest, write_manifest
from modelc.pipeline.order import Judging, Order, Wanted
from modelc.pipeline.output_folder import FOLDER_LOCK, open_folder
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_folder import validate_folder
from modelc.validators.tolerance import TOLERANCES

from ..reasons import has_code

Orders = Callable[..., Order]


@pytest.fixture
def targets(fake: Callable[..., Target]) -> tuple[Target, ...]:
    return (fake(),)


def test_a_foreign_file_with_the_name_of_an_artifact_is_kept(
    order: Orders, targets: tuple[Target, ...]
) -> None:
    wanted = order(targets[0].NAME)
    wanted.out.mkdir(parents=True)
    foreign = wanted.out / f"model{targets[0].SUFFIX}"
    foreign.write_text("mine")
    with pytest.raises(UsageError, check=has_code(ErrorCode.FILE_EXISTS)):
        run(wanted, targets=targets)
    assert foreign.read_text() == "mine"


def test_a_checkpoint_in_the_output_folder_is_never_replaced(
    order: Orders, targets: tuple[Target, ...]
) -> None:
    wanted = order(targets[0].NAME)
    wanted.out.mkdir(parents=True)
    inside = wanted.out / f"model{targets[0].SUFFIX}"
    shutil.copy(wanted.source.checkpoint, inside)
    before = inside.read_bytes()
    wanted = replace(wanted, source=replace(wanted.source, checkpoint=inside), overwrite=True)
    with pytest.raises(UsageError, check=has_code(ErrorCode.SAME_FILE)):
        run(wanted, targets=targets)
    assert inside.read_bytes() == before


def test_logs_of_the_user_are_kept(order: Orders, targets: tuple[Target, ...]) -> None:
    wanted = order(targets[0].NAME)
    (wanted.out / "logs").mkdir(parents=True)
    (wanted.out / "logs" / "train.log").write_text("mine")
    run(wanted, targets=targets)
    assert (wanted.out / "logs" / "train.log").read_text() == "mine"


def test_a_second_run_in_the_same_folder_is_an_error(tmp_path: Path) -> None:
    with (
        open_folder(tmp_path),
        pytest.raises(UsageError, check=has_code(ErrorCode.FOLDER_BUSY)),
        open_folder(tmp_path),
    ):
        pass
    assert not (tmp_path / FOLDER_LOCK).exists()


@pytest.mark.parametrize("name", ["logs", "rejected", "replaced", "worst"])
def test_a_file_with_the_name_of_an_own_folder_is_a_usage_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with (
        pytest.raises(UsageError, check=has_code(ErrorCode.FILE_EXISTS, naming=name)),
        open_folder(tmp_path),
    ):
        pass
    assert (tmp_path / name).read_text() == "mine"


def test_the_same_weights_in_other_code_are_another_model(
    order: Orders, targets: tuple[Target, ...]
) -> None:
    wanted = order(targets[0].NAME)
    run(wanted, targets=targets)
    manifest = read_manifest(wanted.out)
    assert manifest is not None
    other = {name: (mean, norm * 2) for name, (mean, norm) in manifest.fingerprint.items()}
    write_manifest(replace(manifest, fingerprint=other), wanted.out)
    with pytest.raises(UsageError, check=has_code(ErrorCode.FOLDER_OCCUPIED)):
        run(wanted, targets=targets)


def test_a_looser_validation_does_not_change_the_next_one(exported_digits: Path) -> None:
    loose = validate_folder(exported_digits, judging=Judging(rtol=1.0, min_sqnr=10.0))
    tight = validate_folder(exported_digits)
    assert {v.tolerance.min_sqnr for v in loose.verdicts} == {10.0}
    assert {v.tolerance.min_sqnr for v in tight.verdicts} == {
        TOLERANCES[artifact.precision].min_sqnr for artifact in tight.artifacts
    }


def test_a_folder_behind_a_link_can_be_validated_again(tmp_path: Path, order: Orders) -> None:
    far = tmp_path / "far" / "away"
    far.mkdir(parents=True)
    (tmp_path / "link").symlink_to(far)
    wanted = replace(
        order("torchscript"), out=tmp_path / "link", wanted=(Wanted(target="torchscript"),)
    )
    run(wanted)
    assert validate_folder(tmp_path / "link").passed
