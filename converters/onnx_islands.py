"""Parts of an FP32 model that compute in half precision, as `torch.autocast` in forward makes them.

ONNX Runtime has no bfloat16 operators for the CPU, and opens no file that holds them; float16 it
computes in float32 without a word. An FP32 file is to open, and to compute, as it is: such parts
are written in float32, each result rounded to the half type as eager rounds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .guarded import call_framework
from .onnx_rounding import computes_in_half, emulate_half, half_types

if TYPE_CHECKING:
    from pathlib import Path


def widen_half_regions(path: Path) -> tuple[str, ...]:
    """Rewrite the file where parts of it compute in half precision; returns notes.

    Weights that lie beside the file stay there, and stay half; a Cast brings them to float32.

    Raises:
        ConversionError: the file could not be read, or not be written anew.
    """
    import onnx

    model = call_framework("onnx", lambda: onnx.load(str(path), load_external_data=False))
    if not computes_in_half(model):
        return ()
    kinds = " and ".join(half_types(model))
    call_framework("onnx", lambda: onnx.save(emulate_half(model, float_io=False), str(path)))
    return (f"what the model computes in {kinds} is computed in float32 and rounded to it",)
