"""What a transformers config says of time series inputs. Duck-typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.dims import Dim
from ..core.signature import InputSpec, ValueRange
from .huggingface_config import config_number, config_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

# What a transformers config says of time series inputs. Duck-typed.


def series_inputs(config: object, parameters: Sequence[str], batch: Dim) -> dict[str, InputSpec]:
    """The past, and where the decoder reads it the future, with their time features and masks."""
    context = config_number(config, "context_length")
    if context is None:
        return {}
    if "past_time_features" not in parameters:
        channels = config_number(config, "num_input_channels") or 1
        values = (batch, Dim.fixed(context), Dim.fixed(channels))
        return {"past_values": InputSpec(name="past_values", dtype="float32", dims=values)}
    ahead = config_number(config, "prediction_length") or 1
    past = Dim.fixed(context + max(config_numbers(config, "lags_sequence"), default=0))
    width = config_number(config, "input_size") or 1
    found = {
        "past_values": _float_spec("past_values", _series_dims(batch, past, width)),
        "past_time_features": _float_spec(
            "past_time_features", (batch, past, _time_feature_dim(config))
        ),
        "past_observed_mask": InputSpec(
            name="past_observed_mask",
            dtype="float32",
            dims=_series_dims(batch, past, width),
            values=ValueRange(low=1, high=1),
        ),
        "future_values": _float_spec("future_values", _series_dims(batch, Dim.fixed(ahead), width)),
        "future_time_features": _float_spec(
            "future_time_features", (batch, Dim.fixed(ahead), _time_feature_dim(config))
        ),
    }
    return {**found, **_static_inputs(config, batch)}


def _series_dims(batch: Dim, length: Dim, width: int) -> tuple[Dim, ...]:
    return (batch, length) if width == 1 else (batch, length, Dim.fixed(width))


def _time_feature_dim(config: object) -> Dim:
    return Dim.fixed(max(config_number(config, "num_time_features") or 0, 1))


def _static_inputs(config: object, batch: Dim) -> dict[str, InputSpec]:
    """Features that do not change with time, where the model was built for any."""
    found: dict[str, InputSpec] = {}
    classes = config_numbers(config, "cardinality")
    count = config_number(config, "num_static_categorical_features") or 0
    if count:
        name = "static_categorical_features"
        values = ValueRange(low=0, high=max(min(classes, default=1) - 1, 0))
        dims = (batch, Dim.fixed(count))
        found[name] = InputSpec(name=name, dtype="int64", dims=dims, values=values)
    real = config_number(config, "num_static_real_features") or 0
    if real:
        found["static_real_features"] = _float_spec(
            "static_real_features", (batch, Dim.fixed(real))
        )
    return found


def _float_spec(name: str, dims: tuple[Dim, ...]) -> InputSpec:
    return InputSpec(name=name, dtype="float32", dims=dims)
