"""What a transformers config says of time series inputs. Duck-typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.dims import Dim
from ..core.signature import InputSpec, ValueRange
from .huggingface_config import number, numbers

if TYPE_CHECKING:
    from collections.abc import Sequence


def series_inputs(config: object, parameters: Sequence[str], batch: Dim) -> dict[str, InputSpec]:
    """The past, and where the decoder reads it the future, with their time features and masks."""
    context = number(config, "context_length")
    if context is None:
        return {}
    if "past_time_features" not in parameters:
        channels = number(config, "num_input_channels") or 1
        values = (batch, Dim.fixed(context), Dim.fixed(channels))
        return {"past_values": InputSpec(name="past_values", dtype="float32", dims=values)}
    ahead = number(config, "prediction_length") or 1
    past = Dim.fixed(context + max(numbers(config, "lags_sequence"), default=0))
    width = number(config, "input_size") or 1
    found = {
        "past_values": _floats("past_values", _shaped(batch, past, width)),
        "past_time_features": _floats("past_time_features", (batch, past, _features(config))),
        "past_observed_mask": InputSpec(
            name="past_observed_mask",
            dtype="float32",
            dims=_shaped(batch, past, width),
            values=ValueRange(low=1, high=1),
        ),
        "future_values": _floats("future_values", _shaped(batch, Dim.fixed(ahead), width)),
        "future_time_features": _floats(
            "future_time_features", (batch, Dim.fixed(ahead), _features(config))
        ),
    }
    return {**found, **_static(config, batch)}


def _shaped(batch: Dim, length: Dim, width: int) -> tuple[Dim, ...]:
    return (batch, length) if width == 1 else (batch, length, Dim.fixed(width))


def _features(config: object) -> Dim:
    return Dim.fixed(max(number(config, "num_time_features") or 0, 1))


def _static(config: object, batch: Dim) -> dict[str, InputSpec]:
    """Features that do not change with time, where the model was built for any."""
    found: dict[str, InputSpec] = {}
    classes = numbers(config, "cardinality")
    count = number(config, "num_static_categorical_features") or 0
    if count:
        name = "static_categorical_features"
        values = ValueRange(low=0, high=max(min(classes, default=1) - 1, 0))
        dims = (batch, Dim.fixed(count))
        found[name] = InputSpec(name=name, dtype="int64", dims=dims, values=values)
    real = number(config, "num_static_real_features") or 0
    if real:
        found["static_real_features"] = _floats("static_real_features", (batch, Dim.fixed(real)))
    return found


def _floats(name: str, dims: tuple[Dim, ...]) -> InputSpec:
    return InputSpec(name=name, dtype="float32", dims=dims)
