"""Which Python values that a tracer froze tell of sizes alone, as feeds of all sizes judge."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from ..guarded import call_framework
from .causes import RefusedError

SourceLine: TypeAlias = tuple[str, int]  # file and line

# Operators whose results have sizes that depend on data; those of no library of torch's may, too.
_OF_DATA = (
    "aten::nonzero", "aten::argwhere", "aten::masked_select", "aten::unique", "aten::_unique",
    "aten::index", "aten::repeat_interleave", "aten::bincount", "aten::_pack_padded_sequence",
    "aten::where", "aten::_nested", "aten::combinations",
)  # fmt: skip
_KNOWN = ("aten::", "prim::")


def size_only_lines(trace: Callable[[], object]) -> frozenset[SourceLine]:
    """Trace once more and say at which lines tensors became Python values of sizes alone.

    Each value is followed back in the graph so far. Where it comes from an input's data, or the
    sizes do, its line is none of them. What cannot be traced again shows none.
    """
    from torch.overrides import TorchFunctionMode

    seen: dict[SourceLine, bool] = {}

    class Values(TorchFunctionMode):
        """Sees each call that leaves the tensors."""

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> object:
            answer = func(*args, **(kwargs or {}))
            made = list(_graph_values(args))
            if made and not _is_tensors(answer):
                place = _user_line()
                seen[place] = seen.get(place, True) and all(map(_is_of_sizes_only, made))
            return answer

    try:
        with Values():
            call_framework("torch.jit.trace", trace)
    except RefusedError:
        return frozenset()
    return frozenset(place for place, sizes in seen.items() if sizes)


def _is_tensors(answer: object) -> bool:
    """Whether a call gave tensors, or nothing, and so no Python value of them."""
    import torch

    parts = answer if isinstance(answer, (tuple, list)) else [answer]
    return all(part is None or isinstance(part, torch.Tensor) for part in parts)


def _graph_values(args: Any) -> Iterator[Any]:
    """The values in the graph of the tensors that a call took; a constant's has no producer."""
    import torch

    if torch._C._get_tracing_state() is None:
        return
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield torch._C._get_value_trace(arg)  # type: ignore[attr-defined]  # not in its stubs


def _user_line() -> SourceLine:
    """The line that asked: the innermost that is neither torch's nor of this file."""
    import torch

    library = f"{Path(torch.__file__).parent}/"
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((library, __file__)):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _is_of_sizes_only(value: Any) -> bool:
    """Whether all that a value is computed from is sizes, parameters and constants."""
    left, seen = [value.node()], set()
    while left:
        node = left.pop()
        if node in seen or node.kind() == "prim::GetAttr":
            continue
        seen.add(node)
        if node.kind() == "prim::Param":
            return False
        inputs = [one.node() for one in node.inputs()]
        if node.kind() == "aten::size":
            if _depends_on_data(inputs[0]):
                return False
            inputs = inputs[1:]
        left.extend(inputs)
    return True


def _depends_on_data(start: Any) -> bool:
    """Whether the sizes of what a node gives may depend on data."""
    left, seen = [start], set()
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        kind = node.kind()
        if kind.startswith(_OF_DATA) or not kind.startswith(_KNOWN):
            return True
        left.extend(one.node() for one in node.inputs())
    return False
