"""Nothing is written or removed through a link that was planted in an output folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from modelc.core.atomic_write import atomic_write, draft_file, find_drafts
from modelc.core.contract import Target
from modelc.core.errors import ErrorCode, UsageError
from modelc.pipeline.manifest_file import COMMIT_FOLDER, finish_commit
from modelc.pipeline.order import Order
from modelc.pipeline.output_folder import open_folder
from modelc.pipeline.run_order import run

from ..reasons import has_code

Fakes = Callable[..., Target]
Orders = Callable[..., Order]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of the user's, with a file."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "mine").write_text("precious")
    return place


@pytest.mark.parametrize(
    "name",
    ["rejected", "replaced", "logs", "worst", "manifest.json", ".modelc.lock", COMMIT_FOLDER],
)
@pytest.mark.parametrize("dangling", [True, False])
def test_a_link_in_place_of_an_own_file_is_an_error(
    tmp_path: Path, elsewhere: Path, name: str, dangling: bool
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).symlink_to(elsewhere / ("none" if dangling else "."))
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSAFE_PATH)), open_folder(out):
        pass
    assert [path.name for path in elsewhere.iterdir()] == ["mine"]


def test_a_link_in_place_of_an_artifact_is_an_error(
    order: Orders, fake: Fakes, elsewhere: Path
) -> None:
    target = fake()
    asked = order(target.NAME)
    asked.out.mkdir(parents=True)
    (asked.out / f"model{target.SUFFIX}").symlink_to(elsewhere / "mine")
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSAFE_PATH)):
        run(asked, targets=(target,))
    assert (elsewhere / "mine").read_text() == "precious"


def test_a_log_that_is_a_link_is_replaced(order: Orders, fake: Fakes, elsewhere: Path) -> None:
    target = fake()
    asked = order(target.NAME)
    (asked.out / "logs").mkdir(parents=True)
    for name in ("checkpoint.log", "eager.log", f"{target.NAME}.log"):
        (asked.out / "logs" / name).symlink_to(elsewhere / "mine")
    run(asked, targets=(target,))
    assert (elsewhere / "mine").read_text() == "precious"


@pytest.mark.parametrize(
    "changes",
    [{"removals": ["link/mine"]}, {"moves": [{"source": "a", "name": "link/mine"}]}],
)
def test_a_planted_commit_changes_nothing_behind_a_link(
    tmp_path: Path, elsewhere: Path, changes: dict[str, object]
) -> None:
    out = tmp_path / "out"
    (out / COMMIT_FOLDER).mkdir(parents=True)
    (out / "a").write_text("planted")
    (out / "link").symlink_to(elsewhere)
    (out / COMMIT_FOLDER / "commit.json").write_text(json.dumps(changes))
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_MANIFEST)):
        finish_commit(out)
    assert (elsewhere / "mine").read_text() == "precious"


def test_the_name_of_a_draft_is_random(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with draft_file(tmp_path / "m.json") as draft:
            names.add(draft.name)
            assert [path for path, _ in find_drafts(tmp_path)] == [draft]
            assert not draft.is_symlink()
    assert len(names) == 3


def test_a_link_is_replaced_by_a_file(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "report.html").symlink_to(elsewhere / "mine")
    atomic_write(tmp_path / "report.html", b"new")
    assert (elsewhere / "mine").read_text() == "precious"
    assert not (tmp_path / "report.html").is_symlink()
