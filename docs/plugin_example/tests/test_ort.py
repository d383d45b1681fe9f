"""The target is held to what modelc's own targets are held to."""

from __future__ import annotations

import modelc_ort

from modelc.testing import TargetContract


class TestOrt(TargetContract):
    """`.ort`, made from the ONNX of a small net."""

    target = modelc_ort
