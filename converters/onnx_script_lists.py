"""Lists of a tensor's slices in TorchScript, which ONNX would keep as sequences of unknown tensors.

`for step in x.unbind(1)` is a list, its length and one item a turn. Of what is in a sequence ONNX
knows no rank, and OpenVINO reads none of a dynamic length. Each item is a slice of the tensor, and
the length a size of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_LIST, _LENGTH, _ITEM = "aten::unbind", "aten::len", "aten::__getitem__"


def replace_slice_lists(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """A copy that takes slices where the module makes a list of them; itself where it makes none.

    A list that is used otherwise, as one that is changed, stays.
    """
    import torch

    if not _find_lists(module.inlined_graph):
        return module
    frozen = torch._C._freeze_module(module._c, preserveParameters=True)
    copied: torch.jit.ScriptModule = torch.jit._recursive.wrap_cpp_module(frozen)  # type: ignore[no-untyped-call]  # torch's own
    for node in _find_lists(copied.graph):
        _take_slices(copied.graph, node)
    return copied


def _find_lists(graph: Any) -> list[Any]:
    """What makes lists of slices that are counted and read alone."""
    return [
        node
        for node in _block_nodes(graph)
        if node.kind() == _LIST
        and all(use.user.kind() in {_LENGTH, _ITEM} for use in node.output().uses())
    ]


def _block_nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _block_nodes(inner)


def _take_slices(graph: Any, unbind: Any) -> None:
    """Put sizes and slices in place of the lengths and items of a list, and remove the list."""
    import torch

    tensor, dim = unbind.inputs()
    for reader in [use.user for use in unbind.output().uses()]:
        if reader.kind() == _LENGTH:
            made = graph.create("aten::size", [tensor, dim], 1)
            made.output().setType(torch._C.IntType.get())
        else:
            _, place = reader.inputs()
            made = graph.create("aten::select", [tensor, dim, place], 1)
            made.output().setType(torch._C.TensorType.get())
        made.insertBefore(reader)
        made.copyMetadata(reader)
        reader.output().replaceAllUsesWith(made.output())
        reader.destroy()
    unbind.destroy()
