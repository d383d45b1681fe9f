"""What a result needed beside its key, looked at again: does it still hold?"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from ...core.digest import sha256_of
from ...core.errors import UsageError
from ...core.records import Needs
from .digests import FileDigests
from .loaded_packages import describe_installed

ABSENT = "absent"  # what was opened and was not there
_VARIABLE = "env:"
UNSURE = "unsure"  # what changed meanwhile, or cannot be known: no digest is ever equal to it


def find_unmet_dependency(needs: Needs, root: Path, digests: FileDigests) -> str:
    """What changed of what a result needed; empty where nothing did.

    Args:
        needs: what was read when it was made.
        root: the folder that its paths are relative to.
        digests: what remembers digests of files.
    """
    kinds = (_find_changed_file, _find_changed_package, _find_changed_declared)
    return next((told for kind in kinds for told in kind(needs, root, digests)), "")


def _find_changed_file(needs: Needs, root: Path, digests: FileDigests) -> Iterator[str]:
    for name, then in needs.files.items():
        if then == UNSURE:
            yield f"{name}: what was read of it cannot be known again"
            continue
        now = digest_now(root / name, digests.of)
        if now != then:
            yield _describe_change(name, then, now)


def _find_changed_package(needs: Needs, _: Path, digests: FileDigests) -> Iterator[str]:
    for name, then in needs.packages.items():
        now = digests.once(f"package {name}", partial(describe_installed, name))
        if now != then:
            versions = (then.partition(" ")[0], now.partition(" ")[0] or "not installed")
            yield f"the package {name} changed: {' -> '.join(versions)}"


def _find_changed_declared(needs: Needs, root: Path, digests: FileDigests) -> Iterator[str]:
    for entry, then in needs.declared.items():
        if digest_declared(entry, root, digests.of) != then:
            yield f"what depends names with {entry!r} changed"


def merge_dependencies(one: Needs, other: Needs) -> Needs:
    """What both needed; a file that each of them read with other bytes is in doubt."""
    files = dict(one.files)
    for name, digest in other.files.items():
        files[name] = merge_digests(files.get(name, digest), digest)
    return Needs(
        files=files,
        packages=_merge_mappings(one.packages, other.packages),
        declared=_merge_mappings(one.declared, other.declared),
    )


def _merge_mappings(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Both; what they do not say alike is in doubt."""
    shared = {name: told if one.get(name, told) == told else UNSURE for name, told in other.items()}
    return {**one, **shared}


def merge_digests(one: str, other: str) -> str:
    """What two reads of a file say: the digest where they agree."""
    return one if one == other else UNSURE


def digest_now(path: Path, digest: Callable[[Path], str] = sha256_of) -> str:
    """The SHA-256 of a file, `ABSENT` where there is none, `UNSURE` where it is no plain file."""
    try:
        if path.is_file():
            return digest(path)
        return UNSURE if path.exists() else ABSENT
    except OSError:
        return UNSURE


def digest_declared(entry: str, root: Path, digest: Callable[[Path], str] = sha256_of) -> str:
    """One digest over the names and bytes that an entry of `depends` names.

    Args:
        entry: a glob relative to `root`, where a folder stands for all files below it; or
            `env:NAME`, an environment variable.
        root: the folder of modelc.toml.
        digest: of one file.
    """
    if entry.startswith(_VARIABLE):
        value = os.environ.get(entry.removeprefix(_VARIABLE))
        parts = [ABSENT if value is None else value]
    else:
        parts = [
            f"{path.as_posix()}\0{digest_now(path, digest)}"
            for path in list_declared_files(entry, root)
        ]
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()


def list_declared_files(entry: str, root: Path) -> list[Path]:
    """The files that a glob names, and those below folders that it names; sorted."""
    named = glob.glob(entry, root_dir=root, recursive=True)  # noqa: PTH207 - an entry may be absolute
    found: set[Path] = set()
    for path in (root / name for name in named):
        below = path.rglob("*") if path.is_dir() else [path]
        found |= {one for one in below if one.is_file() and "__pycache__" not in one.parts}
    return sorted(found)


def check_declared_entries(entries: Sequence[str], root: Path) -> None:
    """Refuse an entry of `depends` that names nothing.

    Raises:
        UsageError: there is no file of that name below the folder.
    """
    for entry in entries:
        if entry == _VARIABLE or (
            not entry.startswith(_VARIABLE) and not list_declared_files(entry, root)
        ):
            raise UsageError(
                f"depends: {entry!r} names no file in {root}",
                hint="give files, globs such as configs/*.yaml, or env:NAME",
            )


def _describe_change(name: str, then: str, now: str) -> str:
    if now == ABSENT:
        return f"{name} is gone"
    if then == ABSENT:
        return f"{name} is new"
    return f"{name} changed"
