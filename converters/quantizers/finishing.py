"""The last steps on every Q/DQ model: its biases corrected, its scales checked, saved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.contract import QuantizeJob
from ..guarded import call_framework
from .activations import Activations
from .bias_correction import correct_biases
from .folding import fold_weights
from .guard import check
from .wiring import put_in_order
from .workplace import Workplace, tell_apart

if TYPE_CHECKING:
    import onnx

_NAME = "model.onnx"
_FLOAT_WEIGHTS = "tensorrt-onnx"  # TensorRT reads weights in floats, before a Q and a DQ


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The saved model, how many products are in 8 bits, and how many biases were corrected."""

    path: Path
    products: int
    corrected: int


def finish(
    model: onnx.ModelProto, job: QuantizeJob, place: Workplace, activations: Activations
) -> Finished:
    """Correct, check and save `model`, which is changed; the workplace is cleared.

    Raises:
        ConversionError: nothing is quantized, or a scale cannot be right.
    """
    import onnx

    corrected = call_framework(
        "bias correction", lambda: correct_biases(model, place.load(), activations.means)
    )
    products = check(model, activations.useful)
    if job.consumer != _FLOAT_WEIGHTS:
        fold_weights(model)
    tell_apart(model.graph)
    put_in_order(model.graph)
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
    return Finished(path=path, products=products, corrected=corrected)
