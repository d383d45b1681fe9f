"""JSON: the manifest itself, by the schema that it names."""

from __future__ import annotations

from ..core.manifest import Manifest


def render_json(manifest: Manifest) -> str:
    """The manifest as indented JSON; `schema_version` says by which schema to read it."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(manifest), indent=1).decode() + "\n"
