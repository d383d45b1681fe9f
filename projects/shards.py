"""Shards: each of several hosts runs a part of the models of a project."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ErrorCode, UsageError
from ..pipeline.cache.step_keys import canonical_bytes
from .project_records import ModelOrder
from .setting_layers import Overrides, select_model_overrides

MAX_SHARDS = 99_999
_SHARD = re.compile(r"(\d{1,5})/(\d{1,5})", re.ASCII)
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_SHARD_FILE = re.compile(r"run-(\d{1,5})-of-(\d{1,5})\.json", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Part `index` of `count`, from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @property
    def file(self) -> str:
        """The name of the record of this part, in the folder of all models."""
        return f"run-{self.index}-of-{self.count}.json"


@dataclass(frozen=True, kw_only=True)
class ShardRun:
    """Of which run a record is a part.

    `project` is a digest of the project file and of what was selected and overridden; `run` is
    the name that the user gave, if any; `models` are those of all parts, in the order of the file.
    """

    index: int
    count: int
    project: str
    models: tuple[str, ...]
    run: str = ""

    @property
    def shard(self) -> Shard:
        """The part."""
        return Shard(index=self.index, count=self.count)


def parse_shard(text: str) -> Shard:
    """Parse `2/8`.

    Raises:
        UsageError: it has another form, or there is no such part.
    """
    found = _SHARD.fullmatch(text.strip())
    index, count = map(int, found.groups()) if found else (0, 0)
    if not 1 <= index <= count:
        raise UsageError(
            f"--shard cannot be {text[:40]!r}",
            hint="write --shard 1/8 to --shard 8/8, one for each of 8 hosts",
            option="shard",
            code=ErrorCode.INVALID_VALUE,
        )
    return Shard(index=index, count=count)


def check_run_id(text: str) -> str:
    """Return the name of a run, which becomes the name of a folder.

    Raises:
        UsageError: it has other characters.
    """
    if text and not _RUN_ID.fullmatch(text):
        raise UsageError(
            f"--run-id cannot be {text[:40]!r}",
            hint="use up to 100 letters, digits, '.', '_' and '-'",
            option="run-id",
            code=ErrorCode.INVALID_VALUE,
        )
    return text


def select_shard(models: Sequence[ModelOrder], shard: Shard) -> tuple[ModelOrder, ...]:
    """Return the models of a part: each model is in one part, and all hosts agree on which.

    The models with most steps are dealt out first, each to the part with the fewest steps so far.
    """
    loads = [0] * shard.count
    mine: set[str] = set()
    for model in sorted(models, key=_sort_key):
        part = loads.index(min(loads))
        loads[part] += len(model.step_names)
        if part == shard.index - 1:
            mine.add(model.name)
    return tuple(model for model in models if model.name in mine)


def _sort_key(model: ModelOrder) -> tuple[int, str]:
    return -len(model.step_names), hashlib.sha256(model.name.encode()).hexdigest()


def digest_project(file: Path, given: Overrides, selected: Sequence[Sequence[str]]) -> str:
    """Return a digest of what has to be the same on all hosts.

    Settings of the run, such as folders and limits, may differ from host to host.

    Args:
        file: the project file.
        given: flags and variables.
        selected: the names and words that select models and artifacts.
    """
    shared = select_model_overrides(given)
    text = file.read_text(encoding="utf-8").split("\n")
    parts = [text, shared.sets, shared.environment, selected]
    return hashlib.sha256(canonical_bytes(parts)).hexdigest()


def find_shard_files(folder: Path) -> dict[Path, Shard]:
    """Return the records of parts in a folder."""
    found = {}
    for path in sorted(folder.glob("run-*-of-*.json")):
        named = _SHARD_FILE.fullmatch(path.name)
        if named and path.is_file():
            found[path] = Shard(index=int(named.group(1)), count=int(named.group(2)))
    return found
