"""Which distributions are loaded, by what is known of them without importing any."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from ...core.digest import sha256_of
from ..environment import environment
from .places import is_folder_of_packages


def loaded_packages() -> dict[str, str]:
    """What `installed_as` says of each loaded distribution that the key does not have."""
    keyed = set(environment())
    tops = {name.partition(".")[0] for name in list(sys.modules)}
    owners = _owners()
    names = {dist for top in tops for dist in owners.get(top, ())} - keyed - {"modelc"}
    names |= {top for top in tops if top not in owners and _is_put_there(top)}
    return {name: _as_loaded(name) for name in sorted(names)}


@functools.cache
def _as_loaded(name: str) -> str:
    """As it was when it was first seen in this process, which goes on with what it loaded."""
    return installed_as(name)


@functools.cache
def _owners() -> Mapping[str, Sequence[str]]:
    """Distributions by top-level module; it reads the metadata of all of them."""
    return metadata.packages_distributions()


def installed_as(name: str) -> str:
    """Version, and a digest of its list of files: a package may change under one version.

    A module among the packages that is of none of them has no version. Empty where there is none.
    """
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return _put_there(name)
    listed = found.read_text("RECORD") or ""
    return f"{found.version} {hashlib.sha256(listed.encode()).hexdigest()[:16]}"


def _is_put_there(top: str) -> bool:
    """Whether a loaded module lies among the packages and is of none, as one put there by hand is.

    Names with `_` before them are of tools: of virtualenv, of packages installed to be edited.
    """
    file = getattr(sys.modules.get(top), "__file__", None)
    if not isinstance(file, str) or top.startswith("_"):
        return False
    place = Path(file)
    folder = place.parent.parent if place.stem == "__init__" else place.parent
    return is_folder_of_packages(folder)  # deeper in it a package has put it on the path


def _put_there(top: str) -> str:
    """A digest of its Python files; empty where there is none."""
    folders = [one for one in sys.path if is_folder_of_packages(Path(one))]
    found = PathFinder.find_spec(top, folders) if top.isidentifier() else None
    if found is None or found.origin is None:
        return ""
    place = Path(found.origin)
    files = sorted(place.parent.rglob("*.py")) if found.submodule_search_locations else [place]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(place.parent).as_posix()}\0{sha256_of(file)}\n".encode())
    return f"unversioned {digest.hexdigest()[:16]}"
