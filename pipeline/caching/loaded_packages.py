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
from ..environment import describe_environment
from .places import is_packages_folder

_TOOL_PREFIXES = ("__editable__", "_virtualenv")  # what installers put beside packages


def list_loaded_packages() -> dict[str, str]:
    """What `installed_as` says of each loaded distribution that the key does not have."""
    keyed = set(describe_environment())
    tops = {name.partition(".")[0] for name in list(sys.modules)}
    owners = _distributions_by_module()
    own = set(owners.get("modelc", ()))
    names = {dist for top in tops for dist in owners.get(top, ())} - keyed - own
    names |= {top for top in tops if top not in owners and _is_stray_module(top)}
    return {name: _version_when_loaded(name) for name in sorted(names)}


@functools.cache
def _version_when_loaded(name: str) -> str:
    """As it was when it was first seen in this process, which goes on with what it loaded."""
    return describe_installed(name)


@functools.cache
def _distributions_by_module() -> Mapping[str, Sequence[str]]:
    """Distributions by top-level module; it reads the metadata of all of them."""
    return metadata.packages_distributions()


def describe_installed(name: str) -> str:
    """Version, and a digest of its list of files: a package may change under one version.

    A module among the packages that is of none of them has no version. Empty where there is none.
    """
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return _digest_stray_module(name)
    listed = found.read_text("RECORD") or ""
    return f"{found.version} {hashlib.sha256(listed.encode()).hexdigest()[:16]}"


def _is_stray_module(top: str) -> bool:
    """Whether a loaded module lies among the packages and is of none, as one put there by hand is.

    It lies in the folder of packages itself: what is deeper a package has put on the path.
    """
    module = sys.modules.get(top)
    if module is None or top.startswith(_TOOL_PREFIXES):
        return False
    file = getattr(module, "__file__", None)
    places = [file] if isinstance(file, str) else list(getattr(module, "__path__", ()))
    found = (place.parent if place.stem == "__init__" else place for place in map(Path, places))
    return any(is_packages_folder(place.parent) for place in found)


def _digest_stray_module(top: str) -> str:
    """A digest of all its files; empty where there is none."""
    folders = [one for one in sys.path if is_packages_folder(Path(one))]
    found = PathFinder.find_spec(top, folders) if top.isidentifier() else None
    if found is None:
        return ""
    digest = hashlib.sha256()
    roots = [Path(one) for one in found.submodule_search_locations or ()]
    for root in roots or [Path(found.origin or "")]:
        for file in [root] if root.is_file() else sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                name = file.relative_to(root.parent).as_posix()
                digest.update(f"{name}\0{sha256_of(file)}\n".encode())
    return f"unversioned {digest.hexdigest()[:16]}"
