"""What a transformers config says of the model's inputs. Duck-typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.signature import Dim, InputSpec, ValueRange, default_opt

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST = 64  # tokens; longer feeds cost time and show no more
_BATCH = Dim(name="batch", low=1, opt=default_opt(1, 4), high=4)


def known_inputs(config: object, parameters: Sequence[str]) -> dict[str, InputSpec]:
    """Token and image inputs among forward's parameters, in forward's order.

    Empty where the model takes neither: the user then says the inputs.
    """
    specs = {**_images(config), **_tokens(config)}
    if not getattr(config, "is_encoder_decoder", False):
        specs.pop("decoder_input_ids", None)
    return {name: specs[name] for name in parameters if name in specs}


def _tokens(config: object) -> dict[str, InputSpec]:
    vocabulary = _number(config, "vocab_size")
    if vocabulary is None:
        return {}
    longest = min(_number(config, "max_position_embeddings", "n_positions") or _LONGEST, _LONGEST)
    ids = ValueRange(low=0, high=vocabulary - 1)
    rows = {
        "input_ids": (_length("sequence", longest), ids),
        "attention_mask": (_length("sequence", longest), ValueRange(low=0, high=1)),
        "decoder_input_ids": (_length("decoder_sequence", longest), ids),
    }
    return {
        name: InputSpec(name=name, dtype="int64", dims=(_BATCH, length), values=values)
        for name, (length, values) in rows.items()
    }


def _images(config: object) -> dict[str, InputSpec]:
    size = _find(config, "image_size")
    sides = (size, size) if isinstance(size, int) else size
    channels = _number(config, "num_channels") or 3
    if not isinstance(sides, (tuple, list)) or not all(isinstance(side, int) for side in sides):
        return {}
    dims = (_BATCH, *(Dim.fixed(side) for side in (channels, *sides)))
    return {"pixel_values": InputSpec(name="pixel_values", dtype="float32", dims=dims)}


def _length(name: str, longest: int) -> Dim:
    low = min(2, longest)
    return Dim(name=name, low=low, opt=default_opt(low, longest), high=longest)


def _number(config: object, *names: str) -> int | None:
    for name in names:
        value = _find(config, name)
        if isinstance(value, int):
            return value
    return None


def _find(config: object, name: str) -> object:
    """The attribute of the config, or of its text or vision part."""
    for part in (
        config,
        getattr(config, "text_config", None),
        getattr(config, "vision_config", None),
    ):
        value = getattr(part, name, None)
        if value is not None:
            return value
    return None
