"""Versions of installed packages, asked without importing them."""

from __future__ import annotations

from importlib import metadata


def versions(*packages: str) -> dict[str, str]:
    """Installed versions by distribution name; those not installed are left out."""
    found: dict[str, str] = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
