"""INT8 before conversion: a quantizer run on the parent, or its result from the cache."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ..converters.onnx_origins import debug_sidecar_path
from ..core.contract import CalibrationFeeds, Quantized, QuantizeJob, Quantizer
from ..core.errors import ConversionError, Hint, Option
from ..core.precision import Precision
from ..core.records import Coverage
from ..core.signature import Signature
from .calibration_cache import CalibrationCache, quantization_key
from .plan import Step
from .stage import Progress


@dataclass(frozen=True, kw_only=True)
class QuantizationTask:
    """What one quantizer is to do for one step; `keep` are names of the parent's nodes."""

    quantizer: Quantizer
    consumer: str
    parent: Path
    signature: Signature
    calibration: CalibrationFeeds
    method: str | None = None
    keep: tuple[str, ...] = ()


def quantize_parent(
    work: QuantizationTask, folder: Path, cache: CalibrationCache | None, stage: Progress
) -> Quantized:
    """Quantize in `folder`; the parent's debug sidecar is laid beside the result.

    Raises:
        ConversionError: the quantizer refused the model.
    """
    title = f"quantize {work.consumer} ({work.quantizer.NAME})"
    key = None if cache is None else quantization_key(work)
    with stage.step(
        title, log=f"quantize-{work.consumer}-{work.quantizer.NAME}", attempt=True
    ) as clock:
        found = None if cache is None or key is None else cache.take(key, folder)
        if found is None:
            result = work.quantizer.quantize(
                QuantizeJob(
                    parent=work.parent,
                    consumer=work.consumer,
                    signature=work.signature,
                    calibration=work.calibration,
                    folder=folder,
                    method=work.method,
                    keep=work.keep,
                    advance=lambda done, total: stage.advance(title, done, total),
                )
            )
            if cache is not None and key is not None:
                cache.keep(key, result, title)
        else:
            result = found
            clock.detail = "from the cache"
        sidecar = debug_sidecar_path(work.parent)
        if sidecar.exists():
            shutil.copyfile(sidecar, debug_sidecar_path(result.path))
    return result


def refuse_uncovered(step: Step, coverage: Coverage | None) -> None:
    """That INT8 is INT8: an artifact without an 8-bit layer is none, whatever it is called."""
    if step.wanted.precision is not Precision.INT8:
        return
    if coverage is None:
        raise ConversionError(
            f"what the layers of {step.name} compute in cannot be read, so it cannot pass as int8",
            hint="see the log of this step",
        )
    if not coverage.layers.get("int8"):
        found = ", ".join(f"{count} in {dtype}" for dtype, count in coverage.layers.items())
        raise ConversionError(
            f"int8 was asked for, and no layer of {step.name} computes in it ({found or 'none'})",
            hint=Hint(
                "keep fewer layers with ",
                Option("keep-fp"),
                ", or give another ",
                Option("quantizer"),
            ),
            option="keep-fp",
        )
