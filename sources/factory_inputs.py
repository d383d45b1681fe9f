"""What a module that a factory built says of its inputs itself: timm's do. Duck-typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..core.call import Kind, parameters_of
from ..core.signature import Dim, InputSpec
from .loaded import LoadedModule

if TYPE_CHECKING:
    import torch

# What a module that a factory built says of its inputs itself: timm's do. Duck-typed.


_BATCH = Dim(name="batch", low=1, opt=2, high=4, bounded=False)  # bounds are chosen by eager
_CONFIG_NAMES = ("pretrained_cfg", "default_cfg")
_IMAGE_RANK = 3  # channels, height, width
_POSITIONAL_KINDS = (Kind.POSITIONAL, Kind.EITHER)


def wrap_built_module(
    module: torch.nn.Module, *, kind: str, notes: tuple[str, ...]
) -> LoadedModule:
    """The factory's module, filled; its image input is known where it has a config of one."""
    takes = parameters_of(module.forward)
    sizes = _image_size(module)
    first = next((p.name for p in takes if p.kind in _POSITIONAL_KINDS), None)
    known: dict[str, InputSpec] = {}
    if sizes is not None and first is not None:
        dims = (_BATCH, *(Dim.fixed(size) for size in sizes))
        known[first] = InputSpec(name=first, dtype="float32", dims=dims)
    return LoadedModule(
        kind=kind, module=module, takes=takes, known=known, assumed=True, notes=notes
    )


def _image_size(module: torch.nn.Module) -> tuple[int, ...] | None:
    """Channels, height and width; the channels are the first convolution's, as it was built."""
    for name in _CONFIG_NAMES:
        config = getattr(module, name, None)
        size = _config_value(config, "input_size")
        if not isinstance(size, (tuple, list)) or len(size) != _IMAGE_RANK:
            continue
        if all(isinstance(one, int) and one > 0 for one in size):
            return (
                _input_channels(module, _config_value(config, "first_conv")) or size[0],
                *size[1:],
            )
    return None


def _config_value(config: object, name: str) -> object:
    if isinstance(config, Mapping):
        return config.get(name)
    return getattr(config, name, None)


def _input_channels(module: torch.nn.Module, place: object) -> int | None:
    names = place if isinstance(place, (tuple, list)) else (place,)
    if not names or not isinstance(names[0], str):
        return None
    try:
        found = getattr(module.get_submodule(names[0]), "in_channels", None)
    except AttributeError:
        return None
    return found if isinstance(found, int) else None
