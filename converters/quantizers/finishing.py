"""The last steps on every Q/DQ model: its biases corrected, its scales checked, saved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.contract import QuantizeJob
from ..guarded import call_framework
from .activations import ActivationStats
from .bias_correction import correct_biases
from .folding import fold_weights
from .guard import check_quantized
from .wiring import sort_nodes
from .workplace import QuantizerWorkspace, make_names_unique

if TYPE_CHECKING:
    import onnx

_NAME = "model.onnx"
_FLOAT_WEIGHTS = "tensorrt-onnx"  # TensorRT reads weights in floats, before a Q and a DQ


@dataclass(frozen=True, kw_only=True)
class FinishedModel:
    """The saved model, how many products are in 8 bits, and how many biases were corrected."""

    path: Path
    products: int
    corrected: int


def finish_model(
    model: onnx.ModelProto,
    job: QuantizeJob,
    place: QuantizerWorkspace,
    activations: ActivationStats,
) -> FinishedModel:
    """Correct, check and save `model`, which is changed; the workplace is cleared.

    Raises:
        ConversionError: nothing is quantized, or a scale cannot be right.
    """
    import onnx

    corrected = call_framework(
        "bias correction", lambda: correct_biases(model, place.load(), activations.means)
    )
    products = check_quantized(model, activations.useful)
    if job.consumer != _FLOAT_WEIGHTS:
        fold_weights(model)
    make_names_unique(model.graph)
    sort_nodes(model.graph)
    path = job.folder / _NAME
    data = f"{_NAME}.data"
    call_framework(
        "the ONNX writer",
        lambda: onnx.save(
            model,
            str(path),
            save_as_external_data=place.external,
            location=data if place.external else None,
        ),
    )
    call_framework("the ONNX checker", lambda: onnx.checker.check_model(str(path)))
    place.clear()
    return FinishedModel(path=path, products=products, corrected=corrected)
