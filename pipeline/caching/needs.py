"""What a result needed beside its key, looked at again: does it still hold?"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from ...core.digest import sha256_of
from ...core.records import Needs
from .digests import Digests
from .loaded_packages import installed_as
from .missing import found_of

ABSENT = "absent"  # what was looked for and was not there
PRESENT = "present"  # what was looked for and was there, and nobody read it
UNSURE = "unsure"  # what changed meanwhile, or cannot be known: no digest is ever equal to it


def unmet(needs: Needs, root: Path, digests: Digests) -> str:
    """What changed of what a result needed; empty where nothing did.

    Args:
        needs: what was read when it was made.
        root: the folder that its paths are relative to.
        digests: what remembers digests of files.
    """
    kinds = (_files, _packages, _variables, _modules)
    return next((told for kind in kinds for told in kind(needs, root, digests)), "")


def _files(needs: Needs, root: Path, digests: Digests) -> Iterator[str]:
    for name, then in needs.files.items():
        if then == UNSURE:
            yield f"{name}: what was read of it cannot be known again"
            continue
        now = _now(root / name, name, then, digests)
        if now != then:
            yield _told(name, then, now)


def _packages(needs: Needs, _: Path, digests: Digests) -> Iterator[str]:
    for name, then in needs.packages.items():
        now = digests.once(f"package {name}", partial(installed_as, name))
        if now != then:
            versions = (then.partition(" ")[0], now.partition(" ")[0] or "not installed")
            yield f"the package {name} changed: {' -> '.join(versions)}"


def _variables(needs: Needs, _: Path, __: Digests) -> Iterator[str]:
    for name, then in needs.variables.items():
        now = digest_of_value(os.environ.get(name))
        if now != then:
            yield _told(f"the environment variable {name}", then, now)


def _modules(needs: Needs, root: Path, _: Digests) -> Iterator[str]:
    for name in found_of(needs.missing, root):
        yield _told(f"the module {name}", ABSENT, PRESENT)


def merged(one: Needs, other: Needs) -> Needs:
    """What both needed; a file that each of them read with other bytes is in doubt."""
    files = dict(one.files)
    for name, digest in other.files.items():
        files[name] = joined(files.get(name, digest), digest)
    return Needs(
        files=files,
        packages=_alike(one.packages, other.packages),
        variables=_alike(one.variables, other.variables),
        missing={
            name: tuple(sorted({*one.missing.get(name, ()), *other.missing.get(name, ())}))
            for name in sorted(one.missing.keys() | other.missing.keys())
        },
    )


def _alike(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Both; what they do not say alike is in doubt."""
    shared = {name: told if one.get(name, told) == told else UNSURE for name, told in other.items()}
    return {**one, **shared}


def joined(one: str, other: str) -> str:
    """What two looks at a name say: that something was there says less than what was in it."""
    known = {one, other} - {PRESENT}
    if len(known) == 1 and (one == other or ABSENT not in known):
        return known.pop()
    return UNSURE if known else PRESENT


def digest_of_value(value: str | None) -> str:
    """SHA-256 of a variable's value, `ABSENT` where it is not set."""
    return ABSENT if value is None else hashlib.sha256(os.fsencode(value)).hexdigest()


def digest_now(path: Path, digest: Callable[[Path], str] = sha256_of) -> str:
    """The SHA-256 of a file, `ABSENT` where there is none, `UNSURE` where it is no plain file."""
    try:
        if path.is_file():
            return digest(path)
        return UNSURE if path.exists() else ABSENT
    except OSError:
        return UNSURE


def names_now(folder: Path) -> str:
    """One digest over the names in a folder, without what Python itself puts there."""
    try:
        names = sorted(one.name for one in folder.iterdir() if one.name != "__pycache__")
    except NotADirectoryError:
        return UNSURE
    except FileNotFoundError:
        return ABSENT
    return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()


def _now(path: Path, name: str, then: str, digests: Digests) -> str:
    if then == PRESENT:
        return PRESENT if path.exists() else ABSENT
    return names_now(path) if name.endswith("/") else digest_now(path, digests.of)


def _told(name: str, then: str, now: str) -> str:
    if now == ABSENT:
        return f"{name} is gone"
    if then == ABSENT:
        return f"{name} is new"
    return f"{name} changed"
