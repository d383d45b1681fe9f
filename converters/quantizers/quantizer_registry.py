"""The table of quantizers. To add one, add its name to the import line and to the tuple."""

from __future__ import annotations

from ...core.contract import Quantizer
from ...core.errors import unknown_name_error
from ...core.kinds import Precision
from . import modelopt_ptq, nncf_ptq, onnxruntime_static

QUANTIZERS: tuple[Quantizer, ...] = (onnxruntime_static, modelopt_ptq, nncf_ptq)


def find_quantizer(name: str, quantizers: tuple[Quantizer, ...] = QUANTIZERS) -> Quantizer:
    """Return the quantizer called `name`.

    Raises:
        UsageError: there is none.
    """
    for quantizer in quantizers:
        if name == quantizer.NAME:
            return quantizer
    raise unknown_name_error("quantizer", name, [quantizer.NAME for quantizer in quantizers])


def quantizers_for(
    consumer: str, precision: Precision, quantizers: tuple[Quantizer, ...] = QUANTIZERS
) -> tuple[Quantizer, ...]:
    """Return the quantizers for a consumer and a precision, best first."""
    way = (consumer, precision)
    return tuple(quantizer for quantizer in quantizers if way in quantizer.METHODS)


def needs_no_samples(consumer: str, precision: Precision) -> bool:
    """Return whether a consumer's quantizers for a precision, one or more, need no samples."""
    able = quantizers_for(consumer, precision)
    return bool(able) and all((consumer, precision) in one.DATA_FREE for one in able)
