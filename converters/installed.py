"""Versions of installed packages, asked without importing them."""

from __future__ import annotations

from functools import cache
from importlib import metadata


def package_versions(*packages: str) -> dict[str, str]:
    """Installed versions by distribution name; those not installed are left out."""
    asked = ((package, _package_version(package)) for package in packages)
    return {package: version for package, version in asked if version is not None}


@cache
def _package_version(package: str) -> str | None:
    """Each is read once in a process: its metadata is parsed whole, and every step asks."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
