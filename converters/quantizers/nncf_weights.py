"""NNCF's weight compression for OpenVINO: integer weights, float activations, no samples."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ...capture.framework_errors import call_framework
from ...core.contract import Quantized, QuantizeJob
from ...core.kinds import Precision
from ..installed_packages import package_versions
from ..openvino_weights import list_integer_weights
from .quantization_checks import NothingQuantizedError
from .quantizer_workspace import call_quietly

if TYPE_CHECKING:
    import openvino

METHODS = ("rtn",)
# Weights with one scale. On a tiny Llama with random weights, groups of 32 keep 16.4 dB, of 64 14.2
# and of 128 (NNCF's default) 12.7. Where the rows are no multiple, the largest smaller power of two
# that divides them; INT8 has one scale per channel.
GROUP = 32
_LEAST_GROUP = 8
_FILE = "model.xml"


def compress_weights(
    job: QuantizeJob, nncf: Any, model: openvino.Model, excluded: list[str]
) -> Quantized:
    """Compress the weights of `model`, all but those of the `excluded` nodes, and save the IR.

    In INT4, embeddings, convolutions and the last matrix product have 8 bits, as NNCF has it.

    Raises:
        ConversionError: NNCF rejected the model, or it has no layer that can be compressed.
    """
    import openvino

    four = job.precision is Precision.INT4
    size = job.group_size or GROUP
    made = call_quietly(
        "NNCF",
        lambda: nncf.compress_weights(
            model,
            mode=nncf.CompressWeightsMode.INT4_ASYM if four else nncf.CompressWeightsMode.INT8_ASYM,
            ignored_scope=nncf.IgnoredScope(names=excluded, validate=False) if excluded else None,
            **_group_settings(nncf, size) if four else {},
        ),
    )
    counts = Counter(stored for _, stored in list_integer_weights(made))
    if not counts[job.precision]:
        reason = f"it compressed no matrix to 4 bits, with groups of {_LEAST_GROUP} or more"
        raise NothingQuantizedError(
            reason if four else "it compressed no weight", kept=bool(job.keep)
        )
    path = job.folder / _FILE
    call_framework(
        "OpenVINO's writer", lambda: openvino.save_model(made, str(path), compress_to_fp16=False)
    )
    text = f"4 bits in groups of {size}" if four else "8 bits per channel"
    return Quantized(
        path=path,
        versions=package_versions("nncf", "openvino"),
        options={
            "quantizer": "nncf",
            "method": METHODS[0],
            "activations": "float",
            "weights": f"{text}, with zero points",
            "products": ", ".join(f"{counts[one]} in {one}" for one in sorted(counts)),
            "kept": ", ".join(job.keep),
        },
    )


def _group_settings(nncf: Any, size: int) -> dict[str, Any]:
    """Return the settings of groups: NNCF rejects a model with rows that are no multiple."""
    return {
        "group_size": size,
        "advanced_parameters": nncf.AdvancedCompressionParameters(
            group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST,
            min_adjusted_group_size=min(_LEAST_GROUP, size),
        ),
    }
