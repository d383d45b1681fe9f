"""The name under which modelc is installed, and how to install what its extras bring.

The command and the import are `modelc`. On the package index that name belongs to another
project, so no hint, page or template installs modelc by name: it is installed from its repository.
"""

from __future__ import annotations

DISTRIBUTION = "modelc-toolchain"

# One package each. A hint installs the package itself: that works however modelc was installed.
EXTRAS = {
    "hf": "transformers>=5.0",
    "remote": "fsspec>=2024.6",
    "sign": "cryptography>=44.0",
    "sbom": "cyclonedx-python-lib>=9.0",
}


def hint_for_extra(extra: str) -> str:
    """The command that installs what an extra of modelc brings."""
    return f"pip install '{EXTRAS[extra]}'"
