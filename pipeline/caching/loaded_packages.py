"""Which distributions are loaded, by what is known of them without importing any."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata

from ..environment import environment


def loaded_packages() -> dict[str, str]:
    """What `installed_as` says of each loaded distribution that the key does not have."""
    keyed = set(environment())
    tops = {name.partition(".")[0] for name in list(sys.modules)}
    owners = _owners()
    names = {dist for top in tops for dist in owners.get(top, ())} - keyed - {"modelc"}
    return {name: _as_loaded(name) for name in sorted(names)}


def is_owned(top: str) -> bool:
    """Whether a distribution has the top-level module of that name, or made it when installed."""
    return top in _owners() or top.startswith("__editable__")


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

    Empty where it is not installed.
    """
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return ""
    listed = found.read_text("RECORD") or ""
    return f"{found.version} {hashlib.sha256(listed.encode()).hexdigest()[:16]}"
