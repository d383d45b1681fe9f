"""Ids of models on the Hugging Face Hub: `hf://org/name@revision/place`. Loads no library."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

HUB_SCHEME = "hf://"
_COLLAPSED = "hf:/"  # what pathlib makes of it
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True)
class HubOrigin:
    """A commit on the Hugging Face Hub that a checkpoint was read from.

    `repo` is `org/name`, `commit` a SHA-1 of 40 hex digits. `revision` is the branch, tag or commit
    that was asked for; empty for the default branch. `place` is a folder or file of the repository;
    empty for its root.
    """

    repo: str
    commit: str
    revision: str = ""
    place: str = ""

    @property
    def id(self) -> str:
        """The id of this very commit."""
        return _join_id(self.repo, self.commit, self.place)

    @property
    def exact(self) -> HubOrigin:
        """The same files, whatever revision was asked for."""
        return HubOrigin(repo=self.repo, commit=self.commit, place=self.place)


@dataclass(frozen=True, kw_only=True)
class HubId:
    """A parsed id: a repository, the revision asked for and the place in it; both may be empty."""

    repo: str
    revision: str = ""
    place: str = ""

    @property
    def id(self) -> str:
        """The id as typed."""
        return _join_id(self.repo, self.revision.replace("/", "%2F"), self.place)

    def pin(self, commit: str) -> HubOrigin:
        """Return the origin of the commit that the revision stands for."""
        return HubOrigin(repo=self.repo, commit=commit, revision=self.revision, place=self.place)


def _join_id(repo: str, revision: str, place: str) -> str:
    at = f"@{revision}" if revision else ""
    return f"{HUB_SCHEME}{repo}{at}{f'/{place}' if place else ''}"


def find_hub_id(path: PurePath | str) -> str:
    """Return the hub's id that a path or a text spells; empty if it is a path of this system.

    A `Path` of `hf://org/name` has lost a slash.
    """
    text = path.as_posix() if isinstance(path, PurePath) else path
    if text.startswith(HUB_SCHEME):
        return text
    if text.startswith(_COLLAPSED):
        return HUB_SCHEME + text.removeprefix(_COLLAPSED)
    return ""


def name_checkpoint(path: PurePath | str) -> str:
    """Return a checkpoint's path or id as typed, for messages."""
    return find_hub_id(path) or str(path)


def is_commit(text: str) -> bool:
    """Whether a text is a whole SHA-1 of git."""
    return _COMMIT.fullmatch(text) is not None
