"""Padding to a multiple of a size, computed instead of a Python branch.

`if height % 2 != 0: x = pad(x, ...)` holds for the captured sizes only. Padding by 0 is the
identity, so the amount can always be computed from the size.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from .evidence import Symptom
from .rewrite import Module, Rewrite, swap_attribute, swap_functions

_SAME_PADDING = "apply_tf_padding"  # TensorFlow's padding, in MobileNets of transformers
_PATCH_PADDING = "maybe_pad"  # of images to whole patches, in FocalNet
_MODELS_PREFIX = "transformers.models."


def _has_padding(module: Module) -> bool:
    return bool(_find_same_paddings(module) or _find_patch_embeddings(module))


def _find_same_paddings(module: Module) -> list[Any]:
    """Return the functions of that name in the files of the submodules' classes."""
    files = {type(part).__module__ for part in module.modules()}
    found = [
        getattr(sys.modules.get(name), _SAME_PADDING, None)
        for name in files
        if name.startswith(_MODELS_PREFIX)
    ]
    return [one for one in found if one is not None]


def _find_patch_embeddings(module: Module) -> list[type]:
    """Return the classes of submodules that pad images to whole patches."""
    return list(
        dict.fromkeys(
            type(part)
            for part in module.modules()
            if type(part).__module__.startswith(_MODELS_PREFIX)
            and _PATCH_PADDING in vars(type(part))
            and isinstance(getattr(part, "patch_size", None), list | tuple)
        )
    )


@contextmanager
def _use_size_padding(module: Module) -> Iterator[None]:
    with ExitStack() as held:
        held.enter_context(
            swap_functions(dict.fromkeys(_find_same_paddings(module), _pad_as_tensorflow))
        )
        for kind in _find_patch_embeddings(module):
            held.enter_context(swap_attribute(kind, _PATCH_PADDING, _pad_to_patches))
        yield


def _pad_as_tensorflow(features: Any, conv_layer: Any) -> Any:
    """Pad like TensorFlow's SAME."""
    from torch.nn import functional

    amounts: list[Any] = []
    for axis in (-1, -2):
        kernel, stride = conv_layer.kernel_size[axis], conv_layer.stride[axis]
        size = features.shape[axis]
        total = (size + stride - 1) // stride * stride - stride + kernel - size
        if kernel < stride:
            total = (total + abs(total)) // 2  # max(total, 0), which Python would decide
        before = total // 2
        dilation = conv_layer.dilation[axis]
        amounts += [before * dilation, (total - before) * dilation]
    return functional.pad(features, amounts, "constant", 0.0)


def _pad_to_patches(self: Any, pixel_values: Any, height: Any, width: Any) -> Any:
    from torch.nn import functional

    rows, columns = self.patch_size
    wide, high = (
        (size + step - 1) // step * step for size, step in ((width, columns), (height, rows))
    )
    return functional.pad(pixel_values, (0, wide - width, 0, high - height))


PADDING_REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="computed-padding",
        summary="padding computed from the sizes, without a branch",
        suits=_has_padding,
        during=_use_size_padding,
        answers=frozenset((Symptom.SIZE_BRANCH, Symptom.ASSUMED_SIZE)),
        files=frozenset(("modeling_mobilenet_v1.py", "modeling_mobilenet_v2.py")),
    ),
)
