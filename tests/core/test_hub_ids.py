from __future__ import annotations

from pathlib import Path

import pytest

from modelc.core.hub_ids import HubId, find_hub_id, is_commit, name_checkpoint

COMMIT = "0123456789abcdef" * 2 + "01234567"


@pytest.mark.parametrize("text", ["hf://org/name", "hf://org/name@main/folder/model.safetensors"])
def test_an_id_survives_pathlib(text: str) -> None:
    assert find_hub_id(text) == text
    assert find_hub_id(Path(text)) == text
    assert name_checkpoint(Path(text)) == text


@pytest.mark.parametrize("text", ["weights.pt", "/hf:/x", "out/hf:/org/name", "hf", "https://x"])
def test_a_path_is_no_id(text: str) -> None:
    assert find_hub_id(Path(text)) == ""
    assert name_checkpoint(Path(text)) == str(Path(text))


def test_a_pinned_id_names_the_commit_and_the_place() -> None:
    origin = HubId(repo="org/name", revision="main", place="text").pin(COMMIT)
    assert origin.id == f"hf://org/name@{COMMIT}/text"
    assert origin.exact.id == origin.id
    assert origin.exact.revision == ""


def test_a_branch_with_a_slash_is_one_part_of_the_id() -> None:
    assert HubId(repo="org/name", revision="refs/pr/3").id == "hf://org/name@refs%2Fpr%2F3"


@pytest.mark.parametrize("text", ["main", COMMIT[:-1], COMMIT.upper(), f"{COMMIT}\n", ""])
def test_what_is_no_whole_commit(text: str) -> None:
    assert not is_commit(text)
