"""Looks things up in a transformers config, or in the configs of its parts. Duck-typed."""

from __future__ import annotations

# Looks things up in a transformers config, or in the configs of its parts. Duck-typed.


_PARTS = ("text_config", "vision_config", "audio_config", "encoder", "decoder")


def config_number(config: object, *names: str) -> int | None:
    """The first of these attributes that is a whole number; None where none is."""
    for name in names:
        value = config_value(config, name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def config_numbers(config: object, name: str) -> tuple[int, ...]:
    """The attribute as whole numbers; empty where it is none."""
    value = config_value(config, name)
    if isinstance(value, (tuple, list)) and all(isinstance(one, int) for one in value):
        return tuple(value)
    return ()


def config_value(config: object, name: str) -> object:
    """The attribute of the config, or of one of its parts."""
    for part in (config, *(getattr(config, part, None) for part in _PARTS)):
        value = getattr(part, name, None)
        if value is not None:
            return value
    return None
