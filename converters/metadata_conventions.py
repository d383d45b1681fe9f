"""Keys beside modelc's own by which other tools find class names and the licence.

Sources: ONNX's IR.md (`model_license`), Ultralytics' loaders (`names`, a Python dict as text), and
OpenVINO's Model API and DL Streamer (`model_info/labels`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

META = "meta"  # the key of the metadata's JSON
LICENSE, NAMES = "model_license", "names"
ONNX_KEYS = (LICENSE, NAMES)


def onnx_properties(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of `metadata_props` that other tools read."""
    meta = _declared(metadata)
    names = {index: str(name) for index, name in enumerate(meta.get("classes", ()))}
    found = {LICENSE: str(meta.get("license", "")), NAMES: str(names) if names else ""}
    return {key: text for key, text in found.items() if text}


def openvino_labels(metadata: Mapping[str, str]) -> str:
    """Return the labels as OpenVINO's Model API reads them; empty without classes."""
    names = (str(name) for name in _declared(metadata).get("classes", ()))
    return " ".join("_".join(name.split()) for name in names)


def _declared(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON of what this run declares."""
    found: dict[str, Any] = json.loads(metadata.get(META) or "{}")
    return found
