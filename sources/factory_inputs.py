"""What a module that a factory built says of its inputs itself: timm's do. Duck-typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..core.call import Kind, parameters_of
from ..core.signature import Dim, InputSpec
from .loaded import Loaded

if TYPE_CHECKING:
    import torch

_BATCH = Dim(name="batch", low=1, opt=2, high=4, bounded=False)  # bounds are chosen by eager
_CONFIGS = ("pretrained_cfg", "default_cfg")
_RANK = 3  # channels, height, width
_GIVEN = (Kind.POSITIONAL, Kind.EITHER)


def loaded_from(module: torch.nn.Module, *, kind: str, notes: tuple[str, ...]) -> Loaded:
    """The factory's module, filled; its image input is known where it has a config of one."""
    takes = parameters_of(module.forward)
    sizes = _image_of(module)
    first = next((p.name for p in takes if p.kind in _GIVEN), None)
    known: dict[str, InputSpec] = {}
    if sizes is not None and first is not None:
        dims = (_BATCH, *(Dim.fixed(size) for size in sizes))
        known[first] = InputSpec(name=first, dtype="float32", dims=dims)
    return Loaded(kind=kind, module=module, takes=takes, known=known, assumed=True, notes=notes)


def _image_of(module: torch.nn.Module) -> tuple[int, ...] | None:
    """Channels, height and width; the channels are the first convolution's, as it was built."""
    for name in _CONFIGS:
        config = getattr(module, name, None)
        size = _value(config, "input_size")
        if not isinstance(size, (tuple, list)) or len(size) != _RANK:
            continue
        if all(isinstance(one, int) and one > 0 for one in size):
            return (_channels(module, _value(config, "first_conv")) or size[0], *size[1:])
    return None


def _value(config: object, name: str) -> object:
    if isinstance(config, Mapping):
        return config.get(name)
    return getattr(config, name, None)


def _channels(module: torch.nn.Module, place: object) -> int | None:
    names = place if isinstance(place, (tuple, list)) else (place,)
    if not names or not isinstance(names[0], str):
        return None
    try:
        found = getattr(module.get_submodule(names[0]), "in_channels", None)
    except AttributeError:
        return None
    return found if isinstance(found, int) else None
